"""A verdict as other programs take it: JUnit XML, SARIF, and a badge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from xml.etree import ElementTree as xml

from leakscope.results.gate.verdict import GateVerdict, LimitVerdict
from leakscope.results.gate.words import details, say_limit, summarise

COLOURS = {"pass": "#1a7f37", "fail": "#cf222e", "not enough evidence": "#9a6700"}
KINDS = {"pass": "pass", "fail": "fail", "not enough evidence": "open"}  # of SARIF
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LETTER = 6.6  # pixels, of the badge


def as_junit(verdict: GateVerdict) -> str:
    """A test case for every limit. What is open is a failure too: a pipeline must not take it for a pass."""
    lost = sum(one.combined != "pass" for one in verdict.limits)
    suite = xml.Element(
        "testsuite", name="leakscope gate", tests=str(len(verdict.limits)), failures=str(lost), errors="0"
    )
    for one in verdict.limits:
        case = xml.SubElement(
            suite, "testcase", classname="leakscope.gate", name=_clean(say_limit(one.limit))
        )
        text = _clean("\n".join(details(one)))
        if one.combined == "pass":
            xml.SubElement(case, "system-out").text = text
        else:
            xml.SubElement(case, "failure", type=one.combined, message=one.combined).text = text
    xml.indent(suite)
    return xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def as_sarif(verdict: GateVerdict, places: Sequence[str]) -> str:
    """A rule and a result for every limit; ``places`` are the results folders."""
    rules = [
        {"id": f"limit-{at}", "shortDescription": {"text": say_limit(one.limit)}}
        for at, one in enumerate(verdict.limits, 1)
    ]
    driver = {"name": "leakscope", "version": version("leakscope"), "rules": rules}
    run = {
        "tool": {"driver": driver},
        "results": [_result(at, one, places) for at, one in enumerate(verdict.limits, 1)],
        "properties": {"verdict": verdict.combined, "summary": summarise(verdict)},
    }
    return json.dumps({"version": "2.1.0", "$schema": SCHEMA, "runs": [run]}, indent=1) + "\n"


def _result(at: int, one: LimitVerdict, places: Sequence[str]) -> dict[str, object]:
    return {
        "ruleId": f"limit-{at}",
        "kind": KINDS[one.combined],
        "level": "error" if one.combined == "fail" else "none",
        "message": {"text": " ".join([f"{one.combined}: {say_limit(one.limit)}.", *details(one)])},
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": f"{place}/plan.toml"}}} for place in places
        ],
    }


def as_badge(verdict: GateVerdict) -> str:
    """A small picture of the verdict, as SVG."""
    left, right = "leakscope gate", verdict.combined
    cut, width = _width(left), _width(left) + _width(right)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="20" role="img" '
        f'aria-label="{left}: {right}"><title>{left}: {right}</title>'
        f'<rect width="{width:.0f}" height="20" rx="3" fill="#555"/>'
        f'<rect x="{cut:.0f}" width="{width - cut:.0f}" height="20" rx="3" fill="{COLOURS[right]}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{cut / 2:.0f}" y="14">{left}</text>'
        f'<text x="{(cut + width) / 2:.0f}" y="14">{right}</text></g></svg>\n'
    )


def _width(text: str) -> float:
    return LETTER * len(text) + 12


def _clean(text: str) -> str:
    """Without characters that XML has none of."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
