"""Results that users have on disk from before they had types: every command still takes their folders."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest
from builders import FORMAT1
from markupsafe import Markup

from leakscope.results import store

APPETITE = '[[limit]]\nsecret = "*"\nmeasure = "{}"\nat_most = {}\nadversary = "any"\n'
NOW = {
    "success_rate": "success",
    "any": "certified",
    "NearestNeighbours": "estimate",
}  # fields that were renamed


@pytest.fixture(params=sorted(path.name for path in FORMAT1.iterdir()))
def folder(request, tmp_path):
    return shutil.copytree(FORMAT1 / request.param, tmp_path / request.param)


def intervals(node, at=""):
    """Every estimate in a document, under the name of its field."""
    if isinstance(node, dict):
        if {"value", "low", "high"} <= set(node):
            yield NOW.get(at, at), node["value"], node["low"], node["high"]
        for key, item in node.items():
            yield from () if key == "sure" else intervals(item, key)  # the same at another level
    elif isinstance(node, list):
        for item in node:
            yield from intervals(item, at)


def test_every_estimate_of_the_first_format_is_read_as_it_was_written(folder):
    for result in store.results(folder):
        written = json.loads((folder / "cells" / f"{result.key}.json").read_text())
        found = result.found.model_dump(mode="json") if result.found else {}
        assert Counter(intervals(found)) == Counter(intervals(written))


def test_every_command_takes_a_folder_of_the_first_format(leakscope, tmp_path, folder):
    kept = {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}
    said = leakscope("report", folder)
    assert (said.code, said.err) == (0, "")
    rows = json.loads((folder / "results.json").read_text())["numbers"]
    assert {row["key"] for row in rows} == {name.partition(".")[0] for name in kept}
    page = (folder / "report.html").read_text()
    assert all(row["key"][:12] in page for row in rows if not row["error"])
    assert all(row["error"] in Markup(page).unescape() for row in rows)
    limits = tmp_path / "limits.toml"
    limits.write_text(APPETITE.format("epsilon" if folder.name == "mechanism" else "advantage", 0.0))
    said = leakscope("gate", folder, limits, "--json")
    assert said.code == (1 if folder.name in ("inference", "mechanism") else 3), said.err
    judged = {one["key"] for limit in json.loads(said.out)["limits"] for one in limit["judgements"]}
    assert judged >= {row["key"] for row in rows if row["error"]}
    said = leakscope("compare", folder, folder, "--json", "-o", tmp_path)
    assert said.code == 0, said.err
    gaps = [gap for cell in json.loads(said.out)["cells"] for gap in cell["differences"]]
    assert gaps
    assert {gap["value"] for gap in gaps} == {0}
    said = leakscope("summary", folder, "-o", tmp_path)
    assert (said.code, "not run" in said.out) == (0, folder.name not in ("mechanism", "recording"))
    assert kept == {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}


def test_a_folder_of_the_first_format_that_lacks_results_never_passes(leakscope, tmp_path):
    """Of two seeds some cells have one only."""
    limits = tmp_path / "limits.toml"
    limits.write_text(APPETITE.format("advantage", 1.0))
    said = leakscope("gate", FORMAT1 / "inference", limits, "--json")
    assert said.code == 3
    assert "not run" in said.out
