"""One page over many runs: each with its strongest attack, and a sentence for what cannot be read."""

from __future__ import annotations

import pytest
from builders import KINDS, Page, fail, game, keep, measure, refuses

from leakscope.core.errors import StoreError
from leakscope.report import overview
from leakscope.report.page import write
from leakscope.report.report import read_report

APPETITE = '[[limit]]\nsecret = "sex"\nattack = "any"\nmeasure = "advantage"\nat_most = 0.1\n'


@pytest.fixture
def look(tmp_path):
    """The run of these results, seen from a page beside their folder."""

    def run(*results, at="audit"):
        found, bad = overview.read_runs([keep(tmp_path / at, results)], page=tmp_path / "summary.html")
        assert not bad
        return found[0]

    return run


def without_script(html):
    assert html.count("<script") == 1  # its own
    return Page(str(html.partition("<script>")[0]) + "</body></html>")


def test_the_verdict_of_a_run_is_that_of_its_worst_setting_beside_guessing(look):
    worst = game("race", rate=0.95, prior=0.25, accuracy=0.85, defense={"name": "Sign"})
    run = look(game(rate=0.6), worst, fail(game("age")))
    verdict = run.verdict
    assert (verdict.about.split()[0], verdict.defense, verdict.severity) == ("race", "Sign", "severe")
    assert (verdict.measure, verdict.average.value, verdict.guessing) == ("success", 0.95, 0.75)
    assert verdict.utility.value == 0.85
    assert (run.results, run.failed) == (3, 1)
    assert overview.say(verdict)[::2] == ("95.0%", "75.0%")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_the_verdict_of_its_own_report(look, tmp_path, kind):
    verdict = look(measure(kind)).verdict
    assert verdict == read_report(tmp_path / "audit").verdicts[0]
    value, between, base = overview.say(verdict)
    assert value != "–"
    assert between
    assert (base == "–") == (kind == "canary")  # of an epsilon nobody guesses


def test_links_are_relative_to_the_page_and_quoted(tmp_path):
    run = keep(tmp_path / "a b" / "audit #1", [game()])
    place = tmp_path / "pages" / "summary.html"
    (bare,), _ = overview.read_runs([run], page=place)
    assert bare.link == ""
    assert "no report written" in without_script(overview.render([bare], [])).text
    write(run)
    (found,), _ = overview.read_runs([run], page=place)
    assert found.link == "../a%20b/audit%20%231/report.html"
    assert ("a", {"href": found.link}) in without_script(overview.render([found], [])).seen


@pytest.mark.parametrize("place", ["audit/gate.toml", "audit/appetite.toml", "appetite.toml"])
def test_a_gate_is_shown_where_an_appetite_lies_with_or_beside_the_results(look, tmp_path, place):
    assert look(game()).gate == ""
    (tmp_path / place).write_text(APPETITE)
    assert look(game()).gate == "fail"
    (tmp_path / place).write_text(APPETITE.replace("0.1", "0.99"))
    assert look(game()).gate == "pass"


def test_bad_folders_get_a_sentence_each_and_the_others_are_shown(tmp_path):
    good, empty, broken, torn, unsure = (
        keep(tmp_path / name, results)
        for name, results in (
            ("good", [game(), fail(game("race"))]), ("empty", []), ("broken", [game()]), ("torn", []), ("unsure", [game()])
        )
    )  # fmt: skip
    next((broken / "cells").iterdir()).write_text("{")
    (torn / "plan.toml").write_text("name = ")
    (unsure / "appetite.toml").write_text("limit = 3")
    every = [good, empty, broken, torn, tmp_path / "none", unsure]
    found, bad = overview.write(every, tmp_path / "summary.html")
    assert [run.folder for run in found] == ["good", "empty", "unsure"]
    named = ("broken", "torn", "none", "unsure")
    assert [[name in sentence for name in named].index(True) for sentence in bad] == [0, 1, 2, 3]
    assert all(sentence.isprintable() for sentence in bad)
    text = without_script((tmp_path / "summary.html").read_text(encoding="utf-8")).text
    assert "nothing has been run yet" in text
    assert all(sentence in text for sentence in bad)


def test_the_command_writes_the_page_and_refuses_if_nothing_can_be_read(leakscope, tmp_path):
    run, page = keep(tmp_path / "audit", [game(rate=0.91, n=1_000)]), tmp_path / "out" / "all.html"
    said = leakscope("summary", run, tmp_path / "none", "-o", page)
    assert said.code == 0
    assert "91.0% Success rate" in " ".join(said.out.split())
    assert "none" in said.err
    assert page.exists()
    refuses(StoreError, r"has no plan\.toml", overview.write, [tmp_path / "none"], page)
    assert leakscope("summary", tmp_path / "none", "-o", tmp_path / "no.html").code == 2
    assert not (tmp_path / "no.html").exists()
