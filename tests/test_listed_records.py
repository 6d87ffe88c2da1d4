"""The p-values of single records are those that the audit's own games give them."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace

import pytest
import test_recordings_as_they_are as loops
import torch

from leakscope.attacks.joint_regression import JointRegression
from leakscope.audits.membership.judged import play_clients
from leakscope.audits.membership.recorded import RecordingAudit
from leakscope.core.nouns import Guess, Knowledge
from leakscope.measures.membership import p_values
from leakscope.results.cell import Cell
from leakscope.results.kind import World

EVERY = 2_000  # trials that deal every record


@dataclass(frozen=True)
class Settled:
    """What is drawn is always the same, so that a score depends on the candidates alone: on all of them."""

    sees = "updates"

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        return JointRegression()(replace(knowledge, calibration=0), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("absent", [(), ((0, "site-0"),)], ids=["all at once", "each client"])
def test_p_values_in_the_list_are_those_of_the_audits_own_games(tmp_path, absent):
    loops.keep(
        tmp_path / "run",
        loops.Loop(),
        lambda r, client, sent, state: None if (r, client) in absent else state,
    )
    audit = RecordingAudit(str(tmp_path / "run"), (Settled(),), seen="sum", records=True)
    tables = {"data": {"name": "candidates"}, "model": {"name": f"{loops.__name__}.plain"}, "trials": EVERY}
    kept: dict[str, bytes] = {}
    world = World(
        Cell.model_validate(tables | {"game": {"name": RecordingAudit.__name__}}),
        0,
        loops.Loop().candidates(),
        (loops.__name__,),
        keep=kept.__setitem__,
    )
    audit.run(world)
    (text,) = kept.values()
    rows = list(csv.DictReader(text.decode().splitlines()))
    watched, who, _ = audit._prepare(world)
    whose = world.records.private["client"]
    games = list(play_clients(Settled(), watched, who, trials=EVERY, seed=0))
    assert len(games) == (3 if absent else 1)
    for name, transcript in games:
        listed = [row for row in rows if row["client"] == (name or "all clients")]
        own, p = whose[[int(row["row"]) for row in listed]] < loops.SITES, p_values(transcript)
        for member in (True, False):
            mine = [row for row, is_own in zip(listed, own, strict=True) if bool(is_own) == member]
            theirs = transcript.secrets == int(member)
            scores = sorted(float(row["score"]) for row in mine)
            assert scores == pytest.approx(sorted(transcript.guesses[theirs].tolist()), rel=1e-3, abs=1e-4)
            one = 1.001 / (1 + len(who.held))  # two scores that are nearly the same may change places
            chances = sorted(float(row["p_value"]) for row in mine)
            assert chances == pytest.approx(sorted(p[theirs].tolist()), abs=one)


def test_the_list_has_every_candidate_however_few_the_figures_are_of(tmp_path):
    loops.keep(tmp_path / "run", loops.Loop())
    audit = RecordingAudit(str(tmp_path / "run"), (JointRegression(),), seen="sum", records=True)
    tables = {"data": {"name": "candidates"}, "model": {"name": f"{loops.__name__}.plain"}}
    tables |= {"game": {"name": RecordingAudit.__name__}}
    for trials, said in ((40, True), (EVERY, False)):
        kept: dict[str, bytes] = {}
        cell = Cell.model_validate(tables | {"trials": trials})
        world = World(cell, 0, loops.Loop().candidates(), (loops.__name__,), keep=kept.__setitem__)
        found = audit.run(world).found
        (text,) = kept.values()
        rows = list(csv.DictReader(text.decode().splitlines()))
        assert len(rows) == found.members + found.others
        assert any("has every candidate" in remark for remark in found.remarks) == said
