"""The typed door: real results of every kind go through every reader, and a new kind is one folder."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import builders
import jsonschema
import pytest
import tomli_w
from markupsafe import Markup

import leakscope as ls
from leakscope.core.catalogue import KINDS, KindEntry
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Estimate
from leakscope.measures.success import proportion
from leakscope.report import comparison, overview
from leakscope.report.page import render, write
from leakscope.report.report import Report, read_report
from leakscope.results import gate, kind, store
from leakscope.results.cell import plan_of
from leakscope.results.chapter import Chapter, Verdict
from leakscope.results.kind import Asked, Measured, TableEntry
from leakscope.results.number import of_scores
from leakscope.results.result import Result, find_checks
from leakscope.results.scores import FrozenModel, Scores
from leakscope.run import published, sweep
from leakscope.run.plan import from_document

SCHEMA = json.loads(resources.files("leakscope.results").joinpath("results.schema.json").read_text("utf-8"))
FOLDERS = [path.name for path in sorted(builders.FORMAT1.iterdir())]
DOCUMENT = {
    "name": "Every kind",
    "defaults": builders.DEFAULTS,
    "cell": [{"id": name} | table for name, table in builders.KINDS.items()],
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A results folder with a cell of every kind, as the sweep writes it."""
    place = tmp_path_factory.mktemp("contract") / "run"
    asked = {"id": "questions", **builders.ask_recording(place.parent)}
    document = DOCUMENT | {"cell": [*DOCUMENT["cell"], asked]}
    sweep.run(from_document(document), place, text=tomli_w.dumps(document), jobs=1)
    return place


@pytest.fixture(scope="session")
def report(folder) -> Report:
    return read_report(folder)


def test_every_kind_is_there(report):
    assert {result.kind for result in report.results} == set(KINDS)
    assert not any(result.error for result in report.results)


def test_a_result_is_the_same_after_it_was_written_and_read(folder, report):
    for result in report.results:
        again = store.load(folder, result.key)
        assert again == result
        assert again.found.model_dump_json() == result.found.model_dump_json()
    for found in (one.found for name in FOLDERS for one in builders.golden(name) if one.found):
        assert type(found).model_validate_json(found.model_dump_json()) == found


def test_a_result_says_when_and_by_what_it_was_made(report):
    for result in report.results:
        assert result.made.date
        assert len(result.made.code) == 12
        assert result.made.versions["leakscope"] == ls.__version__
        assert result.made.records.records > 0


def test_every_kind_reaches_page_terminal_csv_json_gate_compare_summary_and_papers(folder, report, tmp_path):
    page = write(folder).read_text()
    rows = list(csv.DictReader(io.StringIO((folder / "results.csv").read_text())))
    document = json.loads((folder / "results.json").read_text())
    jsonschema.validate(document, SCHEMA)
    readings = [one for result in gate.read_results(folder) for one in gate.readings.read(result)]
    judged = gate.as_json(
        gate.judge(gate.parse('[[limit]]\nsecret="*"\nmeasure="auroc"\nat_most=0.5'), report.results)
    )
    found = ls.compare(folder, folder)
    json.dumps(comparison.as_json(found), allow_nan=False)
    lines = published.compare(report.results, quick=False)
    runs, bad = overview.read_runs([folder], page=tmp_path / "summary.html")
    assert not bad
    assert runs[0].verdict == report.verdicts[0]
    for result in report.results:
        key = result.key
        assert key[:12] in page
        own = [row for row in rows if row["key"] == key]
        assert {row["kind"] for row in own} == {result.kind}
        assert any(row["about"] == "leakage" and row["value"] for row in own)
        assert {row["key"] for row in document["numbers"]} >= {key}
        assert any(reading.key == key and reading.measured for reading in readings)
        assert any(pair.label == result.cell.id and pair.differences for pair in found.pairs)
        assert any(key in line.block.keys for line in lines)
        assert kind.headline(result) in "".join(kind.headline(one) for one in report.results)
    told = {one["key"] for limit in judged["limits"] for one in limit["judgements"] if one["n"]}
    measured = {row["key"] for row in rows if row["measure"] == "auroc" and row["about"] == "leakage"}
    assert told == measured


def test_the_same_sentences_stand_on_the_page_in_the_terminal_and_in_the_summary(folder, report):
    page = Markup(write(folder).read_text()).striptags()
    for verdict in report.verdicts:
        assert Markup.escape(verdict.sentence).striptags() in page
        assert any(verdict.sentence in line for line in report.lines)


def test_the_page_is_the_same_for_the_same_results_and_has_no_script(report):
    pages = {render(report.results, plan=report.plan, title="x") for _ in range(2)}
    assert len(pages) == 1
    assert "<script" not in pages.pop()


def test_self_checks_are_found_in_every_kind(report):
    for result in report.results:
        assert list(find_checks(result.found)), result.kind


def test_a_failed_cell_fails_in_every_reader(report, tmp_path):
    lost = [
        Result(key=r.key, seed=r.seed, kind=r.kind, cell=r.cell, error="it broke") for r in report.results
    ]
    page = render(lost, plan=report.plan, title="x")
    assert page.count("it broke") >= len(lost)
    for result in lost:
        assert [number.error for number in kind.numbers(result)] == ["it broke"]
    verdicts = Report(tuple(lost), report.plan).verdicts
    assert {verdict.severity for verdict in verdicts} == {"failed"}
    verdict = gate.judge(gate.parse('[[limit]]\nsecret="*"\nmeasure="auroc"\nat_most=1.0'), lost)
    assert not verdict.passed


def test_a_report_prints_ten_lines_and_is_a_page_in_a_notebook(report):
    lines = str(report).splitlines()
    assert 2 <= len(lines) <= 10
    assert report.verdicts[0].sentence in str(report)
    assert report.html().startswith("<!doctype html>")
    assert 'srcdoc="&lt;!doctype html&gt;' in report._repr_html_()


def test_each_picture_of_a_page_stands_on_its_own(report):
    drawn = report.html().count("<svg class=") - len(
        re.findall(r'<svg class="(?:icon|mark|strip)', report.html())
    )
    assert len(report.figures) == drawn
    assert {name.partition(" ")[0] for name in report.figures} >= {"roc", "layers", "rounds", "histogram"}
    known = set(re.findall(r"(--\w+):", report.figure("roc")))
    for name, title in report.figures.items():
        root = ElementTree.fromstring(report.figure(name))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.find("{*}title").text == title
        text = report.figure(name)
        assert not re.search(r"href|src=|url\(|@import|<script|<image|&(?!amp|lt|gt|quot|#x27)", text)
        assert set(re.findall(r"var\((--\w+)\)", text)) <= known
        assert report.figure(name)._repr_svg_() == text
    with pytest.raises(ArgumentError, match=r"figure must be one of this report's, .*'roc'.*got 'rocks'"):
        report.figure("rocks")


def test_a_report_is_a_table_of_numbers(report):
    frame = report.frame()
    assert set(frame["kind"]) == set(KINDS)
    assert len(frame) == sum(len(kind.numbers(result)) for result in report.results)


def test_a_report_can_be_saved_gated_and_compared(report, tmp_path):
    place = tmp_path / "kept"
    assert report.save(place) == place / "report.html"
    assert [r.key for r in read_report(place).results] == [r.key for r in report.results]
    limits = tmp_path / "appetite.toml"
    limits.write_text('[[limit]]\nsecret = "*"\nmeasure = "auroc"\nat_most = 1.0\nadversary = "any"\n')
    assert ls.gate(report, limits).combined == ls.gate(place, limits).combined
    assert ls.compare(report, place).differences


def test_reprs_show_no_record_and_no_secret(parts):
    train = parts[0]
    shown = repr(train)
    assert len(shown.splitlines()) <= 3
    assert "tensor" not in shown
    transcript = ls.Transcript(train.y[:9], train.x[:9, :2].softmax(1), train.x.new_full((2,), 0.5))
    view = ls.View((ls.Release.of({"w": train.x[:3]}),), {"known": train.x[:3]})
    for thing in (transcript, view, view.releases[0]):
        assert len(repr(thing).splitlines()) <= 3
        assert "tensor" not in repr(thing)


# A seventh kind: one module and one line in the registry

TOY = "toy_kind"


class Tossed(FrozenModel):
    name: str
    scores: Scores[Estimate]


@dataclass(frozen=True)
class ToyKind:
    found = Tossed

    def ask(self, cell):
        return Asked((str(cell.game["secret"]),), ("toss",), attack="a coin")

    def check(self, world):
        pass

    def run(self, world):
        raise AssertionError("the contract of a kind is tested on what it found")

    def numbers(self, cell, found, about):
        yield from of_scores(about, found.scores, guessing=0.5)

    def entries(self, found):
        return {name: TableEntry(estimate) for name, estimate in found.scores.present()}

    def headline(self, cell, found):
        return f"{found.name} tossed"

    def tell(self, results):
        verdicts = tuple(
            Verdict("severe", str(r.cell.game["secret"]), "coins", f"It is known how {r.found.name} fell.")
            for r in results
        )
        return Chapter("1 coin.", verdicts, Markup("<section><h2>Coins</h2></section>"))


@pytest.fixture
def toy(monkeypatch) -> Report:
    module = type(sys)(TOY)
    module.KIND = ToyKind()
    monkeypatch.setitem(sys.modules, TOY, module)
    monkeypatch.setitem(KINDS, "toss", KindEntry(TOY, 1, ("Toss",)))
    document = {
        "name": "Coins",
        "cell": [{"data": {"name": "coins"}, "game": {"name": "Toss", "secret": "side"}}],
    }
    cell = plan_of(tomli_w.dumps(document)).cell[0]
    scores = Scores[Estimate](advantage=proportion("advantage", 90, 100))
    measured = Measured(Tossed(name="the penny", scores=scores), None)
    result = Result(key=cell.key(0), seed=0, kind=cell.kind, cell=cell, found=measured.found)
    return Report((result,), tomli_w.dumps(document))


def test_a_seventh_kind_is_one_module_and_one_line(toy, tmp_path, leakscope):
    assert toy.save(tmp_path / "run").exists()
    assert "Coins" in toy.html()
    assert "It is known how the penny fell." in toy.html()
    assert "It is known how the penny fell." in str(toy)
    assert list(toy.frame()["measure"]) == ["advantage"]
    limits = tmp_path / "appetite.toml"
    limits.write_text('[[limit]]\nsecret = "side"\ngame = "toss"\nmeasure = "advantage"\nat_most = 0.5\n')
    assert leakscope("gate", tmp_path / "run", limits).code == 1
    assert "It is known how the penny fell." in leakscope("report", tmp_path / "run").out + str(
        read_report(tmp_path / "run")
    )
    assert "Toss" in leakscope("list").out
    assert [line.measure for line in published.compare(toy.results, quick=False)] == ["advantage"]
