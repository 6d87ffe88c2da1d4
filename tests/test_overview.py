"""One page over many runs: each with its strongest attack, and a sentence for what cannot be read."""

from __future__ import annotations

import warnings

import pytest
import test_report_guards as guards
import test_report_layers as layers
import test_report_membership as membership
from test_report import HOSTILE, Tags, failed, hostile, result
from test_report_defenses import audit

from leakscope import overview, report, store
from leakscope.errors import StoreError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer takes names that click 8.5 is giving up
    from typer.testing import CliRunner

    from leakscope.cli import app

PLAN = """name = "{}"
[[cell]]
data = {{name = "adult"}}
game = {{name = "Inference", secret = "sex"}}
"""
APPETITE = """[[limit]]
secret = "sex"
measure = "advantage"
at_most = 0.1
"""


def folder(path, results, *, reported=True):
    store.write(path / "plan.toml", PLAN.format(path.name))
    for i, one in enumerate(results):
        store.save(path, {**one, "key": f"{i:016x}"})
    if reported:
        report.write(path)
    return path


def headline(*results):
    return min(overview.headlines(results), key=lambda one: one.worst_first)


def test_the_headline_of_a_game_is_its_worst_setting_beside_guessing():
    found = headline(result(shift=-0.1), result("race", defense={"name": "Sign"}), failed())
    assert (found.about, found.defense, found.severity) == ("race", "Sign", "severe")
    assert found.shown == ("91.0%", "89.0% to 93.0%", "67.0%")
    assert found.utility.value == 0.85


@pytest.mark.parametrize(
    ("one", "measure", "shown", "defense"),
    [
        (membership.federation(), "hits at 1% false alarms", ("22.0%", "12.0% to 30.0%", "1.0%"), ""),
        (guards.guarded(), "AUROC", ("0.560", "0.550 to 0.570", "0.500"), "Inf2Guard, loss mmd, λ=0.75"),
        (audit(), "epsilon", ("at least 5.300", "at 95% confidence", "–"), "DPSGD (clip 2.0, noise 0.1)"),
    ],
)
def test_every_kind_of_run_has_a_headline(one, measure, shown, defense):
    found = headline(one)
    assert (found.measure, found.shown, found.defense) == (measure, shown, defense)


def test_the_headline_of_layers_is_the_view_with_the_surest_advantage():
    found = headline(layers.localisation())
    whole = layers.latent()["together"]["advantage"]
    assert found.attack == "Male, all layers"
    assert (found.found.value, found.guessing) == (whole["value"], 0.0)


def test_links_are_relative_to_the_page_and_quoted(tmp_path):
    run = folder(tmp_path / "a b" / "audit #1", [result()])
    found, bad = overview.runs([run], page=tmp_path / "pages" / "summary.html")
    assert bad == []
    assert found[0].link == "../a%20b/audit%20%231/report.html"
    bare, _ = overview.runs([folder(tmp_path / "bare", [result()], reported=False)], page=tmp_path / "s.html")
    assert bare[0].link == ""
    assert "no report written" in Tags(overview.render(bare, [])).text


@pytest.mark.parametrize("place", ["audit/gate.toml", "audit/appetite.toml", "appetite.toml"])
def test_a_gate_is_shown_where_an_appetite_lies_with_or_beside_the_results(tmp_path, place):
    run = folder(tmp_path / "audit", [result()])
    assert overview.runs([run], page=tmp_path / "s.html")[0][0].gate == ""
    (tmp_path / place).write_text(APPETITE)
    assert overview.runs([run], page=tmp_path / "s.html")[0][0].gate == "fail"


def test_a_bad_appetite_does_not_hide_the_run(tmp_path):
    run = folder(tmp_path / "audit", [result()])
    (tmp_path / "appetite.toml").write_text("limit = 3")
    (found,), (sentence,) = overview.runs([run], page=tmp_path / "s.html")
    assert found.headline.about == "sex"
    assert "appetite" in sentence


def test_bad_folders_get_a_sentence_each_and_the_others_are_shown(tmp_path):
    good, empty = folder(tmp_path / "good", [result(), failed()]), folder(tmp_path / "empty", [])
    broken, torn = folder(tmp_path / "broken", [result()]), folder(tmp_path / "torn", [])
    (broken / "cells" / f"{0:016x}.json").write_text("{")
    (torn / "plan.toml").write_text("name = ")
    every = [good, empty, broken, torn, tmp_path / "none"]
    found, bad = overview.write(every, tmp_path / "summary.html")
    assert [run.title for run in found] == ["good", "empty"]
    assert [sum(name in sentence for name in ("broken", "torn", "none")) for sentence in bad] == [1, 1, 1]
    assert all(sentence.count("\n") == 0 for sentence in bad)
    text = Tags(
        (tmp_path / "summary.html").read_text(encoding="utf-8").partition("<script>")[0] + "</body></html>"
    ).text
    assert "nothing has been run yet" in text
    assert "1 failed" in text
    assert all(sentence.split(";")[0] in text for sentence in bad)


def test_no_name_becomes_markup_and_the_only_script_is_the_pages_own(tmp_path):
    run = folder(tmp_path / "run", hostile())
    store.write(run / "plan.toml", f"name = '''{HOSTILE}'''\n")
    overview.write([run], tmp_path / "summary.html")
    html = (tmp_path / "summary.html").read_text(encoding="utf-8")
    assert html.count("<script") == 1
    before = Tags(html.partition("<script>")[0] + "</body></html>")
    assert not {"img", "iframe", "link"} & {tag for tag, _ in before.seen}
    assert not [name for _, attrs in before.seen for name in attrs if name.startswith("on")]
    assert "http" not in html


def test_the_command_writes_the_page_and_refuses_if_nothing_can_be_read(tmp_path):
    run = folder(tmp_path / "audit", [result()])
    page = tmp_path / "out" / "all.html"
    said = CliRunner().invoke(app, ["summary", str(run), str(tmp_path / "none"), "-o", str(page)])
    assert said.exit_code == 0
    assert "91.0% success rate" in said.stdout
    assert page.exists()
    with pytest.raises(StoreError, match=r"has no plan\.toml"):
        overview.write([tmp_path / "none"], page)
