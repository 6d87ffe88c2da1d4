"""The search for the weakest defense that keeps a stated risk, and its answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from builders import refuses
from rich.progress import Progress

from leakscope.attacks.posterior import Posterior
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Guess, Knowledge
from leakscope.defenses.dpsgd import DPSGD
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
def test_the_answer_is_kept_once_and_told_on_the_page_and_in_the_terminal(tmp_path, most, found):
    """The strongest setting stands for all families here: what is chosen is tested above."""
    plan, told = parse(CELL), []
    options = {
        "halvings": 1,
        "jobs": 1,
        "trusted": (),
        "progress": Progress(disable=True),
        "tell": told.append,
        "families": [SIGN],
    }
    answer = searching.search_defense(plan, CELL, Risk(most, 1.0), tmp_path / "run", **options)
    first = told.index(next(line for line in told if line.startswith("no defense:")))
    assert "property inference of group" in told[0]
    assert "2 settings at most" in told[first - 1]
    assert "about 1 minute at most" in told[first + 1]
    assert any(line.startswith("Sign(): advantage") for line in told[first + 2 :])
    assert ("The cheapest is Sign()" in answer.sentence) == found
    assert any("second victim" in note for note in answer.notes) == found
    assert any("defense_mod(leakscope.Sign(), scale=0.01)" in step for step in answer.steps) == found
    assert answers.load(tmp_path / "run") == answer
    report = read_report(tmp_path / "run")
    assert report.lines[: len(answer.lines)] == list(answer.lines)
    assert answer.sentence in report.html()
    assert len(report.results) == 2  # the second victim's are kept apart


def test_the_steps_of_an_answer_run_what_was_audited():
    """The noise multiplier is Opacus': noise on the sum of a batch in units of the clip."""
    cell = parse(CELL).cell[0]
    steps = list(searching.list_steps({"name": "DPSGD", "clip": 2.0, "noise": 0.5}, cell))
    defense = DPSGD(clip=2.0, noise=0.5)
    same = DPSGD(clip=2.0, noise=0.5 * 8**0.5 / 2.0, convention="opacus")
    assert defense.deviation(8) == pytest.approx(same.deviation(8))
    assert "defense=leakscope.DPSGD(clip=2.0, noise=0.5)" in steps[0]
    assert f"noise_multiplier={same.noise:.4g}, max_grad_norm=2)" in steps[1]
    assert steps[2] == "Audit: leakscope audit synthetic --defense DPSGD:clip=2.0,noise=0.5"
    fitted = {"name": "AdversarialPerturbation", "radius": 0.1, "step": 0.04}
    assert "no ready mod" in next(searching.list_steps(fitted, cell))


def test_the_frontier_holds_what_nothing_beats():
    point = tuning.Point("Sign", {"name": "Sign"}, 0.0, 0.5, False, None, 0.1, "", None)
    cheap, strong = replace(point, loss=0.0, high=0.9), replace(point, loss=0.2, high=0.1)
    beaten, ranking = replace(point, loss=0.15), replace(point, high=0.0, ranks=True)
    assert tuning.list_frontier([strong, beaten, point, ranking, cheap]) == [cheap, point, strong]


@dataclass(frozen=True)
class Opposite:
    """Says the opposite of what it learned."""

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        guess = Posterior()(knowledge, rng)
        return lambda view: -guess(view)


MUTE = DefenseFamily("Noise", 30.0, 30.0, lambda std: {"name": "Noise", "std": std})
BARE = DefenseFamily("Noise", 1e-9, 1e-9, lambda std: {"name": "Noise", "std": std})
# In turn: fair; heard only on what it had learned from; ranks the other way round.
EVIDENCE = {
    "fair": (CELL, MUTE),
    "heard on what it learned": (CELL.replace("public = 400", "public = 50"), MUTE),
    "reversed": (CELL.replace('name = "Posterior", head = {name = "RandomForest", trees = 10}', f'name = "{__name__}.Opposite"'), BARE),
}  # fmt: skip


@pytest.mark.parametrize("case", EVIDENCE)
def test_an_advantage_that_is_no_evidence_keeps_no_risk(tmp_path, case):
    """The upper limit of the advantage is low in every case, and says something in the first only."""
    text, family = EVIDENCE[case]
    risk, trusted, told = Risk(advantage=0.5, loss=1.0), (__name__,), []
    plan = parse(text, trusted=trusted)
    answer = searching.search_defense(
        plan,
        text,
        risk,
        tmp_path,
        halvings=1,
        jobs=1,
        trusted=trusted,
        progress=Progress(disable=True),
        tell=told.append,
        families=[family],
    )
    points = list(search(plan.cell[0], risk, tmp_path, families=[family], jobs=1, trusted=trusted))
    assert points[1].high <= risk.advantage
    fair = case == "fair"
    assert points[1].sound == points[1].meets(risk) == fair
    assert (choose(points, risk) is not None) == fair
    assert (points[1] in tuning.list_frontier(points)) == fair
    assert answer.sentence.startswith("The cheapest is Noise" if fair else "No setting that was tried")
    (line,) = (line for line in told if line.startswith("Noise"))
    assert ("which is no evidence" in line or "but its ranking leaks" in line) != fair
