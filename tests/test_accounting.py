"""The accountant: of what was shown and of a training, against closed forms and dp-accounting's own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import dp_accounting as dp
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

import leakscope
import leakscope as ls
from leakscope.core.catalogue import roles
from leakscope.core.errors import LeakscopeError
from leakscope.core.mechanism import Mechanism
from leakscope.measures.accounting import account_shown, account_training, epsilon_of
from leakscope.measures.epsilon import gaussian_epsilon

RELATIONS = {
    "added": dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replaced": dp.NeighboringRelation.REPLACE_ONE,
}


def shown(defense, *, releases=4, batch=16, entries=50, delta=1e-5):
    return account_shown(defense.mechanism(batch, entries), releases=releases, batch=batch, delta=delta)


@pytest.mark.parametrize(
    ("noise", "each", "added", "replaced"), [(1.5, 1.27, 4.65, 10.7), (0.1, 33.1, 191.6, 633.9)]
)
def test_ten_rounds_of_the_same_batch_of_16_cost_what_was_worked_out_by_hand(noise, each, added, replaced):
    found = shown(ls.DPSGD(2.0, noise), releases=10)
    assert found.added_each == pytest.approx(each, rel=5e-3)
    assert found.added == pytest.approx(added, rel=5e-3)
    assert found.replaced == pytest.approx(replaced, rel=5e-3)
    assert (found.covers, found.unit, found.releases, found.batch) == ("shown", "record", 10, 16)
    assert (found.sampling, found.delta) == (1.0, 1e-5)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("noise", "releases"), [(1.5, 1), (1.5, 10), (4.0, 3), (0.7, 2)])
def test_what_was_shown_is_what_the_accountant_of_dp_accounting_says(noise, releases, relation):
    found = shown(ls.DPSGD(2.0, noise), releases=releases)
    judge = PLDAccountant(RELATIONS[relation])
    judge.compose(dp.GaussianDpEvent(ls.DPSGD(2.0, noise).multiplier(16)), releases)
    assert getattr(found, relation) == pytest.approx(judge.get_epsilon(1e-5), rel=1e-3)


@given(st.floats(0.5, 50), st.integers(1, 30), st.integers(1, 200), st.floats(1e-9, 1e-2))
def test_gaussians_compose_to_the_root_of_their_number(noise, releases, batch, delta):
    found = shown(ls.DPSGD(1.0, noise), releases=releases, batch=batch, delta=delta)
    mu = 1 / ls.DPSGD(1.0, noise).multiplier(batch)
    assert found.added == pytest.approx(gaussian_epsilon(math.sqrt(releases) * mu, delta))
    assert found.replaced_each == pytest.approx(gaussian_epsilon(2 * mu, delta))
    assert found.added_each <= found.added <= found.replaced


def judged(event, relation, delta=1e-5):
    return PLDAccountant(RELATIONS[relation]).compose(event).get_epsilon(delta)


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_training_is_accounted_as_dp_accounting_does_with_batches_drawn_at_random(relation):
    size = {"records": 1_000, "batch": 100, "entries": 9}
    short, long = (account_training(ls.DPSGD(1.0, 1.2, "opacus"), rounds=rounds, **size) for rounds in (1, 5))
    drawn = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.2)), 10)
    assert getattr(short, relation) == pytest.approx(judged(drawn, relation), rel=1e-3)
    assert getattr(short, relation) < getattr(long, relation)
    assert short.added_each == pytest.approx(gaussian_epsilon(1 / 1.2, 1e-5))
    assert (short.covers, short.releases, short.sampling) == ("training", 10, 0.1)
    assert account_training(ls.Defense(), rounds=1, **size) is None


# --- events -------------------------------------------------------------------------------------

GAUSSIAN = dp.GaussianDpEvent(1.3)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "event",
    [
        GAUSSIAN,
        dp.SelfComposedDpEvent(GAUSSIAN, 9),
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, GAUSSIAN), 30),
        dp.ComposedDpEvent([dp.PoissonSampledDpEvent(0.1, GAUSSIAN), dp.GaussianDpEvent(4.0)]),
        dp.PoissonSampledDpEvent(1.0, GAUSSIAN),
    ],
    ids=repr,
)
def test_events_are_worth_what_the_privacy_loss_distribution_says(event, relation):
    ours = epsilon_of(event, 1e-5, replaced=relation == "replaced")
    assert ours == pytest.approx(judged(event, relation), rel=1e-3)


def test_a_sampled_run_agrees_with_opacus():
    accountant = pytest.importorskip("opacus.accountants").PRVAccountant()
    accountant.history = [(1.0, 0.01, 300)]
    drawn = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 300)
    assert epsilon_of(drawn, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5, eps_error=0.01), abs=0.02)


def test_pure_epsilons_are_the_closed_form_at_no_delta_and_their_privacy_loss_at_one():
    laplaces = dp.SelfComposedDpEvent(dp.LaplaceDpEvent(10.0), 500)
    assert epsilon_of(laplaces, 0.0) == pytest.approx(50)
    assert judged(laplaces, "added") < epsilon_of(laplaces, 1e-5) < 1.2 * judged(laplaces, "added") < 25
    assert epsilon_of(laplaces, 1e-5, replaced=True) == pytest.approx(100)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_sample_of_fixed_size_helps_less_than_all_and_at_least_one_step_is_balles_amplification(replaced):
    """One draw of m of n: Balle, Barthe and Gaboardi 2018, theorem 9, with the exact Gaussian inside."""
    one = dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(1.0))
    found, mu = epsilon_of(one, 1e-5, replaced=replaced), 2.0 if replaced else 1.0
    inside = gaussian_epsilon(mu, 1e-5 / 0.1)
    assert math.log1p(0.1 * math.expm1(inside)) <= found < gaussian_epsilon(mu, 1e-5)
    many = epsilon_of(dp.SelfComposedDpEvent(one, 50), 1e-5, replaced=replaced)
    assert found < many <= gaussian_epsilon(mu * math.sqrt(50), 1e-5)


def test_a_deployed_filter_is_worth_what_its_noise_is_for_an_upload_and_for_all():
    local = shown(ls.FlowerLocalDp(clip=1.0, sensitivity=1.0, epsilon=1.0))
    std = math.sqrt(2 * math.log(1.25e5))
    assert local.added_each == local.replaced_each == pytest.approx(gaussian_epsilon(2 / std, 1e-5))
    assert local.added == local.replaced == pytest.approx(gaussian_epsilon(2 * 2 / std, 1e-5))
    assert local.unit == "upload"
    adaptive = ls.FlowerAdaptiveClipping(0.1, 4.0, 400, rule="andrew")
    for central in (ls.FlowerFixedClipping(clip=0.1, noise=4.0, clients=4), adaptive):
        found = shown(central)
        assert found.added_each == found.replaced_each
        assert found.replaced_each == pytest.approx(gaussian_epsilon(0.5, 1e-5))  # 2 clip / n over 4 clip / n
        assert found.unit == "mean"
        later = account_training(central, records=10, batch=2, rounds=4, entries=50)
        assert replace(later, covers="shown", batch=16) == found


@pytest.mark.parametrize(
    "sparse", [ls.SVTPrivacy(), ls.SVTPrivacy(fraction=1.0), ls.SVTPrivacy(noise_var=30.0)]
)
@pytest.mark.parametrize("entries", [50, 100_000])
def test_pure_epsilons_add_up_without_a_delta(sparse, entries):
    found = shown(sparse, entries=entries)
    assert found.added == found.replaced == pytest.approx(4 * sparse.proven(entries))
    assert (found.delta, found.unit) == (0, "upload")


BARE = [
    ls.FlowerLocalDp(sensitivity=0.0),
    ls.FlowerFixedClipping(noise=0.0),
    ls.FlowerAdaptiveClipping(noise=0.0),
    ls.FlowerAdaptiveClipping(0.1, 4.0, 400, rule="flower"),  # its noise can get as small as it likes
    ls.PercentilePrivacy(),
    ls.SVTPrivacy(version="2.7"),
    ls.SVTPrivacy(noise_var=math.inf),
    ls.DPSGD(noise=0.0),
    ls.DPSGD(clip=math.inf),
    ls.Noise(1.0),
    ls.Chain(),
]


@pytest.mark.parametrize("bare", BARE, ids=repr)
def test_without_noise_on_something_clipped_nothing_holds(bare):
    assert shown(bare) is None
    assert account_training(bare, records=10, batch=2, rounds=4, entries=50) is None


@dataclass(frozen=True)
class Tells(ls.Defense):
    """Puts the secret into what is released."""

    def release(self, layers, secret, rng, *, batch):
        return {name: tensor + (secret or 0) for name, tensor in layers.items()}


def test_a_chain_keeps_a_mechanism_only_if_all_that_follows_works_on_what_it_released():
    alone = ls.DPSGD(1.0, 2.0).mechanism(16, 9)
    for later in ((), (ls.Pruning(0.9),), (ls.Sign(),), (ls.Noise(0.1), ls.Pruning(0.5))):
        assert ls.Chain(ls.DPSGD(1.0, 2.0), *later).mechanism(16, 9) == alone
    for lost in (
        ls.Chain(
            ls.Pruning(0.9), ls.DPSGD(1.0, 2.0)
        ),  # what pruning keeps of a mean is not bounded by the clip
        ls.Chain(ls.Noise(0.1), ls.DPSGD(1.0, 2.0)),
        ls.Chain(ls.DPSGD(1.0, 2.0), Tells()),
        ls.Within(ls.DPSGD(1.0, 2.0), ("first",)),
    ):
        assert lost.mechanism(16, 9) is None


def test_one_event_after_another_is_worth_both_and_an_unknown_one_is_refused_by_name():
    gaussian, laplace = dp.GaussianDpEvent(2.0), dp.LaplaceDpEvent(4.0)
    both = dp.ComposedDpEvent([dp.SelfComposedDpEvent(gaussian, 4), laplace, dp.NoOpDpEvent()])
    found = account_shown(Mechanism(both, both, "record"), releases=1, batch=1)
    assert found.added == pytest.approx(gaussian_epsilon(1.0, 1e-5) + 0.25)
    open_ = Mechanism(dp.NonPrivateDpEvent(), dp.NonPrivateDpEvent(), "record")
    assert account_shown(open_, releases=1, batch=1) is None
    sampled = dp.PoissonSampledDpEvent(0.1, gaussian)  # what is shown in every round was not drawn
    with pytest.raises(LeakscopeError, match="of records that are in every release"):
        account_shown(Mechanism(sampled, sampled, "record"), releases=1, batch=1)
    for unknown in (dp.PoissonSampledDpEvent(0.1, laplace), dp.ZCDpEvent(0.1, 0.0), dp.UnsupportedDpEvent()):
        with pytest.raises(LeakscopeError, match=f"knows no {type(unknown).__name__}"):
            epsilon_of(dp.ComposedDpEvent([gaussian, unknown]), 1e-5)
    fixed = dp.SampledWithoutReplacementDpEvent(10, 2, gaussian)
    with pytest.raises(LeakscopeError, match="cannot compose Poisson samples with samples of fixed size"):
        epsilon_of(dp.ComposedDpEvent([sampled, fixed]), 1e-5)
    assert epsilon_of(dp.ComposedDpEvent([gaussian, dp.NonPrivateDpEvent()]), 1e-5) == math.inf
    assert epsilon_of(gaussian, 0.0) == math.inf


@pytest.mark.parametrize("name", sorted({*roles("defense")} - {"Within"}))
def test_a_defense_that_only_processes_changes_nothing_but_what_is_released(name):
    made = getattr(leakscope, name)()
    if made.processes:
        hooks = ("model", "loss", "objective", "weigh", "prepared")
        assert all(getattr(type(made), hook) is getattr(ls.Defense, hook) for hook in hooks)
        layers = {"layer": torch.arange(12.0).view(3, 4) - 5}
        one, other = (
            made.release(layers, secret, torch.Generator().manual_seed(0), batch=2)
            for secret in (None, torch.tensor([0, 1, 2]))
        )
        assert torch.equal(one["layer"], other["layer"])


@pytest.mark.parametrize("name", sorted({*roles("defense")} - {"Within"}))
def test_every_defense_states_its_event_or_that_it_has_none_and_the_accountant_knows_it(name):
    """At its own settings: an event that the accountant takes, and more releases never cost less."""
    stated = getattr(leakscope, name)().mechanism(16, 50)
    if stated is None:
        assert shown(getattr(leakscope, name)()) is None
        return
    for event in (stated.event, stated.replaced):
        one, two = (epsilon_of(dp.SelfComposedDpEvent(event, count), 1e-5) for count in (1, 2))
        assert 0 < one < two < math.inf
    assert epsilon_of(stated.event, 1e-5) <= epsilon_of(stated.replaced, 1e-5)


@pytest.mark.parametrize("counts", [(1, 3), (2, 2), (5, 1)])
def test_several_releases_and_other_filters_of_one_update_compose_to_the_closed_form(counts):
    """Gaussians: the root of the summed squares; with Laplace noise its epsilon is added; by dp-accounting too."""
    local, sparse = ls.FlowerLocalDp(sensitivity=4.0), ls.SVTPrivacy(fraction=0.02, noise_var=0.05)
    first, second = local.mechanism(1, 50).event, dp.GaussianDpEvent(3.0)
    both = dp.ComposedDpEvent(
        [dp.SelfComposedDpEvent(first, counts[0]), dp.SelfComposedDpEvent(second, counts[1])]
    )
    mu = math.sqrt(counts[0] * local.mu**2 + counts[1] / 9)
    assert epsilon_of(both, 1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-9)
    assert epsilon_of(both, 1e-5) == pytest.approx(judged(both, "added"), rel=2e-3)
    mixed = dp.ComposedDpEvent([both, sparse.mechanism(1, 50).event])
    assert epsilon_of(mixed, 1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5) + sparse.proven(50))
    assert epsilon_of(mixed, 1e-5) > judged(both, "added")
