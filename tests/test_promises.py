"""What theorems would promise of an encoder, and where they are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from guard_cells import GUARD, NOISE, cell, people, run
from torch import nn

from leakscope import Encoder, Inf2Guard, Perturbation, TableEncoder, Transcript, Unguarded, seeded
from leakscope.audits.guards import Trial, Tuned, evaluation, promises
from leakscope.audits.guards.equal import compare_utility
from leakscope.audits.guards.page.measures import judge
from leakscope.audits.guards.page.words import promise
from leakscope.audits.guards.promises import (
    bound_accuracy,
    bound_reconstruction,
    capacity,
    least_task_error,
    miscalibration,
    state_local_privacy,
)
from leakscope.core.nouns import Estimate
from leakscope.guards.baselines import DPEncoder
from leakscope.measures.epsilon import gaussian_epsilon

NORMED = Encoder(nn.Identity(), {}, Perturbation("gaussian", 0.5), True)


def posteriors(sure: float, n: int = 4_000) -> Transcript:
    """An attacker whose evidence is right, times ``sure``."""
    rng = seeded(0)
    evidence = torch.randn(n, generator=rng, dtype=torch.double)
    secrets = (torch.rand(n, generator=rng) < torch.sigmoid(evidence)).long()
    chances = torch.sigmoid(sure * evidence)
    half = torch.full((2,), 0.5, dtype=torch.double)
    return Transcript(secrets, torch.stack([1 - chances, chances], 1), half)


def test_an_attacker_who_is_too_sure_is_found_out_and_a_calibrated_one_is_not():
    gain, error = miscalibration(posteriors(1.0))
    assert abs(gain) < 3 * error + 1e-3
    gain, error = miscalibration(posteriors(4.0))
    assert gain > 10 * error


def test_no_bound_rests_on_an_attacker_who_is_badly_calibrated(monkeypatch):
    """Too sure, it loses more than it knows, and the bound would be below what it achieves itself."""
    trial = Trial(people(200), people(200), people(200), "attribute", "u")
    for sure, refused in ((1.0, False), (8.0, True)):
        monkeypatch.setattr(Trial, "play", lambda *_, sure=sure: posteriors(sure))
        theorem = bound_accuracy(NORMED, trial)
        assert (theorem.bound is None) == refused
        assert theorem.miscalibrated == miscalibration(posteriors(sure))[0]


def test_the_least_error_of_a_task_is_what_the_groups_force():
    """The label is the secret: an attacker who knows nothing leaves no head better than the rarer group."""
    data = people(400)
    data = replace(data, y=data.private["u"])
    trial = Trial(data, data, data, "attribute", "u")
    prior = torch.bincount(data.private["u"]).double() / 400
    for advantage, say in ((0.0, 0), (1.0, 1)):
        chances = (
            torch.stack([1 - data.private["u"], data.private["u"]], 1).double()
            if say
            else prior.expand(400, 2)
        )
        transcript = Transcript(data.private["u"], chances, prior)
        found = least_task_error(transcript, trial, Estimate("accuracy", 0.9, 0.8, 1.0, 0.95, 400, "exact"))
        assert (found.gap, found.advantage) == (1.0, advantage)
        assert found.least == pytest.approx(0.0 if say else float(prior.min()))
        assert found.measured == pytest.approx(0.1)
    assert least_task_error(transcript, replace(trial, column="v"), None) is None


def test_local_privacy_is_stated_for_every_noise():
    like = people(2).x[:1]
    stated = state_local_privacy(NORMED, like)
    reach = 2 * math.sqrt(like[0].numel())
    assert stated.epsilon == pytest.approx(gaussian_epsilon(reach / 0.5, 1e-5))
    two = torch.nn.functional.layer_norm(torch.stack([like[0], -like[0]]), like.shape[1:])
    assert float((two[0] - two[1]).norm()) <= reach + 1e-5
    for changes, reason in (
        ({"perturbation": Perturbation()}, "no noise"),
        ({"perturbation": Perturbation("uniform", 0.5)}, "bounded"),
        ({"normed": False}, "no bound"),
    ):
        stated = state_local_privacy(replace(NORMED, **changes), like)
        assert stated.epsilon is None
        assert reason in stated.reason


def test_the_capacity_of_the_noise_bounds_what_is_rebuilt_and_only_where_there_is_one():
    like = people(2).x[:1]
    assert capacity(NORMED, like) == pytest.approx(like[0].numel() / 2 * math.log(5))
    assert capacity(replace(NORMED, normed=False), like) is None
    data = people(300)
    loud = replace(NORMED, perturbation=Perturbation("gaussian", 50.0))
    trial = Trial(data, people(300, seed=1), people(300, seed=2), "reconstruction")
    quiet, noisy = bound_reconstruction(NORMED, trial), bound_reconstruction(loud, trial)
    assert quiet.least <= noisy.least <= 1 - noisy.chance
    assert noisy.least > 0.5
    assert bound_reconstruction(NORMED, replace(trial, secret="attribute", column="u")) is None


def test_the_page_and_the_numbers_say_what_is_promised_and_on_what_it_rests(monkeypatch):
    monkeypatch.setattr(evaluation, "choose_attacks", lambda *_: (evaluation.Fisher(),))
    monkeypatch.setattr(promises, "Network", evaluation.Fisher)
    found = run(cell(GUARD | NOISE)).found
    (judged,) = judge([found])
    said = " ".join(promise(judged))
    assert "Local differential privacy of one release: epsilon" in said
    assert "promises next to nothing" in said
    assert "(paper 004, theorem 1)" in said


def test_a_map_is_drawn_of_a_guard_that_keeps_no_task(monkeypatch):
    monkeypatch.setattr(evaluation, "choose_attacks", lambda *_: (evaluation.Fisher(),))
    found = run(cell(GUARD | {"utility": "agnostic", "epochs": 1}, mapped=50, epochs=1)).found
    assert found.judged[0].map is not None
    assert found.seconds.plain is not None


def test_two_guards_are_compared_record_by_record_and_what_cannot_be_told_is_said():
    plain = Unguarded(encoder=TableEncoder((8,)), head=(), epochs=2, batch=64)
    trial = Trial(people(600), people(10), people(10), "attribute", "u")
    guard, tuning = compare_utility(
        lambda scale: DPEncoder(scale, plain=plain), [0.0, 20.0], trial, like=DPEncoder(20.0, plain=plain)
    )
    assert guard == DPEncoder(20.0, plain=plain)
    assert (tuning.difference.value, tuning.reached) == (0.0, True)
    assert tuning.difference.n == 600
    assert tuning.tried["20.0"] < tuning.tried["0.0"] - 0.1
    assert tuning.alike == ()
    _, same = compare_utility(
        lambda scale: DPEncoder(scale, plain=plain), [0.0, 1e-6], trial, like=DPEncoder(1e-5, plain=plain)
    )
    assert len(same.alike) == len(same.tried) - 1
    assert Tuned(DPEncoder(plain=plain), Inf2Guard("attribute", "u")).to == "utility"
