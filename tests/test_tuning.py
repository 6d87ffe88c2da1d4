"""The search for the weakest defense that keeps a stated risk, and its answer."""

from __future__ import annotations

import pytest
from builders import refuses
from rich.progress import Progress

from leakscope.core.errors import ArgumentError
from leakscope.report import answer as answers
from leakscope.report.report import read_report
from leakscope.run import search as searching
from leakscope.run import tuning
from leakscope.run.plan import parse
from leakscope.run.tuning import FAMILIES, DefenseFamily, Risk, choose, search

CELL = """
[[cell]]
data = {name = "synthetic", records = 1500, shift = 2.0, positive = 0.9}
game = {name = "Inference", secret = "group", batch = 8}
attack = {name = "Posterior", head = {name = "RandomForest", trees = 10}}
model = {name = "Linear"}
rounds = 1
trials = 300
rehearsals = 200
train = 700
public = 400
"""
NOISE = next(family for family in FAMILIES if family.name == "Noise")


def test_the_search_finds_the_weakest_strength_that_meets_the_risk(tmp_path):
    cell = parse(CELL).cell[0]
    risk = Risk(advantage=0.3, loss=1.0)
    options = {"families": [NOISE], "halvings": 4, "jobs": 1}
    points = list(search(cell, risk, tmp_path, **options))
    assert [point.family for point in points] == ["none", *["Noise"] * 5]
    found = min(point.defense["std"] for point in points[1:] if point.protects(risk))
    tried = [point.defense["std"] for point in points[1:] if not point.protects(risk)]
    assert tried
    assert max(tried) < found < 30.0
    assert found / max(tried) == pytest.approx((30.0 / 1e-3) ** (1 / 16), rel=0.02)
    assert choose(points, risk) in points[1:]
    again = list(search(cell, risk, tmp_path, **options))
    assert [point.result for point in again] == [point.result for point in points]  # read, not played again


def test_a_risk_nothing_can_meet_is_answered_with_nothing(tmp_path):
    cell = parse(CELL).cell[0]
    useless = DefenseFamily("Sign", 1.0, 1.0, lambda _: {"name": "Sign"})
    risk = Risk(advantage=0.0, loss=0.0)
    points = list(search(cell, risk, tmp_path, families=[useless], jobs=1))
    assert len(points) == 2
    assert choose(points, risk) is None


@pytest.mark.parametrize(
    "wish",
    [{"advantage": -0.1, "loss": 0.1}, {"advantage": 1.0, "loss": 0.1}, {"advantage": 0.1, "loss": 2.0}],
)
def test_a_risk_out_of_its_range_is_refused(wish):
    refuses(ArgumentError, "max-", Risk, **wish)


SIGN = DefenseFamily("Sign", 1.0, 1.0, lambda _: {"name": "Sign"})


@pytest.mark.parametrize(("most", "found"), [(0.9, True), (0.0, False)])
def test_the_answer_is_kept_once_and_told_on_the_page_and_in_the_terminal(tmp_path, monkeypatch, most, found):
    """The strongest setting stands for all families here: what is chosen is tested above."""
    monkeypatch.setattr(searching, "FAMILIES", [SIGN])
    monkeypatch.setattr(tuning.search, "__kwdefaults__", tuning.search.__kwdefaults__ | {"families": [SIGN]})
    plan, told = parse(CELL), []
    options = {
        "halvings": 1,
        "jobs": 1,
        "trusted": (),
        "progress": Progress(disable=True),
        "tell": told.append,
    }
    answer = searching.search_defense(plan, CELL, Risk(most, 1.0), tmp_path / "run", **options)
    assert [line.split(":")[0] for line in told] == ["no defense", "Sign()"]
    assert ("The cheapest is Sign()" in answer.sentence) == found
    assert any("second victim" in note for note in answer.notes) == found
    assert answers.load(tmp_path / "run") == answer
    report = read_report(tmp_path / "run")
    assert report.lines[: len(answer.lines)] == list(answer.lines)
    assert answer.sentence in report.html()
    assert len(report.results) == 2  # the second victim's are kept apart
