"""Wrong ways to be told a low epsilon. Each begins with what is kept, changes one thing, and is refused, is
broken, or has one condition more that says what was changed."""

from __future__ import annotations

import json
import math

import dp_accounting as dp
import pytest
import torch
from builders import refuses
from dp_accounting.pld import PLDAccountant
from torch.utils.data import DataLoader, TensorDataset

import leakscope
from leakscope.core.errors import LeakscopeError
from leakscope.integrations.claims import words
from leakscope.integrations.claims.answer import show
from leakscope.integrations.claims.read import parse_settings

APP = {"dp-clipping-norm": 1.0, "dp-sensitivity": 2.0, "dp-epsilon": 1.0, "dp-delta": 1e-5}
LOCAL = {"clipping_norm": 1.0, "sensitivity": 2.0, "epsilon": 1.0, "delta": 1e-5}
FIXED = {"noise_multiplier": 1.0, "clipping_norm": 0.1, "num_sampled_clients": 10, "rounds": 1}
OPACUS = {"noise_multiplier": 1.1, "batch_size": 100, "records": 1_000, "epochs": 3, "epsilon": 4.0}
JAX = {"noise_multiplier": 1.1, "batch_size": 100, "num_examples": 1_000, "iterations": 30, "epsilon": 4.0}
TFF = {"noise_multiplier": 1.0, "clients_per_round": 10, "total_clients": 100, "rounds": 1, "epsilon": 5.0}
SVT = {"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy", "args": {}}
TRAIN = {"tasks": ["train"], "executor": {"path": "my.Trainer"}}


def app(tmp_path, *lines, **more):
    """A Flower app that keeps what it promises, with more in its run config."""
    path = tmp_path / "pyproject.toml"
    given = [f"{name} = {json.dumps(value)}" for name, value in (APP | more).items()]
    path.write_text("\n".join(["[tool.flwr.app.config]", *given, *lines]))
    return path


def job(tmp_path, *filters, group=(), **more):
    """A client's job of NVFlare that keeps 11 per upload of 1,000 entries."""
    path = tmp_path / "config_fed_client.json"
    groups = [{"tasks": ["train"], "filters": [*(filters or (SVT,))]} | dict(group)]
    path.write_text(json.dumps({"format_version": 2, "task_result_filters": groups} | more))
    return path


def conditions(answer):
    return [sentence for row in answer.kept for sentence in row.only_if]


def test_what_the_wrong_ways_begin_with_is_kept(tmp_path):
    kept = [
        leakscope.claim(app(tmp_path)),
        leakscope.claim(app(tmp_path, **{"num-server-rounds": 2, "rounds": 2})),  # twice the same
        leakscope.claim("flower-local", LOCAL),
        leakscope.claim("flower-fixed", FIXED | {"clients": 10}, promise=10.0),
        leakscope.claim("opacus", OPACUS),
        leakscope.claim("jax-privacy", JAX),
        leakscope.claim("tff", TFF),
        leakscope.claim(job(tmp_path), {"entries": 1_000}, promise=11.0),
        leakscope.claim(job(tmp_path, executors=[TRAIN]), {"entries": 1_000}, promise=11.0),
        leakscope.claim(job(tmp_path, group={"direction": "out"}), {"entries": 1_000}, promise=11.0),
    ]
    assert {answer.verdict for answer in kept} == {"holds only if"}


# --- a delta that allows too much ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "settings", "delta", "said"),
    [
        ("flower-local", LOCAL, 0.5, "delta must be below 0.01"),
        ("flower-local", LOCAL | {"delta": 0.2}, None, "delta must be below 0.01"),
        ("opacus", OPACUS | {"delta": 0.002}, None, "delta must be below 1 / 1,000"),
        ("opacus", OPACUS, 0.001, "delta must be below 1 / 1,000"),
        ("jax-privacy", JAX, 0.005, "delta must be below 1 / 1,000"),
        ("tff", TFF | {"total_clients": 5_000}, 2e-4, "delta must be below 1 / 5,000"),
        ("flower-fixed", FIXED | {"clients": 5_000}, 2e-4, "delta must be below 1 / 5,000"),
    ],
)
def test_a_delta_at_which_somebody_may_be_shown_whole_is_refused(framework, settings, delta, said):
    refuses(LeakscopeError, said, lambda: leakscope.claim(framework, settings, promise=50.0, delta=delta))


def test_where_nobody_says_how_many_there_are_a_delta_is_a_condition():
    answer = leakscope.claim("flower-local", LOCAL)
    assert any("fewer than 1 / delta = 100,000" in sentence for sentence in conditions(answer))
    counted = leakscope.claim("opacus", OPACUS)
    assert not any("1 / delta" in sentence for sentence in conditions(counted))


# --- contradictions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [("rounds=100", "rounds=1"), ("num_rounds=100", "rounds=1"), ("dp-rounds=9", "rounds=1")]
)
def test_a_setting_that_is_given_twice_is_refused(names):
    given = [f"{name}={value}" for name, value in LOCAL.items()]
    said = "rounds is given as .* and as 1"
    refuses(LeakscopeError, said, lambda: leakscope.claim("flower-local", [*given, *names], per="client"))
    assert parse_settings(["a=1", "a=1"]) == parse_settings({"a": 1})


@pytest.mark.parametrize(
    "lines",
    [
        ("server.num-server-rounds = 100", "client.num-server-rounds = 1"),
        ("clipping-norm = 100.0",),
        ("[tool.flwr.app.config.other]", "dp-epsilon = 9.0"),
        ("num-rounds = 9", "num-server-rounds = 1"),
    ],
)
def test_a_run_config_that_contradicts_itself_is_refused_until_an_option_decides(tmp_path, lines):
    path = app(tmp_path, *lines)
    refuses(LeakscopeError, "is given as .* and as", lambda: leakscope.claim(path))
    decided = {"rounds": 1, "clipping_norm": 1.0, "epsilon": 1.0}
    assert leakscope.claim(path, decided).verdict == "holds only if"


@pytest.mark.parametrize(
    "more", [{"noise-multiplier": 0.0}, {"initial-clipping-norm": 0.1}, {"max-grad-norm": 1.0}]
)
def test_a_run_config_of_two_mechanisms_is_refused(tmp_path, more):
    refuses(LeakscopeError, "sets .* too, .*name the one", lambda: leakscope.claim(app(tmp_path, **more)))


def test_a_flower_app_that_trains_with_opacus_is_read_as_such(tmp_path):
    path = tmp_path / "pyproject.toml"
    config = {"num-server-rounds": 3, "noise-multiplier": 1.0, "target-delta": 1e-5, "max-grad-norm": 1.0}
    path.write_text(
        "\n".join(["[tool.flwr.app.config]", *(f"{name} = {value}" for name, value in config.items())])
    )
    answer = leakscope.claim(path, {"batch_size": 32, "records": 20_000, "epochs": 1})
    rows = leakscope.claim(
        "opacus", {"noise_multiplier": 1.0, "batch_size": 32, "records": 20_000, "epochs": 1, "rounds": 3}
    ).standings
    assert answer.framework == "opacus"
    assert [row.added for row in answer.standings] == [row.added for row in rows]


def test_more_clients_a_round_than_there_are_is_refused():
    said = "clients must be at least num_sampled_clients = 10, got 3"
    for framework in ("flower-fixed", "flower-adaptive"):
        settings = {"noise_multiplier": 1.0, "num_sampled_clients": 10, "clients": 3}
        settings |= {"clipping_norm": 1.0} if framework == "flower-fixed" else {}
        refuses(LeakscopeError, said, lambda f=framework, s=settings: leakscope.claim(f, s, promise=50.0))


def test_a_cycle_without_its_sampling_is_refused():
    said = "cycle_length must be 1 unless batch_selection is cyclic_poisson, got 10"
    refuses(LeakscopeError, said, lambda: leakscope.claim("jax-privacy", JAX | {"cycle_length": 10}))


# --- what a configuration names and does not do -----------------------------------------------------------


def test_a_run_config_shows_neither_that_it_is_used_nor_that_its_seed_is_not_the_noises(tmp_path):
    plain, seeded = leakscope.claim(app(tmp_path)), leakscope.claim(app(tmp_path, seed=42))
    assert any("only names them" in sentence for sentence in conditions(plain))
    assert any("seed = 42" in sentence for sentence in conditions(seeded))
    assert not any("seed = " in sentence for sentence in conditions(plain))


@pytest.mark.parametrize(
    ("framework", "settings"),
    [("flower-local", LOCAL), ("nvflare", {"filter": "SVTPrivacy", "entries": 1_000})],
)
def test_what_a_client_sends_beside_its_update_is_a_condition(framework, settings):
    answer = leakscope.claim(framework, settings, promise=11.0)
    assert any("metrics and counts" in sentence for sentence in conditions(answer))


def test_clients_that_clip_must_have_the_mod_that_clips():
    for framework, more in (("flower-fixed", {"clipping_norm": 0.1}), ("flower-adaptive", {})):
        settings = {"noise_multiplier": 1.0, "num_sampled_clients": 40, "rounds": 1, "side": "client"} | more
        clipping = [
            leakscope.claim(framework, settings | side, promise=50.0) for side in ({}, {"side": "server"})
        ]
        said = [any("clipping_mod" in sentence for sentence in conditions(one)) for one in clipping]
        assert said == [True, False]


@pytest.mark.parametrize(("drop", "batches"), [(False, 2), (True, 1)])
def test_a_loader_that_drops_its_last_batch_draws_each_record_more_likely(drop, batches):
    """Opacus draws with chance 1 / len(loader), and drop_last shortens the loader."""
    settings = OPACUS | {"records": 199, "epochs": 1, "noise_multiplier": 4.0, "drop_last": drop}
    answer = leakscope.claim("opacus", settings)
    row = next(row for row in answer.standings if row.whose == "record")
    drawn = dp.PoissonSampledDpEvent(1 / batches, dp.GaussianDpEvent(4.0))
    judge = PLDAccountant().compose(drawn, batches)
    assert row.added == pytest.approx(judge.get_epsilon(1e-5), abs=1e-3)
    assert any("drop_last" in sentence for sentence in row.only_if) != drop
    engine = pytest.importorskip("opacus.data_loader")
    data = TensorDataset(torch.zeros(199, 1))
    theirs = engine.DPDataLoader.from_data_loader(DataLoader(data, batch_size=100, drop_last=drop))
    assert theirs.sample_rate == 1 / batches


def test_a_loader_that_drops_its_only_batch_is_refused():
    few = OPACUS | {"records": 99, "drop_last": True}
    said = "drop_last must be false where records are fewer than batch_size = 100, got True"
    refuses(LeakscopeError, said, lambda: leakscope.claim("opacus", few))


def test_an_upload_of_records_is_protected_only_against_a_change_of_one_of_them():
    answer = leakscope.claim("opacus", OPACUS, per="upload")
    assert any("one record behind an upload" in sentence for sentence in conditions(answer))


# --- NVFlare: filters that do not act ---------------------------------------------------------------------

IDLE = {
    "switched off": {"filters": (SVT | {"disabled": True},)},
    "on what comes in": {"group": {"direction": "in"}},
    "on other tasks": {"group": {"tasks": ["validate"]}},
    "on every task, which NVFlare does not know": {"group": {"tasks": ["*"]}},
    "on tasks that nobody does": {"executors": [{"tasks": ["learn", "swarm_*"]}]},
    "on the server": {"workflows": [{"id": "controller"}]},
    "by a class of the same name": {"filters": ({"path": "custom.filters.SVTPrivacy"},)},
    "on kinds that no training sends": {"filters": (SVT | {"args": {"data_kinds": ["ANALYTICS"]}},)},
}


@pytest.mark.parametrize("way", IDLE)
def test_a_filter_that_does_not_act_is_worth_nothing(tmp_path, way):
    more = dict(IDLE[way])
    path = job(tmp_path, *more.pop("filters", ()), **more)
    with pytest.raises(LeakscopeError):
        leakscope.claim(path, {"entries": 1_000}, promise=11.0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"executors": [TRAIN, {"tasks": ["submit_model", "validate"]}]},
            "never asks for submit_model or validate",
        ),
        ({}, "never asks for submit_model"),
        ({"filters": (SVT | {"args": {"data_kinds": ["WEIGHT_DIFF"]}},)}, "of the kind WEIGHT_DIFF"),
        ({}, "of the kind WEIGHTS or WEIGHT_DIFF"),
        ({}, "2.8 or newer"),
    ],
)
def test_what_passes_by_a_filter_is_a_condition(tmp_path, more, said):
    more = dict(more)
    answer = leakscope.claim(
        job(tmp_path, *more.pop("filters", ()), **more), {"entries": 1_000}, promise=11.0
    )
    assert answer.verdict == "holds only if"
    assert any(said in sentence for sentence in conditions(answer))


# --- what an epsilon is worth ---------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "said"), [(1e9, "right in up to 83.35%"), (0.5, "83.35%")])
def test_an_answer_says_what_the_epsilon_that_holds_lets_somebody_find(epsilon, said):
    answer = leakscope.claim("flower-local", LOCAL | {"sensitivity": 1.0}, promise=epsilon)
    real = math.exp(answer.asked[0].replaced)
    assert (real + 1e-5) / (1 + real) == pytest.approx(0.8335, abs=1e-4)
    assert any(said in line for line in words.notes(answer))


def test_where_none_holds_somebody_may_always_be_right():
    answer = leakscope.claim("nvflare", {"filter": "PercentilePrivacy", "entries": 10}, promise=1.0)
    assert any("right in up to 100%" in line for line in words.notes(answer))


def test_what_an_epsilon_lets_find_is_said_of_all_who_look_on():
    """Those who see the model have an epsilon, which is larger if it is known who took part; those who see
    uploads have none, and can always be right."""
    settings = {"noise_multiplier": 4, "clipping_norm": 1, "num_sampled_clients": 10, "rounds": 3}
    answer = leakscope.claim("flower-fixed", settings | {"clients": 50}, promise=30.0)
    largest = max(row.added for row in answer.asked if not math.isinf(row.added))
    lines = [line for line in words.notes(answer) if "right in up to" in line]
    assert [line.split(" and must")[0].strip() for line in lines] == [
        f"with epsilon {show(largest)}, those who see only the model of each round",
        "with no epsilon, those who see every upload",
    ]
    assert "right in up to 100%" in lines[1]


def test_arguments_that_are_no_table_are_refused_in_words(tmp_path):
    wrong, right = {"name": "ExcludeVars", "args": ["a"]}, {"name": "SVTPrivacy", "args": {}}
    with pytest.raises(LeakscopeError, match="args of ExcludeVars must be a table"):
        leakscope.claim(job(tmp_path, wrong, right), {"entries": 1_000}, promise=11.0)
