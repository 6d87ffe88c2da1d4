"""Claims of privacy: each epsilon against a closed form, dp-accounting or the package's own code, and none
that is said to hold without its conditions."""

from __future__ import annotations

import contextlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
import torch
from builders import refuses
from dp_accounting.pld import PLDAccountant
from test_deployed import draws, flower, logged_out, replies_of  # noqa: F401  fixtures
from typer.testing import CliRunner

import leakscope
from leakscope.cli import app
from leakscope.core.errors import DataError, LeakscopeError
from leakscope.integrations.claims import words
from leakscope.integrations.claims.answer import Promise, show
from leakscope.integrations.claims.flower import AdaptiveClipping, FixedClipping, LocalDpMod
from leakscope.integrations.claims.hocon import parse_hocon
from leakscope.integrations.claims.read import FRAMEWORKS, build
from leakscope.measures.epsilon import gaussian_epsilon

LOCAL = {"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}
FIXED = {"noise_multiplier": 1.0, "clipping_norm": 0.1, "num_sampled_clients": 10}
ADAPTIVE = {"noise_multiplier": 1.0, "num_sampled_clients": 40}
OPACUS = {"noise_multiplier": 1.1, "batch_size": 100, "records": 1_000, "epochs": 3}
TFF = {"noise_multiplier": 1.0, "clients_per_round": 10, "total_clients": 100}
JAX = {"noise_multiplier": 1.1, "batch_size": 100, "num_examples": 1_000, "iterations": 30}
SPARSE = {"filter": "SVTPrivacy", "entries": 1_000}


def standing(answer, whose, *, secure=False, against="", drawn=False):
    """The one row of its kind; ``drawn``: that of clients drawn in secret."""
    found = [r for r in answer.standings if r.whose == whose and r.secure == secure and against in r.against]
    found = [r for r in found if any("which clients" in sentence for sentence in r.only_if) == drawn]
    (one,) = found
    return one


def judged(event, relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE, delta=1e-5):
    return PLDAccountant(relation).compose(event).get_epsilon(delta)


# --- arithmetic -------------------------------------------------------------------------------------


def test_one_upload_of_local_dp_at_1_is_worth_1_61_since_updates_are_two_clips_apart():
    answer = leakscope.claim("flower-local", LOCAL | {"rounds": 10, "clients": 25})
    mu = 2 / math.sqrt(2 * math.log(1.25e5))
    one = standing(answer, "upload")
    assert one.added == one.replaced == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-9)
    assert one.replaced == pytest.approx(1.61, abs=5e-3)
    for whose in ("client", "record"):
        assert standing(answer, whose).replaced == pytest.approx(gaussian_epsilon(mu * math.sqrt(10), 1e-5))
    summed = standing(answer, "upload", secure=True)
    assert summed.replaced == pytest.approx(gaussian_epsilon(mu / 5, 1e-5))
    assert any("all add their noise" in sentence for sentence in summed.only_if)
    assert answer.verdict == "broken"


@pytest.mark.parametrize("share", [None, 0.4])
def test_noise_on_a_mean_is_worth_its_multiplier_outside_and_nothing_against_the_server(share):
    answer = leakscope.claim("flower-fixed", FIXED | {"rounds": 20, "largest_share": share})
    mu = 1.0 if share is None else 0.4 * 10
    outside = standing(answer, "upload", against="only the model")
    assert outside.added == outside.replaced == pytest.approx(gaussian_epsilon(2 * mu, 1e-5))
    whole = standing(answer, "client", against="only the model")
    assert whole.added == whole.replaced == pytest.approx(gaussian_epsilon(2 * mu * math.sqrt(20), 1e-5))
    assert any("weigh the same" in sentence for sentence in whole.only_if) == (share is None)
    for whose in ("upload", "client", "record"):
        for secure in (False, True):
            assert standing(answer, whose, secure=secure, against="every upload").added == math.inf


def test_drawn_clients_are_counted_only_where_nobody_learns_who_was_drawn():
    fixed = leakscope.claim("flower-fixed", FIXED | {"rounds": 20, "clients": 100})
    worst = standing(fixed, "client", against="only the model")
    hidden = standing(fixed, "client", against="only the model", drawn=True)
    assert hidden.added == hidden.replaced < worst.added
    assert worst.added == worst.replaced == pytest.approx(gaussian_epsilon(2 * math.sqrt(20), 1e-5))
    federated = leakscope.claim("tff", TFF | {"rounds": 20, "sampling": "poisson"})
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)), 20)
    hidden = standing(federated, "client", against="only the model", drawn=True)
    assert hidden.added == pytest.approx(judged(event), abs=1e-6)
    assert hidden.replaced == pytest.approx(
        PLDAccountant(dp.NeighboringRelation.REPLACE_ONE, value_discretization_interval=4e-4)
        .compose(event)
        .get_epsilon(1e-5),
        abs=1e-6,
    )


@pytest.mark.parametrize(("framework", "settings"), [("opacus", OPACUS), ("jax-privacy", JAX)])
def test_drawn_batches_are_worth_what_dp_accounting_says_and_shuffled_ones_their_epochs(framework, settings):
    drawn = standing(leakscope.claim(framework, settings), "record")
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.1)), 30)
    assert drawn.added == pytest.approx(judged(event), abs=1e-6)
    how = {"poisson_sampling": False} if framework == "opacus" else {"batch_selection": "shuffled"}
    shuffled = leakscope.claim(framework, settings | how)
    row = standing(shuffled, "record")
    assert row.added == pytest.approx(gaussian_epsilon(math.sqrt(3) / 1.1, 1e-5))
    assert row.replaced == pytest.approx(gaussian_epsilon(2 * math.sqrt(3) / 1.1, 1e-5))
    assert row.added > drawn.added
    assert any("Shuffled" in sentence for sentence in shuffled.idle)
    assert standing(shuffled, "client").added == math.inf


def test_rounds_of_a_private_training_compose():
    row = standing(leakscope.claim("opacus", OPACUS | {"rounds": 4}), "record")
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.1)), 120)
    assert row.added == pytest.approx(judged(event), abs=1e-6)


@pytest.mark.parametrize(("examples", "iterations", "uses"), [(199, 10, 10), (250, 10, 5), (1_000, 25, 3)])
def test_where_a_last_partial_batch_is_dropped_a_record_is_used_in_more_epochs(examples, iterations, uses):
    """Batches of 100 of 199 records with the rest dropped: each is a new epoch that may have the record."""
    shuffled = {"batch_selection": "shuffled", "num_examples": examples, "iterations": iterations}
    row = standing(leakscope.claim("jax-privacy", JAX | shuffled), "record")
    assert row.added == pytest.approx(gaussian_epsilon(math.sqrt(uses) / 1.1, 1e-5))
    assert any("twice" in sentence for sentence in row.only_if)


@pytest.mark.parametrize(("epochs", "steps"), [(0.0001, 1), (1.04, 11), (1.1, 11), (3, 30)])
def test_a_part_of_an_epoch_is_rounded_up_to_steps(epochs, steps):
    assert build("opacus", OPACUS | {"epochs": epochs}, {}).steps.steps == steps


CYCLES = [(1_000, 5, 30, 0.5, 6), (1_000, 7, 30, 100 / 142, 5), (1_003, 1, 20, 100 / 1_003, 20)]


@pytest.mark.parametrize(("examples", "cycle", "iterations", "chance", "uses"), CYCLES)
def test_in_cycles_a_record_is_drawn_more_likely_and_less_often(examples, cycle, iterations, chance, uses):
    """Parts are of equal size: what is left over is dropped, so that a batch is drawn from fewer."""
    cyclic = {"batch_selection": "cyclic_poisson", "cycle_length": cycle, "iterations": iterations}
    row = standing(leakscope.claim("jax-privacy", JAX | cyclic | {"num_examples": examples}), "record")
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(chance, dp.GaussianDpEvent(1.1)), uses)
    assert row.added == pytest.approx(judged(event), abs=1e-6)
    assert any("zero-out" in sentence for sentence in row.only_if) == (cycle > 1)


@pytest.mark.parametrize(("examples", "cycle", "iterations", "chance", "uses"), CYCLES)
def test_cycles_cost_what_jax_privacy_says_and_draw_as_it_draws(examples, cycle, iterations, chance, uses):
    analysis = pytest.importorskip("jax_privacy.accounting.analysis")
    from jax_privacy import batch_selection
    from jax_privacy.accounting import accountants

    settings = {"batch_selection": "cyclic_poisson", "cycle_length": cycle, "iterations": iterations}
    row = standing(leakscope.claim("jax-privacy", JAX | settings | {"num_examples": examples}), "record")
    asked = analysis.DpParams(noise_multipliers=1.1, num_samples=examples, delta=1e-5, batch_size=100,
                              cycle_length=cycle)  # fmt: skip
    theirs = analysis.DpsgdTrainingAccountant(accountants.PldAccountantConfig())
    assert row.added == pytest.approx(theirs.compute_epsilon(iterations, asked), abs=1e-6)
    sampling = batch_selection.CyclicPoissonSampling(
        sampling_prob=chance, iterations=iterations, cycle_length=cycle
    )
    seen = [set(batch.tolist()) for batch in sampling.batch_iterator(examples, rng=0)]
    for record in range(examples):
        assert len({at % cycle for at, batch in enumerate(seen) if record in batch}) <= 1
    assert np.mean([len(batch) for batch in seen]) == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize("settings", [{}, {"fraction": 0.5, "noise_var": 2.0}, {"epsilon_release": 3.0}])
def test_sparse_uploads_cost_each_value_and_the_choice(settings):
    answer = leakscope.claim("nvflare", SPARSE | settings | {"rounds": 3})
    wanted = math.ceil(1_000 * settings.get("fraction", 0.1))
    values = settings.get("epsilon_release", wanted * settings.get("noise_var", 0.1))
    ratio = (2 * wanted) ** (2 / 3)
    choice = 0.1 / (1 + ratio) + 0.1 * ratio / (1 + ratio) * 1_000 / wanted
    assert standing(answer, "upload").added == pytest.approx(values + choice)
    assert standing(answer, "record").added == pytest.approx(3 * (values + choice))
    at = standing(leakscope.claim("nvflare", SPARSE | settings, delta=1e-5), "upload")
    assert at.delta == 1e-5
    assert at.added <= values + choice


def test_filters_without_noise_have_no_epsilon_and_each_is_named():
    for name in ("PercentilePrivacy", "ExcludeVars"):
        answer = leakscope.claim("nvflare", {"filter": name, "entries": 10}, promise=1.0)
        assert standing(answer, "upload").added == math.inf
        assert answer.verdict == "broken"
        assert name in " ".join(answer.idle)


# --- the packages' own code ---------------------------------------------------------------------------


def scales(monkeypatch, name="normal"):
    """The scales that a package asks numpy for, and no noise."""
    asked: list[float] = []

    def draw(loc=0.0, scale=1.0, size=None):
        asked.append(float(scale))
        return np.full(() if size is None else size, loc, dtype=float)

    monkeypatch.setattr(np.random, name, draw)
    return asked


def test_the_noise_and_the_clipping_stated_are_those_of_flowers_local_dp_mod(flower, logged_out, monkeypatch):  # noqa: F811
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import mod

    asked = scales(monkeypatch)
    made = LocalDpMod(0.7, 0.3, 2.0, 1e-6)
    sent = ArrayRecord([np.full((50, 20), 0.1)])
    message = Message(
        RecordDict({"arrays": ArrayRecord([np.zeros((50, 20))])}), dst_node_id=1, message_type="train"
    )
    theirs = mod.LocalDpMod(made.clipping_norm, made.sensitivity, made.epsilon, made.delta)
    reply = theirs(
        message,
        Context(1, 1, {}, RecordDict(), {}),
        lambda asked, _: Message(RecordDict({"arrays": sent}), reply_to=asked),
    )
    assert asked == [pytest.approx(made.defense.deviation(1), rel=1e-12)]
    (update,) = reply.content["arrays"].to_numpy_ndarrays()
    assert np.linalg.norm(update) == pytest.approx(made.clipping_norm, rel=1e-9)
    stated = re.search(r"epsilon = ([\d.e+-]+);", made.standings(None)[0].how)
    assert float(stated[1]) == pytest.approx(asked[0], rel=1e-5)


def test_the_noise_stated_is_that_of_flowers_central_strategies(flower, logged_out, monkeypatch):  # noqa: F811
    from flwr.app import ArrayRecord
    from flwr.serverapp import strategy

    asked, arrays = scales(monkeypatch), ArrayRecord([np.zeros((3, 2))])
    fixed = FixedClipping(1.3, 0.4, 8)
    theirs = strategy.DifferentialPrivacyServerSideFixedClipping(strategy.FedAvg(), 1.3, 0.4, 8)
    theirs._add_noise_to_aggregated_arrays(arrays)
    stated = re.search(r"= ([\d.e+-]+) on the mean", fixed.std)
    assert asked == [pytest.approx(float(stated[1]), rel=1e-5)]
    assert asked[0] * 8 / 0.4 == pytest.approx(fixed.multiplier, rel=1e-12)

    asked.clear()
    adaptive = AdaptiveClipping(1.0, 40)
    theirs = strategy.DifferentialPrivacyServerSideAdaptiveClipping(strategy.FedAvg(), 1.0, 40)
    before = theirs.clipping_norm
    theirs._geometric_update(1 + 6 * theirs.clipped_count_stddev / 40)  # all are clipped, and six deviations
    theirs._add_noise_to_aggregated_arrays(arrays)
    assert theirs.clipping_norm / before == pytest.approx(adaptive.fall, rel=1e-12)
    both = (asked[0] * 40 / before) ** -2 + (
        2 * theirs.clipped_count_stddev
    ) ** -2  # the mean's and the count's
    assert adaptive.multiplier <= both**-0.5 * (1 + 1e-12)


@pytest.mark.parametrize("records", [[1] * 10, [9, *[1] * 9]])
def test_a_client_that_leaves_flowers_mean_moves_it_by_two_clips_of_its_share(flower, logged_out, records):  # noqa: F811
    """Flower divides by the weights of those who answered: who leaves does not leave a zero."""
    from flwr.app import ArrayRecord
    from flwr.serverapp import strategy

    clip, share = 0.4, records[0] / sum(records)

    def mean(updates, weights):
        theirs = strategy.DifferentialPrivacyServerSideFixedClipping(strategy.FedAvg(), 0.0, clip, 10)
        theirs.current_arrays = ArrayRecord({"w": torch.zeros(1).double()})
        arrays, _ = theirs.aggregate_train(
            1, replies_of([torch.tensor([u]).double() for u in updates], weights)
        )
        return float(arrays["w"].numpy()[0])

    others = [-clip] * 9
    moved = mean([clip, *others], records) - mean(others, records[1:])
    assert moved == pytest.approx(2 * clip * share)
    settings = {"noise_multiplier": 1.0, "clipping_norm": clip, "num_sampled_clients": 10, "rounds": 1}
    answer = leakscope.claim("flower-fixed", settings | {"largest_share": share}, promise=5.0, per="client")
    least = gaussian_epsilon(moved / (1.0 * clip / 10), 1e-5)
    assert standing(answer, "client", against="only the model").added == pytest.approx(least)
    assert answer.verdict == "broken"


def test_flowers_own_accountant_says_a_little_more_than_the_exact_one(flower):  # noqa: F811
    accounting = pytest.importorskip("flwr.supercore.privacy_accounting")
    rdp = pytest.importorskip("flwr.supercore.privacy_accounting.rdp_accountant")
    added, plain = (
        accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        accounting.SamplingMethod.NO_AMPLIFICATION,
    )
    judge = rdp.RdpAccountant(accounting.PrivacyConfig(1e-5, 100, added, plain))
    # its noise is for a client that leaves a zero; Flower's mean moves twice as far
    event = accounting.GaussianPrivacyEvent(noise_multiplier=0.5, sample_size=10, population_size=100)
    judge.compose(event, 20)
    ours = standing(
        leakscope.claim("flower-fixed", FIXED | {"rounds": 20}), "client", against="only the model"
    )
    assert 0.9 * judge.get_epsilon(1e-5) < ours.added < judge.get_epsilon(1e-5)


def test_the_noise_stated_is_that_of_nvflares_filter(monkeypatch):
    filters = pytest.importorskip("nvflare.app_common.filters.svt_privacy")
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    theirs = filters.SVTPrivacy(fraction=0.2, epsilon=0.4, noise_var=0.3, gamma=0.01, tau=-1.0)
    asked = scales(monkeypatch, "laplace")
    theirs.process_dxo(DXO(DataKind.WEIGHT_DIFF, {"w": np.ones((10, 10))}), Shareable(), FLContext())
    given = {
        "filter": "SVTPrivacy",
        "fraction": 0.2,
        "epsilon": 0.4,
        "noise_var": 0.3,
        "gamma": 0.01,
        "tau": -1.0,
    }
    ours = build("nvflare", given | {"entries": 100}, {}).sparse[0]
    threshold, query = ours._split(20)
    assert asked[0] == pytest.approx(0.01 / threshold, rel=1e-9)
    assert asked[1] == pytest.approx(2 * 0.01 * 20 / query, rel=1e-9)
    assert asked[2] == pytest.approx(2 * 0.01 / 0.3, rel=1e-9)
    assert theirs.get_privacy_spent() == pytest.approx(ours.claimed(100), rel=1e-9)


# --- what would keep a promise -----------------------------------------------------------------------


@pytest.mark.parametrize("per", ["upload", "client"])
@pytest.mark.parametrize("promise", [0.5, 3.0, 40.0])
def test_the_setting_that_is_named_instead_keeps_the_promise_and_hardly_more(per, promise):
    made = LOCAL | {"rounds": 7}
    answer = leakscope.claim("flower-local", made | {"sensitivity": 1e-3}, promise=promise, per=per)
    given = dict(re.findall(r"(\w+)=([\d.e+-]*\d)", answer.instead))
    better = leakscope.claim("flower-local", made | {k: float(v) for k, v in given.items()})
    assert standing(better, per).replaced == pytest.approx(promise, rel=2e-3)


@pytest.mark.parametrize("neighbours", ["replace", "add or remove"])
def test_the_noise_that_is_named_instead_keeps_the_promise(neighbours):
    for framework, settings, per in (
        ("flower-fixed", FIXED | {"rounds": 20, "noise_multiplier": 0.1}, "client"),
        ("tff", TFF | {"rounds": 20, "noise_multiplier": 0.1}, "client"),
        ("opacus", OPACUS | {"noise_multiplier": 0.3}, "record"),
        ("opacus", OPACUS | {"noise_multiplier": 0.3, "poisson_sampling": False}, "record"),
    ):
        answer = leakscope.claim(framework, settings, promise=2.0, per=per, neighbours=neighbours)
        noise = float(re.search(r"noise_multiplier=([\d.]+)", answer.instead)[1])
        again = leakscope.claim(
            framework,
            settings | {"noise_multiplier": noise * 1.001},
            promise=2.0,
            per=per,
            neighbours=neighbours,
        )
        assert (answer.verdict, again.verdict) == ("broken", "holds only if")


@pytest.mark.parametrize("promise", [1e-3, 1e-9, 1e6])
def test_a_promise_that_the_renyi_accountant_cannot_show_has_a_noise_that_keeps_it(promise):
    steps = build("opacus", OPACUS, {}).steps
    made = Promise(promise, 1e-5, "record", "add or remove")
    (row,) = [
        row
        for row in replace(steps, noise=steps.needed(made) * 1.001).standings(None)
        if row.whose == "record" and not row.secure
    ]
    assert row.added <= promise
    assert f"noise_multiplier={steps.needed(made):.4g}" in steps.nearest(made)


def test_the_sparse_setting_that_is_named_instead_keeps_the_promise():
    answer = leakscope.claim("nvflare", SPARSE | {"rounds": 5}, promise=2.0, per="client")
    given = dict(re.findall(r"(\w+)=([\d.e+-]*\d)", answer.instead))
    again = leakscope.claim("nvflare", SPARSE | {"rounds": 5} | {k: float(v) for k, v in given.items()})
    assert standing(again, "client").replaced == pytest.approx(2.0, rel=2e-2)


# --- no claim is kept without a condition -------------------------------------------------------------

EVERY = [
    ("flower-local", LOCAL | {"sensitivity": 100.0, "rounds": 2, "clients": 3}),
    ("flower-fixed", FIXED | {"rounds": 2, "clients": 20}),
    ("flower-adaptive", ADAPTIVE | {"rounds": 2, "clients": 80}),
    ("nvflare", SPARSE | {"noise_var": 1e-9, "rounds": 2}),
    ("opacus", OPACUS),
    ("opacus", OPACUS | {"poisson_sampling": False}),
    ("tff", TFF | {"rounds": 2}),
    ("jax-privacy", JAX),
]


@pytest.mark.parametrize(("framework", "settings"), EVERY)
def test_whatever_holds_holds_only_if(framework, settings):
    answer = leakscope.claim(framework, settings, promise=1e6)
    assert {framework for framework, _ in EVERY} == set(FRAMEWORKS)
    assert all(row.only_if for row in answer.standings if row.added < math.inf)
    assert answer.verdict in ("holds only if", "broken")
    assert all(row.added <= row.replaced for row in answer.standings)
    assert leakscope.claim(framework, settings, promise=1e-9).verdict == "broken"
    said = words.say_verdict(answer)
    assert "holds only" in said or "not kept" in said


@pytest.mark.parametrize("whose", ["client", "record"])
def test_without_rounds_nothing_is_said_of_all_rounds(whose):
    for framework, settings in (("flower-local", LOCAL), ("nvflare", SPARSE)):
        answer = leakscope.claim(framework, settings, promise=1e6, per=whose)
        assert not answer.asked
        assert answer.verdict == "broken"
        assert "Nothing can be said" in words.say_verdict(answer)
        assert any("rounds are not given" in sentence for sentence in answer.assumed)


def test_a_promise_at_a_smaller_delta_is_not_kept_by_an_epsilon_at_a_larger_one():
    answer = leakscope.claim("flower-local", LOCAL | {"sensitivity": 2.0})
    assert answer.verdict == "holds only if"
    assert replace(answer, promise=replace(answer.promise, delta=1e-9)).verdict == "broken"


# --- files, options and refusals ----------------------------------------------------------------------

PYPROJECT = """
[tool.flwr.app.config]
num-server-rounds = 3
learning-rate = 0.1
dp-clipping-norm = 1.0
dp-sensitivity = 1e-4
dp-epsilon = 10.0
dp-delta = 1e-5
"""
JOB = {
    "format_version": 2,
    "executors": [{"tasks": ["train"], "executor": {"path": "my.Trainer", "args": {}}}],
    "task_result_filters": [
        {
            "tasks": ["train"],
            "filters": [
                {
                    "path": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
                    "args": {"percentile": 10},
                },
                {"name": "SVTPrivacy", "args": {"fraction": 0.1, "data_kinds": ["WEIGHT_DIFF"]}},
            ],
        },
        {"tasks": ["validate"], "filters": [{"name": "ExcludeVars", "args": {"exclude_vars": "bn"}}]},
    ],
}


def test_a_flower_app_and_an_nvflare_job_are_read_from_their_own_files(tmp_path):
    app_file, job = tmp_path / "pyproject.toml", tmp_path / "config_fed_client.json"
    app_file.write_text(PYPROJECT)
    job.write_text(json.dumps(JOB))
    local = leakscope.claim(app_file)
    assert (local.framework, local.promise.epsilon, local.verdict) == ("flower-local", 10.0, "broken")
    assert standing(local, "upload").added == pytest.approx(gaussian_epsilon(2 / 4.84481e-5, 1e-5), rel=1e-4)
    sparse = leakscope.claim(job, {"entries": 1_000, "rounds": 2})
    alone = leakscope.claim("nvflare", SPARSE | {"rounds": 2})
    ends = [[(row.added, row.replaced) for row in answer.standings] for answer in (sparse, alone)]
    assert ends[0] == ends[1]  # filters before it take nothing away
    assert any("ExcludeVars does not act" in sentence for sentence in sparse.idle)
    table = tmp_path / "claim.json"
    table.write_text(json.dumps({"framework": "opacus"} | OPACUS))
    assert leakscope.claim(table).standings == leakscope.claim("opacus", OPACUS).standings


@pytest.mark.parametrize(
    ("source", "settings", "options", "said"),
    [
        ("flwr", {}, {}, "'flwr' is neither a framework nor a file; frameworks are flower-local"),
        ("flower-local", LOCAL | {"foo": 1}, {}, "flower-local has no setting 'foo'; it has clipping_norm"),
        ("flower-local", {"epsilon": "x", "clipping_norm": -1}, {}, "for 4 reasons: .*clipping_norm must be"),
        ("flower-local", LOCAL | {"rounds": 1.5}, {}, "rounds must be None or at least 1, got 1.5"),
        ("flower-local", LOCAL | {"epsilon": True}, {}, "epsilon must be finite and above 0, got True"),
        ("flower-local", LOCAL | {"delta": 0}, {}, "delta must be between 0 and 1, got 0"),
        ("flower-local", ["epsilon"], {}, "--set 'epsilon' must be name=value"),
        ("flower-local", LOCAL, {"promise": -1.0, "delta": 2.0}, "for 2 reasons: .*promise must be .*delta must"),
        ("flower-local", LOCAL, {"per": "person"}, "per must be upload, client or record, got 'person'"),
        ("flower-local", LOCAL, {"neighbours": "any"}, "neighbours must be replace or add or remove, got 'any'"),
        ("flower-adaptive", {"noise_multiplier": 9.0, "num_sampled_clients": 5}, {}, "below twice the count's noise"),
        ("flower-fixed", FIXED | {"largest_share": 0.01}, {}, "largest_share must be at least .* = 0.1, got 0.01; leave"),
        ("flower-adaptive", ADAPTIVE | {"largest_share": 0.02}, {}, "largest_share must be at least .* = 0.025, got 0.02"),
        ("nvflare", {"entries": 10}, {}, "nvflare needs filter: one of PercentilePrivacy"),
        ("nvflare", {"filter": "SVTPrivacy"}, {}, "nvflare needs entries: at least 1"),
        ("nvflare", {"filter": "Secret", "entries": 1}, {}, "the filter 'Secret' is not known"),
        ("nvflare", SPARSE | {"fraction": "a", "x": 1}, {}, "no x; .*fraction must be a number, .*, got 'a'"),
        ("nvflare", SPARSE | {"epsilon_query": 1}, {}, "epsilon_query of SVTPrivacy cannot be accounted for"),
        ("nvflare", SPARSE | {"fraction": 2.0}, {}, r"SVTPrivacy.fraction must be in \(0, 1\]"),
        ("opacus", OPACUS | {"poisson_sampling": 1}, {}, "poisson_sampling must be true or false, got 1"),
        ("opacus", OPACUS | {"noise_multiplier": 1e-200}, {}, "noise_multiplier must be .* 0 or between 1e-30 and 1e"),
        ("opacus", OPACUS | {"records": 10**400}, {}, "records must be at least 1 .*between 1e-30 and 1e"),
        ("opacus", OPACUS | {"records": 10**7, "batch_size": 1, "epochs": 10**6, "delta": 1e-9}, {}, "at most 1,000,000 .* got 10,000,0"),
        ("tff", TFF | {"rounds": 10**8, "sampling": "poisson"}, {}, "at most 1,000,000 .*got 100,000,000; give fewer"),
        ("jax-privacy", JAX | {"batch_selection": "cyclic_poisson", "cycle_length": 11}, {}, "cycle_length must be at most .*= 10, got 11"),
        ("jax-privacy", JAX | {"truncated_batch_size": 110}, {}, "jax-privacy has no setting 'truncated_batch_size'"),
        ("tff", TFF | {"sampling": "drawn"}, {}, "sampling must be one of poisson, fixed, got 'drawn'"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_with_every_reason(source, settings, options, said):
    refuses(LeakscopeError, said, lambda: leakscope.claim(source, settings, **options))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("pyproject.toml", "[tool.flwr.app.config]\nlr = 1\n", "sets no differential privacy"),
        ("pyproject.toml", "[tool", "cannot be read as TOML"),
        ("job.json", "{", "cannot be read as JSON"),
        ("job.json", "[" * 100_000, "cannot be read as JSON: its tables are too deep"),
        ("job.json", "[1]", "must hold a table of settings, got a list"),
        ("job.json", "{}", "must have task_result_filters"),
        (
            "job.json",
            '{"task_result_filters": [{"tasks": ["validate"], "filters": []}]}',
            "go out as they are",
        ),
        ("job.json", '{"task_result_filters": [{"filters": [1]}]}', "a list of tables"),
    ],
)
def test_files_that_say_nothing_of_privacy_are_refused(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    refuses(DataError, said, lambda: leakscope.claim(path))


CONF = """
{
  # what a client runs
  format_version = 2
  executors = [ { tasks = ["train"], executor { path = "{executor_class_path}", args {} } } ]
  task_result_filters = [
    {
      tasks = ["train"]
      filters = [
        { path = "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy", args { percentile = 10 } }
        { name = SVTPrivacy, args { fraction: 0.1, data_kinds = ["WEIGHT_DIFF"] } }  // the second
      ]
    }
    { tasks = [validate], filters = [ { name = "ExcludeVars", args.exclude_vars = bn } ] }
  ],
}
"""


def test_an_nvflare_job_is_read_from_hocon_and_yaml_as_from_json(tmp_path):
    import yaml

    for name, text in (("job.json", json.dumps(JOB)), ("job.conf", CONF), ("job.yml", yaml.safe_dump(JOB))):
        (tmp_path / name).write_text(text)
    first, *others = (
        leakscope.claim(tmp_path / f"job.{end}", {"entries": 1_000, "rounds": 2})
        for end in ("json", "conf", "yml")
    )
    assert others == [first, first]
    (tmp_path / "all.conf").write_text(json.dumps(JOB))  # every JSON is HOCON
    assert leakscope.claim(tmp_path / "all.conf", {"entries": 1_000, "rounds": 2}) == first


READ = {
    "a = b c": {"a": "b c"},
    "a.b = 1, a.c = 2": {"a": {"b": 1, "c": 2}},
    "a = {x = 1}\na = {y: 2}\n": {"a": {"x": 1, "y": 2}},
    "a = {x = 1}\na = 3": {"a": 3},
    "a = 1\n, b = 2": {"a": 1, "b": 2},
    'a = """x\n"y"""': {"a": 'x\n"y'},
    "a = [1\n2, -5,]": {"a": [1, 2, -5]},
    "a = 1e3, b = .5, c = 1.5e-5": {"a": 1000.0, "b": 0.5, "c": 1.5e-5},
    "a: yes # no": {"a": "yes"},
    "a = null, b = true // c": {"a": None, "b": True},
    'a { b { c = "d # e" } }': {"a": {"b": {"c": "d # e"}}},
    "": {},
    "{}": {},
}


@pytest.mark.parametrize("text", READ)
def test_hocon_is_read_as_by_nvflares_own_reader(text):
    assert parse_hocon(text) == READ[text]
    with contextlib.suppress(ImportError):
        from pyhocon import ConfigFactory

        assert json.loads(json.dumps(ConfigFactory.parse_string(text))) == READ[text]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('include "/etc/passwd"', "line 1 has 'include', where a name .other files are not read. should be"),
        ("a = 1\nb = ${HOME}", "line 2 has a substitution such as"),
        ("a += 1", "line 1 has .*, which is not read here"),
        ("a = {" * 60, "line 1 is more than 50 tables deep"),
        ("a = " + "[" * 100_000, "more than 50 tables deep"),
        ("a = {", "line 1 has the end"),
        ("a = [1", "the end"),
        ("a = }", "line 1 has '}', where a value should be"),
        ("a = 1 } b", "line 1 has '}'"),
        ('a = "x" y', "where a comma or a new line should be"),
        ('a = "x', "which is not read here"),
        ('a = "\\x"', "cannot be read as HOCON"),
        ("a b", "line 1 has 'b', where = or : or { should be"),
        ("a = " + "1" * 5_000, "cannot be read as HOCON"),
        ("task_result_filters = 3", "must be a list of groups of filters, got 3"),
    ],
)
def test_what_is_no_hocon_of_nvflare_is_refused_in_one_sentence(tmp_path, text, said):
    path = tmp_path / "job.conf"
    path.write_text(text)
    refuses(DataError, said, lambda: leakscope.claim(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "cannot be read as YAML"),
        ("a: &x [1]\nb: *x", "repeats a part by an alias"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("- 1", "must hold a table of settings, got a list"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_in_one_sentence(tmp_path, text, said):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    refuses(DataError, said, lambda: leakscope.claim(path))


ODD = [3, -1, 0, 1.5, "a", "", [], ["a"], [1], [[]], {}, {"a": 1}, None, True, 1e-200, 1e200, 10**400]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: str(odd)[:9])
def test_whatever_stands_in_a_file_is_answered_or_refused_in_one_sentence(tmp_path, odd):
    one = {"name": "SVTPrivacy", "args": {}}
    group = {"tasks": ["train"], "filters": [one]}
    files = [odd, {"framework": odd}, {"task_result_filters": odd}, {"task_result_filters": [odd]}]
    files += [{"task_result_filters": [group | {key: odd}]} for key in ("tasks", "filters")]
    files += [{"task_result_filters": [group], "task_data_filters": part} for part in (odd, [odd])]
    files += [
        {"task_result_filters": [group | {"filters": [one | {key: odd}]}]} for key in ("name", "path", "args")
    ]
    arguments = (
        "fraction",
        "epsilon",
        "noise_var",
        "gamma",
        "tau",
        "replace",
        "epsilon_release",
        "data_kinds",
    )
    made = [one | {"args": {key: odd}} for key in arguments]
    made += [{"name": "ExcludeVars", "args": {"exclude_vars": odd}}]
    files += [{"task_result_filters": [group | {"filters": [table]}]} for table in made]
    for framework, settings in EVERY[:4]:
        files += [{"framework": framework} | settings | {key: odd} for key in settings]
    for table in files:
        path = tmp_path / "job.json"
        path.write_text(json.dumps(table))
        for settings in ({}, {"entries": 100, "rounds": 2}):
            with contextlib.suppress(LeakscopeError):
                leakscope.claim(path, settings)


@pytest.mark.parametrize(
    "key", ["noise_multiplier", "batch_size", "records", "epochs", "delta", "rounds", "epsilon"]
)
@pytest.mark.parametrize(
    "odd", [odd for odd in ODD if not isinstance(odd, float)], ids=lambda odd: str(odd)[:9]
)
def test_whatever_a_setting_of_records_is_it_is_taken_or_refused_in_one_sentence(key, odd):
    with contextlib.suppress(LeakscopeError):
        build("opacus", OPACUS | {key: odd}, {})


@pytest.mark.parametrize(
    "text", ["tool = 3", "[tool]\nflwr = 1", "[tool.flwr]\napp = []", "[tool.flwr.app]\nconfig = 'a'"]
)
def test_a_flower_app_of_another_shape_is_refused(tmp_path, text):
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    refuses(DataError, "pyproject.toml sets no differential privacy", lambda: leakscope.claim(path))


def test_the_command_says_it_in_words_and_as_json():
    typed = [part for name, value in LOCAL.items() for part in ("--set", f"{name}={value}")]
    shown = CliRunner().invoke(app, ["claim", "flower-local", *typed])
    assert shown.exit_code == 0
    assert "It is not kept: the epsilon that holds is 1.61." in shown.stdout
    told = CliRunner().invoke(app, ["claim", "flower-fixed", "--set", "noise_multiplier=1", "--set",
                                    "clipping_norm=1", "--set", "num_sampled_clients=5", "--json"])  # fmt: skip
    table = json.loads(told.stdout)
    assert table["verdict"] == "nothing promised"
    assert {row["added"] for row in table["standings"] if "every upload" in row["against"]} == {None}


# --- ten configurations that were published or logged --------------------------------------------------

PAGE = Path(__file__).parents[1] / "docs" / "is-my-epsilon-true.md"
TEN = {
    "NVFlare, stock SVTPrivacy": (
        "nvflare", {"filter": "SVTPrivacy", "entries": 7_033_290}, {}, "upload", 0.1 * 703_329 + 0.99991),
    "FLIP, Flower local DP": (
        "flower-local", {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5, "rounds": 3},
        {}, "upload", gaussian_epsilon(2 / (1e-5 * math.sqrt(2 * math.log(1.25e5))), 1e-5)),
    "Flower, LocalDpMod, all at 1": ("flower-local", LOCAL, {}, "upload", 1.610316),
    "MediSwarm, PercentilePrivacy": (
        "nvflare", {"filter": "PercentilePrivacy", "percentile": 10, "gamma": 0.01, "entries": 1_000},
        {"promise": 10.0}, "upload", math.inf),
    "MediSwarm, noise 2.4, 20 rounds": (
        "flower-fixed", {"noise_multiplier": 2.4, "clipping_norm": 1.0, "num_sampled_clients": 1, "rounds": 20},
        {"promise": 10.0}, "client", gaussian_epsilon(2 * math.sqrt(20) / 2.4, 1e-5)),
    "Flower, example fl-dp-sa": (
        "flower-fixed", {"noise_multiplier": 0.2, "clipping_norm": 10, "num_sampled_clients": 20, "rounds": 3},
        {}, "client", gaussian_epsilon(10 * math.sqrt(3), 1e-5)),
    "Flower, example opacus": (
        "opacus", {"noise_multiplier": 1.0, "batch_size": 32, "records": 20_000, "epochs": 1, "rounds": 3},
        {}, "record", None),
    "jax_privacy, CIFAR-10 eps1": (
        "jax-privacy", {"noise_multiplier": 10.0, "batch_size": 4_096, "num_examples": 50_000, "iterations": 725,
                        "epsilon": 1.0}, {}, "record", None),
    "Abadi et al., 100 epochs": (
        "jax-privacy", {"noise_multiplier": 4.0, "batch_size": 600, "num_examples": 60_000, "iterations": 10_000,
                        "epsilon": 1.26}, {}, "record", None),
    "TFF, dp_aggregator(0.1, 10)": (
        "tff", {"noise_multiplier": 0.1, "clients_per_round": 10, "rounds": 10}, {}, "client",
        gaussian_epsilon(10 * math.sqrt(10), 1e-5)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Optimal order is the")  # of Opacus
@pytest.mark.parametrize("name", TEN)
def test_ten_configurations_are_answered_as_the_page_says(name):
    framework, settings, options, per, by_hand = TEN[name]
    answer = leakscope.claim(framework, settings, **options)
    least = min(
        (row for row in answer.standings if row.whose == per and not row.secure), key=lambda row: row.added
    )
    if by_hand is None:  # Poisson samples: a second accountant
        judge = pytest.importorskip("opacus.accountants").PRVAccountant()
        steps = build(framework, settings, {}).steps
        judge.history = [(steps.noise, steps.chance, steps.steps * steps.uploads)]
        assert least.added == pytest.approx(judge.get_epsilon(1e-5, eps_error=0.01), abs=0.02)
    else:
        assert least.added == pytest.approx(by_hand, rel=1e-4)
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |"))
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[4:7] == [show(least.added), show(least.replaced), answer.verdict]
