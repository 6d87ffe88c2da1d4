"""A cell is what its parts give when they are wired by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from builders import refuses

import leakscope as ls
from leakscope.audits.inference.audit import set_stage
from leakscope.audits.inference.plan import document
from leakscope.audits.world import split
from leakscope.core import stopwatch
from leakscope.core.errors import ArgumentError
from leakscope.models import build
from leakscope.report.page import say_defending
from leakscope.run import experiment
from leakscope.run.plan import from_document, parse
from leakscope.training import fit, logits

TEXT = """
[[cell]]
data = {name = "synthetic", records = 1500, shift = 1.5, positive = 0.8}
game = {name = "Inference", secret = "group", batch = 8}
attack = {name = "Posterior", head = {name = "RandomForest", trees = 15}}
model = {name = "Linear"}
defense = {name = "DPSGD", clip = 1.0, noise = 0.3}
training = {rate = 0.5, batch = 32}
rounds = 4
observe = [1, 3]
trials = 200
rehearsals = 150
train = 600
public = 400
"""


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_cell_is_its_parts_wired_by_hand(adaptive):
    cell = parse(TEXT + f"adaptive = {str(adaptive).lower()}\n").cell[0]
    found = experiment.run(cell, 3).found
    data = ls.load("synthetic", records=1_500, shift=1.5, positive=0.8)
    train, test, public = data.split(ls.seeded(3, "split"), secret="group", train=600, public=400)
    defense = ls.DPSGD(1.0, 0.3)
    model = build(ls.Linear(), train, ls.seeded(3, "model"))
    history = fit(model, train, rounds=4, rng=ls.seeded(3, "training"), rate=0.5, batch=32, defense=defense)
    channel = ls.GradientChannel(model, (history[0], history[2]), defense)
    game = ls.Inference(train, "group", batch=8)
    belief = channel if adaptive else ls.GradientChannel(model, (history[0], history[2]))
    knowledge = ls.Knowledge(
        ls.Inference(public, "group", batch=8, prior="uniform"), belief, 150, game.chances
    )
    transcript = ls.play(
        game, channel, ls.Posterior(ls.RandomForest(15)), knowledge, trials=200, rng=ls.seeded(3, "play")
    )
    assert found.scores.auroc.value == ls.auroc(transcript).value
    assert found.scores.success.value == ls.success_rate(transcript).value
    assert found.scores.information.value == ls.mutual_information(transcript).value
    assert found.utility.accuracy.value == ls.accuracy(logits(model, history[-1], test), test.y).value
    assert len(found.rounds) == 2
    undefended = fit(model, train, rounds=4, rng=ls.seeded(3, "training"), rate=0.5, batch=32)
    assert any(not undefended[-1][name].equal(history[-1][name]) for name in history[-1])


def test_people_with_too_few_records_are_left_out_before_the_split():
    cell = parse(
        TEXT.replace(
            '{name = "Inference", secret = "group", batch = 8}',
            '{name = "UserInference", user = "who", candidates = 3, batch = 2}',
        )
        .replace("train = 600", "train = 10")
        .replace("public = 400", "public = 10")
    ).cell[0]
    data = ls.load("synthetic", records=330, shift=1.0)
    who = torch.cat(
        [torch.arange(30).repeat_interleave(10), torch.arange(30, 60)]
    )  # 30 people with ten records, 30 with one
    people = replace(data, private={"who": who})
    train = set_stage(experiment.enter(cell, 0, records=people)).parts.train
    assert len(train.private["who"].unique()) == 10
    assert train.private["who"].max() < 30


def clinic(people, each):
    """Records of so many people, each of one gender."""
    rng = ls.seeded(0, "clinic")
    who = torch.arange(people).repeat_interleave(each)
    gender = (torch.arange(people) % 2)[who]
    x = torch.cat([torch.randn(len(who), 3, generator=rng), gender[:, None].float()], dim=1)
    y = torch.randint(2, (len(who),), generator=rng)
    columns = (ls.Column("tests", 0, 3), ls.Column("gender", 3, 4))
    return ls.Dataset(x, y, {"gender": gender, "patient": who}, name="clinic", columns=columns)


def test_with_a_user_nobody_is_in_two_parts_of_any_cell():
    data = clinic(people=60, each=12)
    plan = from_document(
        document(data, {"name": "clinic"}, secret="gender", user="patient", batch=4, dp={"name": "DPSGD"})
    )
    assert [cell.id for cell in plan.cell][:4] == ["attribute", "property", "distribution", "user"]
    for cell in plan.cell:
        records = data.without(*cell.data.get("without", ()))
        if cell.kind == "mechanism":
            quick = cell.model_copy(update={"trials": 50, "game": cell.game | {"steps": 2}})
            made = experiment.run(quick, 0, records=records).made.records
            assert all(size % 12 == 0 for size in (made.train, made.test, made.public))  # whole people only
            continue
        if cell.kind == "membership":  # whole people are members or not: see test_sites.py
            assert (cell.game["how"], cell.game["column"]) == ("user", "patient")
            continue
        world = experiment.enter(cell, 0, records=records)
        parts = split(world) if cell.kind == "records" else set_stage(world).parts
        people = [set(part.secret("patient").tolist()) for part in (parts.train, parts.test, parts.public)]
        assert all(people)
        assert len(set.union(*people)) == sum(map(len, people)) == 60


def test_as_many_people_are_split_as_have_the_records_a_split_by_record_takes():
    def sizes(people, each):
        made = document(clinic(people, each), {"name": "clinic"}, secret="gender", user="patient")
        return made["cell"][0]["train"], made["cell"][0]["public"]

    assert sizes(10_000, 4) == (1_250, 250)  # 5,000 records and 500 of either gender
    assert sizes(100, 400) == (30, 30)  # many records of few people: no fewer than 30 of them
    assert sizes(40, 8) == (16, 16)  # 70% of what is not public, and 40%


def test_too_few_rehearsals_are_refused_with_the_way_out():
    cell = parse(TEXT.replace("rehearsals = 150", "rehearsals = 6")).cell[0]
    refuses(ArgumentError, "raise rehearsals", experiment.run, cell, 0)


CLOCK = [0.0]


@dataclass(frozen=True)
class Slow(ls.Defense):
    """Takes a second of the test's own clock for every release, and two for the weights of records."""

    def weigh(self, squares):
        CLOCK[0] += 2.0

    def release(self, layers, secret, rng, *, batch):
        CLOCK[0] += 1.0
        return layers


def test_a_result_says_how_long_its_defense_took(monkeypatch):
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: CLOCK[0]))
    cell = parse(TEXT.replace("clip = 1.0, noise = 0.3", "").replace('"DPSGD", ', f'"{__name__}.Slow"'), trusted=(__name__,)).cell[0]  # fmt: skip
    begun = CLOCK[0]
    slow = experiment.run(cell, 0, trusted=(__name__,))
    assert slow.made.defending == CLOCK[0] - begun > 4 * 600 / 32  # a step's, and those of both games
    free = experiment.run(cell.model_copy(update={"defense": None}), 0)
    assert free.made.defending == 0.0
    assert slow.found.scores == free.found.scores  # the weights are 1
    assert say_defending([free.made]) == ""
    stamp = free.made.model_copy(update={"seconds": 30.0, "defending": 1.25})
    assert say_defending([free.made, stamp]) == "The defense itself took 1.2 s, 4.2% of this audit."
    assert "2.5 s, 4.2% of these audits that have one" in say_defending([stamp, stamp])
    assert stopwatch.timed(len) is len  # outside of an audit nothing is timed
    with stopwatch.time_defenses():
        nothing = ls.Defense().release
        assert stopwatch.timed(nothing) is nothing
        assert stopwatch.timed(Slow().release) != Slow().release
