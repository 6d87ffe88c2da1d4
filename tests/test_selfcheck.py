"""The null calibration, and worlds of victim and adversary that do not fit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from builders import measure, refuses
from torch import nn
from torch.nn import functional as F

from leakscope import VIB, GradientChannel, Inference, Noise, Posterior, Through, UpdateChannel, play
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Estimate, Knowledge, Transcript
from leakscope.core.rng import seeded
from leakscope.data import synthetic
from leakscope.measures import success
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import advantage, auroc, proportion, success_rate
from leakscope.models import MLP, build, parameters
from leakscope.report import page as report
from leakscope.training import Local

# Null calibration


def answers(n: int = 400, knows: float = 0.0, seed: int = 0) -> Transcript:
    rng = seeded(seed, "answers")
    secrets = (torch.rand(n, generator=rng) < 0.3).long()
    right = torch.rand(n, generator=rng) < knows
    drawn = torch.rand(n, generator=rng)
    scores = torch.where(right, 0.9 * secrets + 0.05, drawn)
    return Transcript(secrets, torch.stack([1 - scores, scores], 1), torch.tensor([0.7, 0.3]))


@pytest.mark.parametrize(("measure", "null"), [(advantage, 0.0), (auroc, 0.5)])
def test_whatever_was_found_shuffled_secrets_give_few_alarms(measure, null):
    for knows in (0.0, 0.5, 1.0):
        found = shuffled(answers(knows=knows), measure, null=null, drawn=null == 0, rng=seeded(1))
        assert found.passed
        assert found.alarms <= 10  # 2.5 expected; 11 or more of 100 have a chance below 1e-4


def test_an_answer_that_never_changes_is_no_alarm_by_the_luck_of_its_draw(monkeypatch):
    """Its hits are the same in most shuffles, so that their interval is computed once."""
    monkeypatch.setattr(success, "proportion", cache(proportion))
    failed = 0
    for seed in range(60):
        secrets = (torch.rand(400, generator=seeded(seed, "even")) < 0.5).long()
        always = torch.tensor([[0.6, 0.4]]).repeat(400, 1)
        found = shuffled(Transcript(secrets, always, torch.tensor([0.5, 0.5])), drawn=True, rng=seeded(seed))
        failed += not found.passed
    assert failed == 0


def test_what_is_there_stands_out_of_the_shuffles_and_nothing_does_not():
    assert shuffled(answers(knows=0.5), auroc, null=0.5, rng=seeded(1)).p == pytest.approx(1 / 101)
    p_values = [
        shuffled(answers(60, seed=seed), auroc, null=0.5, rng=seeded(seed), shuffles=19).p
        for seed in range(200)
    ]
    small = sum(p <= 0.1 for p in p_values)
    assert proportion("p at most 0.1", small, 200, level=0.999).low <= 0.1  # a permutation test is valid
    assert small > 0


def test_a_baseline_that_is_too_low_is_caught():
    def generous(transcript: Transcript) -> Estimate:
        """Success above one half, where the likeliest value alone has 70%."""
        found = success_rate(transcript)
        return replace(found, value=found.value - 0.5, low=found.low - 0.5, high=found.high - 0.5)

    always_first = replace(answers(), guesses=torch.tensor([[1.0, 0.0]]).repeat(400, 1))
    found = shuffled(always_first, generous, rng=seeded(0))
    assert found.alarms == 100
    assert not found.passed


def test_an_interval_that_is_too_narrow_is_caught():
    narrow = partial(auroc, level=0.1)
    assert not shuffled(answers(), narrow, null=0.5, rng=seeded(0)).passed


# The worlds of victim and adversary


def world(defense=None, loss=F.cross_entropy):
    data = synthetic(records=400)
    train, _, public = data.split(seeded(0), secret="group", train=150, public=100)
    options = {} if defense is None else {"defense": defense}
    model = build(MLP((4,)), train, seeded(1), **options)
    channel = GradientChannel(model, (parameters(model),), loss=loss, **options)
    game = Inference(train, "group", batch=2)
    return game, channel, Knowledge(game.on(public), channel, 40)


def played(game, channel, knowledge):
    return play(game, channel, Posterior(), knowledge, trials=20, rng=seeded(2))


def test_worlds_that_fit_are_played_whatever_is_believed_of_the_defense():
    for defense in (None, Noise(0.1), VIB()):
        game, channel, knowledge = world(defense)
        played(game, channel, knowledge)
        played(game, channel, replace(knowledge, channel=channel.undefended()))
        names = tuple(channel.rounds[0])
        through = Through(channel, names)
        played(game, through, replace(knowledge, channel=through))


def test_another_model_loss_or_scaling_is_an_error():
    game, channel, knowledge = world()
    moved = {name: weight + 1 for name, weight in channel.rounds[0].items()}
    smooth = partial(F.cross_entropy, label_smoothing=0.2)
    raw = synthetic(records=400)
    narrow = replace(game.data, x=game.data.x[:, :3])
    for words, believed in (
        ("must have the model that is sent out, got another", {"rounds": (moved,)}),
        ("got 2 where 1 are observed", {"rounds": (*channel.rounds, moved)}),
        ("must have the victim's loss", {"loss": smooth}),
    ):
        other = replace(knowledge, channel=replace(channel, **believed))
        refuses(ArgumentError, words, played, game, channel, other)
    for words, records in (
        ("got scaling none where the victim has", raw),
        ("must be scaled as the victim's", raw.standardised(raw.take(torch.arange(50)))),
        ("must be of the victim's form", narrow),
    ):
        refuses(ArgumentError, words, played, game, channel, replace(knowledge, game=game.on(records)))
    again = replace(channel, loss=nn.CrossEntropyLoss())  # another function that says the same
    played(game, channel, replace(knowledge, channel=again))


def test_a_loss_that_weighs_classes_is_told_from_one_that_does_not_and_modes_are_left_alone():
    game, channel, knowledge = world()
    channel.model[0].eval()
    modes = [module.training for module in channel.model.modules()]
    ordered = game.data.take(game.data.y.argsort())  # the first records are of one class
    game = replace(game, data=ordered)
    weighing = partial(F.cross_entropy, weight=torch.tensor([1.0, 3.0]))
    with pytest.raises(ArgumentError, match="must have the victim's loss"):
        played(game, channel, replace(knowledge, channel=replace(channel, loss=weighing)))
    assert [module.training for module in channel.model.modules()] == modes


def test_local_training_with_a_defense_of_its_own_fits_its_undefended_self():
    train, _, public = synthetic(records=400).split(seeded(0), secret="group", train=150, public=100)
    inside = VIB()
    model = build(MLP((4,)), train, seeded(1), defense=inside)
    channel = UpdateChannel(model, (parameters(model),), local=Local(0.1, batch=2), inside=inside)
    game = Inference(train, "group", batch=2)
    played(game, channel, Knowledge(game.on(public), channel.undefended(), 40))


# On the page


def broken(result, alarms: int = 60):
    """The result, had its null calibration failed."""
    check = replace(result.found.selfcheck, alarms=alarms, passed=False)
    return result.model_copy(update={"found": result.found.model_copy(update={"selfcheck": check})})


def test_checks_are_found_wherever_they_are_and_failures_come_first():
    results = [measure(kind) for kind in ("game", "layers", "guard", "members", "canary")]
    checks = report.list_checks([*results, broken(measure("share"))])
    assert [check.result.passed for check in checks] == [False, *[True] * (len(checks) - 1)]
    assert checks[0].cell == "Distribution"
    places = {check.cell: check.where for check in checks}
    assert places["Inference"] == ""
    assert "group" in places["LayerAudit"]
    assert places["MembershipAudit"] == "Cosine"
    assert {check.result.shuffles for check in checks} == {100}


def test_the_page_shows_the_self_check_and_leads_with_its_failure():
    page = report.render([measure("game")], plan="", title="t")
    assert "It passes." in page
    assert "The self-check failed" not in page
    page = report.render([broken(measure("game"))], plan="", title="t")
    assert page.index("The self-check failed") < page.index("At a glance")
    assert "1 check of 1 failed" in page
