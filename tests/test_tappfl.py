"""TAPPFL: averages by hand, what devices keep, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import guard_cells
import pytest
import torch
from builders import refuses

from leakscope import DPSGD, Chain, FlowerAdaptiveClipping, LaplaceNoise, Noise, Pruning, Withhold
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.rng import seeded
from leakscope.guards.networks import Committee
from leakscope.guards.tappfl import TAPPFL, GuardFederation, weighted_mean
from leakscope.models.encoders import TableEncoder

SMALL = TAPPFL(
    "sex",
    devices=4,
    fraction=0.5,
    rounds=2,
    batch=10,
    local_epochs=1,
    encoder=TableEncoder((6, 4)),
    hidden=(4,),
)


def table(n: int = 120) -> Dataset:
    return guard_cells.table(n)


def weights(guarded) -> torch.Tensor:
    return torch.cat([p.flatten() for p in guarded.encoder.network.parameters()])


def test_federated_averaging_weighs_by_records_and_rounds_counts():
    one = {"w": torch.tensor([1.0, 2.0]), "seen": torch.tensor(3)}
    other = {"w": torch.tensor([5.0, -2.0]), "seen": torch.tensor(6)}
    mean = weighted_mean([one, other], [3, 1])
    assert torch.allclose(mean["w"], torch.tensor([2.0, 1.0]))
    assert mean["seen"].dtype == torch.long
    assert int(mean["seen"]) == 4


def test_a_federation_of_one_device_is_that_device():
    alone = replace(SMALL, devices=1, fraction=1.0, rounds=1, local_epochs=2, pretrain="none")
    again = replace(
        alone, rounds=2, local_epochs=1
    )  # the average of one is itself, and SGD remembers nothing
    assert torch.equal(weights(alone(table(), seeded(0))), weights(again(table(), seeded(0))))


@pytest.mark.parametrize("pretrain", ["jsd", "private", "none"])
def test_devices_keep_their_networks_and_the_published_attacker_is_the_pretrained_one(pretrain):
    found = replace(SMALL, pretrain=pretrain)(table(), seeded(0))
    assert isinstance(found.privacy, Committee) == (pretrain != "private")
    assert found.privacy is not None
    assert found.privacy(found.encoder(table().x)).shape == (120, 2)
    assert len(found.history) == 2


def test_a_lambda_for_every_device_changes_only_what_it_should():
    same = replace(SMALL, lam=(0.5,) * 4)
    mixed = replace(SMALL, lam=(0.0, 0.3, 0.6, 1.0))
    plain, by_device, other = (weights(one(table(), seeded(0))) for one in (SMALL, same, mixed))
    assert torch.equal(plain, by_device)
    assert not torch.equal(plain, other)


def test_with_lambda_zero_the_privacy_loss_makes_no_difference():
    found = [weights(replace(SMALL, lam=0.0, loss=loss)(table(), seeded(0))) for loss in ("prior", "mmd")]
    assert torch.equal(*found)


def test_a_defense_without_strength_changes_nothing_and_what_withholds_updates_leaves_the_start():
    one_round = replace(SMALL, rounds=1)
    plain = weights(one_round(table(), seeded(0)))
    assert torch.equal(plain, weights(replace(one_round, defense=Pruning(0.0))(table(), seeded(0))))
    kept = weights(replace(one_round, defense=Withhold())(table(), seeded(0)))
    more = weights(replace(SMALL, rounds=3, defense=Withhold())(table(), seeded(0)))
    assert torch.equal(kept, more)
    assert not torch.equal(kept, plain)


@pytest.mark.parametrize("pretrain", ["jsd", "none"])
def test_whatever_leaves_the_devices_is_all_that_is_learned_from_records(pretrain):
    """Where no update leaves a device, two federations of different records end with one encoder: nothing is
    trained on records of several devices, before the first round either."""
    plan = replace(SMALL, defense=Withhold(), pretrain=pretrain)
    other = replace(table(), x=table().x.flip(0) * 3 + 1)
    assert torch.equal(weights(plan(table(), seeded(0))), weights(plan(other, seeded(0))))
    freely = replace(plan, defense=None)
    assert not torch.equal(weights(freely(table(), seeded(0))), weights(freely(other, seeded(0))))


def test_a_device_goes_on_from_what_it_kept_as_if_it_had_never_stopped():
    federation = GuardFederation.of(SMALL, [table(40), table(30)], 0)
    whole, first = (federation.device(0, federation.parts[0]) for _ in range(2))
    state = federation.start()
    for r in range(2):
        expected = whole.train(state, guarded=r > 0)
        sent = first.train(state, guarded=r > 0)
        kept = {name: tensor.clone() for name, tensor in first.kept.items()}
        first = federation.device(0, federation.parts[0], seed=99)  # another start, which is forgotten
        first.restore(kept)
        for name, tensor in expected.items():
            assert torch.equal(tensor, sent[name])
        state = expected


def test_noise_on_uploads_has_its_deviation_over_the_root_of_the_devices():
    alone = replace(SMALL, rounds=1, fraction=1.0, encoder=TableEncoder((60, 40)), pretrain="none")
    for noise in (Noise(0.5), LaplaceNoise(0.5)):
        apart = weights(replace(alone, defense=noise)(table(), seeded(0))) - weights(
            alone(table(), seeded(0))
        )
        assert float(apart.std()) == pytest.approx(0.5 / 2, rel=0.05)  # four devices of equal size


LAMBDA = r"TAPPFL\.lam must be in \[0, 1\], one number or 4"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 200}, "you asked for 200 clients of at least 1 records each"),
        ({"lam": 1.5}, LAMBDA),
        ({"lam": (0.5, 0.5)}, LAMBDA),
        ({"lam": (0.5, 0.5, 0.5, -1.0)}, LAMBDA),
        ({"column": "same"}, "one value only"),
        ({"defense": DPSGD()}, r"TAPPFL\.defense must act on a finished update"),
        ({"defense": FlowerAdaptiveClipping()}, r"TAPPFL\.defense must be the same in every round"),
    ],
)
def test_what_cannot_be_trained_is_refused(changes, words):
    refuses((ArgumentError, DataError), words, lambda: replace(SMALL, **changes)(table(), seeded(0)))
    replace(SMALL, defense=Chain(Pruning(0.5), Noise(0.1)))


def test_a_federation_that_runs_away_says_in_which_round():
    wild = replace(table(), x=table().x * 1e30)
    with pytest.raises(ArgumentError, match=r"TAPPFL diverged in round 0 on device \d"):
        replace(SMALL, pretrain="none", utility="autoencoder")(wild, seeded(0))
