"""The gate: a pass needs upper limits, a fail lower ones, and an epsilon's pass an accountant."""

from __future__ import annotations

import json
import math
import re
from functools import cache

import builders
import numpy as np
import pytest
import tomli_w
import torch
from builders import HOSTILE, fail, golden, refuses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markupsafe import Markup
from scipy import stats

from leakscope import Transcript, auroc
from leakscope.audits.inference.audit import measure
from leakscope.core.basis import Effective
from leakscope.core.errors import PlanError
from leakscope.measures.success import guessing, proportion, roc
from leakscope.report import page
from leakscope.results import gate, store
from leakscope.results.gate.readings import read
from leakscope.results.scores import Worth
from leakscope.run import experiment

PASS, FAIL, OPEN = 0, 1, 3
SIGN = {"name": "Sign"}


def limit(**settings):
    return {"secret": "group", "measure": "advantage", "at_most": 0.1, "attack": "any"} | settings


def appetite(*limits, **rest):
    return gate.parse(tomli_w.dumps({"limit": list(limits)} | rest))


def declare(epsilon, **more):
    """What an operator's accountant promises."""
    return {"epsilon": epsilon, "delta": 1e-5, "neighbours": "replace"} | more


def code(wanted, *results):
    return gate.judge(wanted, results).exit_code


def transcript(hits, n, *, seed=0, ranked=None):
    """Guesses of a fair coin of which exactly ``hits`` are right, with various confidence. ``ranked``: they
    are all "0", and this share of the trials with a 1 is less sure of it than any other."""
    rng = torch.Generator().manual_seed(seed)
    secrets = torch.arange(n) % 2
    sure = 0.5 + 0.5 * torch.rand(n, generator=rng, dtype=torch.float64).clamp(1e-3, 1 - 1e-3)
    if ranked is None:
        right = torch.randperm(n, generator=rng) < hits
        one = torch.where((secrets == 1) == right, sure, 1 - sure)
    else:
        first = torch.rand(n, generator=rng) < ranked
        one = torch.where((secrets == 1) == first, 0.4 + 0.1 * (1 - sure), 0.3 * (1 - sure))
    return Transcript(secrets, torch.stack([1 - one, one], 1), torch.tensor([0.5, 0.5], dtype=torch.float64))


@cache
def real(kind="game", **changes):
    """The result of a tiny real cell."""
    return experiment.run(builders.cell(kind, **changes), 0)


def game(hits=1000, n=2000, *, seed=0, column="group", defense=None, adaptive=True, played=None, **found):
    """A real result whose scores are those of a transcript with so many hits."""
    played = transcript(hits, n, seed=seed) if played is None else played
    base = real()
    told = {"scores": measure(played), "guessing": guessing(played), "roc": tuple(roc(played))}
    told["utility"] = Worth(accuracy=proportion("accuracy", 800, 1000), majority=0.5)
    told["secret"] = base.found.secret.model_copy(update={"column": column})
    asked = {"defense": defense, "adaptive": adaptive, "game": base.cell.game | {"secret": column}}
    cell = base.cell.model_copy(update=asked)
    key = {"key": cell.key(seed), "seed": seed, "cell": cell}
    return base.model_copy(update=key | {"found": base.found.model_copy(update=told | found)})


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_an_advantage_is_judged_by_clopper_and_pearson_alone(share):
    """Against scipy's own one-sided test at 5%, where the ranking tells nothing."""
    wanted, edge = appetite(limit(at_most=share)), 0.5 + share / 2
    area = auroc(transcript(200, 400))
    assert area.low < 0.5 < area.high
    for hits in range(160, 400, 8):
        low = stats.binomtest(hits, 400, edge, "greater").pvalue  # fails: more than the limit
        high = stats.binomtest(hits, 400, edge, "less").pvalue
        one = game(hits, 400)
        scores = one.found.scores.model_copy(update={"auroc": area})
        one = one.model_copy(update={"found": one.found.model_copy(update={"scores": scores})})
        worse = one.found.scores.success.high < 0.5  # than guessing: no evidence
        expected = FAIL if low < 0.05 else PASS if high <= 0.05 and not worse else OPEN
        assert code(wanted, one) == expected, hits


def test_what_a_result_of_the_first_format_rests_on_gives_its_own_interval_back():
    rows = [row for one in golden("inference") if one.found for r in read(one) for row in r.measured.values()]
    resting = [row for row in rows if row.basis is not None]
    assert {row.measure for row in resting} == {"advantage"}  # an AUROC of so few trials is Student's
    for row in resting:
        tail = (1 - row.level) / 2
        assert row.basis.low(tail) == pytest.approx(row.low, abs=1e-6)
        assert row.basis.high(tail) == pytest.approx(row.high, abs=1e-6)


def of_three(n=3000):
    """Guesses of three values: what hits at few false alarms rest on is not kept for each of them."""
    secrets = torch.arange(n) % 3
    guesses = torch.rand(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Transcript(secrets, guesses / guesses.sum(1, keepdim=True), torch.full((3,), 1 / 3).double())


def test_a_stored_interval_is_good_for_its_own_error_and_no_smaller_one():
    one = game(played=of_three())
    assert one.found.scores.tpr_at_1.basis is None
    wanted = limit(measure="tpr_at_1%", at_most=0.9)
    assert code(appetite(wanted | {"confidence": 0.975}), one) == PASS
    told = gate.judge(appetite(wanted | {"confidence": 0.98}), [one])
    assert told.exit_code == OPEN
    assert "97.5" not in told.limits[0].decisive.reason
    assert "stored at 95%" in told.limits[0].decisive.reason
    assert told.limits[0].enough is None


def test_a_surer_interval_beside_it_is_used_where_it_is_needed():
    one = next(r for r in golden("mechanism") if r.found and r.found.sure.low > 0)
    bound, sure = one.found.certified, one.found.sure
    assert (bound.level, sure.level) == (0.95, 0.999)
    assert 0 < sure.low < bound.low
    wanted = limit(secret=one.found.attribute, measure="epsilon", at_most=(bound.low + sure.low) / 2)
    assert code(appetite(wanted), one) == FAIL
    assert code(appetite(wanted | {"confidence": 0.999}), one) == OPEN
    assert code(appetite(wanted | {"confidence": 0.999, "at_most": sure.low / 2}), one) == FAIL
    alone = one.model_copy(update={"found": one.found.model_copy(update={"sure": None})})
    assert code(appetite(wanted | {"confidence": 0.999, "at_most": sure.low / 2}), alone) == OPEN


def test_errors_are_shared_by_limits_and_seeds_and_for_failing_by_attacks_too():
    runs = [
        game(seed=s, defense=d, column=c) for s in (0, 1, 2) for d in (None, SIGN) for c in ("group", "age")
    ]
    (first, second) = gate.judge(appetite(limit(), limit(secret="*", confidence=0.9)), runs).limits
    assert first.errors == pytest.approx((0.05 / 2 / 6, 0.05 / 2 / 3))
    assert second.errors == pytest.approx((0.1 / 2 / 12, 0.1 / 2 / 3))


def test_more_seeds_never_make_failing_by_chance_likelier_than_was_asked():
    """At the limit itself, of 4 seeds, fewer than 5% of audits fail and fewer than 5% pass."""
    wanted, hits = appetite(limit()), np.random.default_rng(0).binomial(300, 0.55, size=(80, 4))
    runs = {k: game(int(k), 300) for k in {*hits.flatten().tolist()}}
    codes = [
        code(wanted, *(runs[k].model_copy(update={"seed": seed}) for seed, k in enumerate(row)))
        for row in hits.tolist()
    ]
    assert codes.count(FAIL) <= stats.binom.ppf(0.999, 80, 0.05)
    assert codes.count(PASS) <= stats.binom.ppf(0.999, 80, 0.05)


def test_trials_by_the_normal_approximation_put_the_expected_interval_on_one_side():
    one = game(600, 1000)
    area = one.found.scores.auroc
    wanted = limit(measure="auroc", at_most=area.value + 0.02)
    (judged,) = gate.judge(appetite(wanted), [one]).limits
    trials, by = judged.enough
    assert by == "normal approximation"
    grown = Effective(area.value, area.basis.effective * trials / 1000, trials)
    assert grown.high(0.05) < wanted["at_most"] < judged.judgements[0].high


def test_no_number_of_trials_decides_where_the_estimate_is_the_limit():
    (judged,) = gate.judge(appetite(limit(at_most=0.1)), [game(550, 1000)]).limits
    assert judged.combined == "not enough evidence"
    assert judged.enough is None


def test_a_bound_of_the_mechanism_passes_what_trials_leave_open_and_never_what_they_fail():
    bounds = real().found.bounds.model_copy(update={"advantage": 0.08, "information": 0.01})
    wanted = appetite(limit())
    assert code(wanted, game(26, 50)) == OPEN
    told = gate.judge(wanted, [game(26, 50, defense=SIGN, bounds=bounds)])
    assert (told.measured, told.declared, told.combined) == ("not enough evidence", "pass", "pass")
    assert code(wanted, game(50, 50, bounds=bounds)) == FAIL


def test_what_failed_or_is_missing_never_passes(tmp_path):
    wanted, good = appetite(limit()), game(1000, 2000)
    assert code(wanted, good) == PASS
    assert code(wanted, good, fail(game(seed=1))) == OPEN
    assert code(wanted) == OPEN
    document = {"seeds": [0, 1], "defaults": builders.DEFAULTS, "cell": [builders.KINDS["game"]]}
    text = tomli_w.dumps(document)
    store.claim(tmp_path, text, gate.readings.plan_of(text).digest)
    for seed, expected in ((0, OPEN), (1, PASS)):
        store.save(tmp_path, game(1000, 2000, seed=seed))
        assert code(wanted, *gate.read_results(tmp_path)) == expected
    assert gate.judge_kept(tmp_path) is None
    (tmp_path / gate.APPETITE).write_text(tomli_w.dumps({"limit": [limit()]}))
    assert gate.judge_kept(tmp_path) == gate.judge(wanted, gate.read_results(tmp_path))


def test_an_adversary_is_the_one_that_was_asked_for():
    static, aware = (game(k, 2000, defense=SIGN, adaptive=a) for k, a in ((1000, False), (1000, True)))
    assert code(appetite(limit()), static) == OPEN
    assert '"any"' in gate.judge(appetite(limit()), [static]).limits[0].decisive.reason
    assert code(appetite(limit(adversary="static")), static) == PASS
    assert code(appetite(limit(adversary="static")), aware) == OPEN
    assert code(appetite(limit()), static, aware) == PASS
    told = gate.judge(appetite(limit(adversary="any")), [static])
    assert told.passed
    assert "does not know the defense" in " ".join(gate.as_text(told))
    for adversary in ("adaptive", "static", "any"):  # where there is no defense to know of
        assert code(appetite(limit(adversary=adversary)), game()) == PASS


def test_an_adversary_who_knows_a_defense_can_do_what_one_who_does_not_would():
    read_all = game(2000, 2000, defense=SIGN, adaptive=False)
    aware = game(1000, 2000, defense=SIGN)
    for results in ([read_all], [read_all, aware]):
        assert code(appetite(limit()), *results) == FAIL
    assert code(appetite(limit(adversary="static")), read_all, aware) == FAIL
    assert code(appetite(limit(adversary="static")), aware, game(2000, 2000, defense=SIGN)) == OPEN


def test_every_secret_and_every_defense_are_all_of_them():
    """A limit on all is not passed by those that were measured, or attacked by who was asked for."""
    known, every = game(1000, 2000, defense=SIGN), appetite(limit(secret="*"))
    assert code(every, known) == PASS
    other = game(1000, 2000, defense={"name": "Pruning", "rate": 0.9}, adaptive=False)
    assert code(every, known, other) == OPEN
    assert code(appetite(limit()), known, other) == OPEN
    assert code(appetite(limit(defense="Sign")), known, other) == PASS
    certified = golden("mechanism")[0]
    told = gate.judge(every, [known, certified])  # it measures no advantage
    assert told.exit_code == OPEN
    assert {j.reading.secret for j in told.limits[0].judgements if j.combined != "pass"} == {"sex"}


def test_a_defense_is_found_by_name_and_by_its_settings():
    open_, pruned = game(2000, 2000), game(1000, 2000, defense={"name": "Pruning", "rate": 0.9})
    for defense, expected in (
        ("Pruning", PASS),
        ({"name": "Pruning", "rate": 0.9}, PASS),
        ({"name": "Pruning", "rate": 0.5}, OPEN),
        ("none", FAIL),
        (None, FAIL),
    ):
        asked = {} if defense is None else {"defense": defense}
        assert code(appetite(limit(**asked)), open_, pruned) == expected, defense
    chained = game(1000, 2000, defense={"name": "Chain", "defenses": [SIGN]})
    assert code(appetite(limit(defense="Sign")), chained) == PASS


def test_a_game_is_the_one_that_was_asked_for():
    played = game(2000, 2000)
    kind = played.found.secret.kind
    assert code(appetite(limit(game=kind)), played) == FAIL
    layers = [one for one in golden("layers") if one.found]
    told = gate.judge(appetite(limit(game="layers", at_most=1.0)), [played, *layers])
    assert {one.reading.kinds for one in told.limits[0].judgements} == {("layers",)}
    assert code(appetite(limit(secret="kind", game=kind)), played, *layers) == OPEN


@pytest.mark.parametrize(
    ("what", "name", "there"),
    [("secret", "grup", "group"), ("game", "layer", "property"), ("defense", "Sine", "Sign")],
)
def test_a_name_that_no_result_has_is_an_error_with_those_that_there_are(
    what, name, there, tmp_path, leakscope
):
    one = game(1000, 2000, defense=SIGN)
    refuses(PlanError, there, gate.judge, appetite(limit(**{what: name})), [one])
    asked = {key: value for key, value in one.cell.described.items() if value is not None}
    text = tomli_w.dumps({"cell": [asked]})
    one = one.model_copy(update={"cell": gate.readings.plan_of(text).cell[0]})
    store.claim(tmp_path / "run", text, gate.readings.plan_of(text).digest)
    store.save(tmp_path / "run", one.model_copy(update={"key": one.cell.key(0)}))
    (tmp_path / "a.toml").write_text(tomli_w.dumps({"limit": [limit(**{what: name})]}))
    said = leakscope("gate", tmp_path / "run", tmp_path / "a.toml")
    assert said.code == 2
    assert len(said.err.strip().splitlines()) == 1
    assert there in said.err
    assert not said.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "[[limit]]"),
        ("limit = 3", "limit"),
        ("[[limit]]\nsecret = 'sex'", "measure is missing"),
        ("[[limit]]\nsecret='a'\nmeasure='advantage'\nat_most=1.5", "at most 1"),
        ("[[limit]]\nsecret='a'\nmeasure='advantage'\nat_most=nan", "at_most"),
        ("[[limit]]\nsecret='a'\nmeasure='advantage'\nat_most=true", "at_most"),
        ("[[limit]]\nsecret='a'\nmeasure='mse'\nat_most=0.5", "falls as more leaks"),
        ("[[limit]]\nsecret='a'\nmeasure='epsilon'\nat_most=1\nreleases='some'", "releases"),
        ("[[limit]]\nsecret='a'\nmeasure='auroc'\nat_most=0.5\nlevel=0.9", "unknown setting 'limit.1.level'"),
        ("[[limit]]\nsecret='a'\nmeasure='auroc'\nat_most=0.5\nconfidence=95", "confidence"),
        ("[[limit", "not valid TOML"),
        ("a = 1" + "0" * 5000, "not valid TOML"),
    ],
)
def test_a_bad_appetite_is_refused_in_one_sentence(text, words):
    with pytest.raises(PlanError, match=re.escape(words)) as caught:
        gate.parse(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_page_terminal_and_json_say_the_same():
    results = [game(530, 1000), game(2000, 2000, defense=SIGN), fail(game(seed=1))]
    wanted = appetite(limit(defense="none"), limit(defense="Sign"), declared=declare(2.0))
    told = gate.judge(wanted, results)
    document = json.loads(json.dumps(gate.as_json(told), allow_nan=False))
    lines, shown = (
        gate.as_text(told),
        Markup(page.render(results, plan="", title="", verdict=told)).striptags(),
    )
    assert (document["verdict"], document["exit_code"]) == ("fail", FAIL)
    assert lines[-1] in shown
    for one, table in zip(told.limits, document["limits"], strict=True):
        assert f"{table['verdict'].upper()}: {gate.words.say_limit(one.limit)}." in lines
        assert gate.words.say_limit(one.limit)[1:] in shown
        for judgement, row in zip(one.judgements, table["judgements"], strict=True):
            assert (row["verdict"], row["key"]) == (judgement.combined, judgement.reading.key)
            assert (row["low"], row["high"]) == (judgement.low, judgement.high)
            if row["value"] is not None:
                assert f"{row['low']:.3f} to {row['high']:.3f}" in shown
    (alone,) = gate.as_json(gate.judge(appetite(limit()), [game(530, 1000)]))["limits"]
    assert alone["trials"] == alone["judgements"][0]["trials"]
    said = gate.as_text(gate.judge(appetite(limit()), [game(530, 1000)]))
    assert f"{alone['trials']:,} trials" in " ".join(said)


KINDS = ("inference", "mechanism", "membership", "layers", "guards", "recording")
WORDS = st.sampled_from(["group", "sex", "membership", "the inputs", "*", "", HOSTILE])
MEASURED = ["advantage", "auroc", "tpr_at_1%", "information", "epsilon", "success", "ssim", "mse"]
LIMITS = st.fixed_dictionaries(
    {
        "secret": WORDS,
        "measure": st.sampled_from(MEASURED),
        "at_most": st.floats(-0.1, 1.1) | st.sampled_from([0, 1, 0.5]),
    },
    optional={
        "game": st.sampled_from(["*", "attribute", "membership", "guard", "layers"]),
        "confidence": st.floats(0.45, 1.02) | st.just(1 - 1e-15),
        "adversary": st.sampled_from(["adaptive", "static", "any"]),
        "defense": st.sampled_from(["none", "Sign", "DPSGD", {"name": "Sign", "x": [1, {"y": 2}]}]),
        "delta": st.floats(0, 1),
        "releases": st.sampled_from(["shown", "training"]),
        "neighbours": st.sampled_from(["replace", "add or remove"]),
    },
)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(
    st.lists(LIMITS, max_size=3),
    st.none() | st.fixed_dictionaries({"epsilon": st.floats(-1, 9)}),
    st.lists(st.sampled_from(KINDS), unique=True),
    st.booleans(),
)
def test_any_appetite_and_any_real_results_give_a_verdict_or_one_sentence(limits, declared, kinds, failed):
    results = [one for name in kinds for one in golden(name)] + [game(30, 40, defense=SIGN)]
    results += [fail(results[0])] if failed else []
    try:
        wanted = gate.parse(tomli_w.dumps({"limit": limits} | ({"declared": declared} if declared else {})))
        told = gate.judge(wanted, results)
    except PlanError as error:
        assert "\n" not in str(error)
        assert str(error).endswith(".")
        return
    assert told.exit_code in (PASS, FAIL, OPEN)
    json.dumps(gate.as_json(told), allow_nan=False)
    assert len(gate.as_text(told)) > len(limits)
    for one in told.limits:
        if one.combined == "pass":
            assert all(j.measured == "pass" or j.declared == "pass" for j in one.judgements)
            assert not any(j.reading.failure for j in one.judgements)
        for judgement in one.judgements:
            if judgement.measured == "pass":
                assert judgement.high <= one.limit.at_most
                assert judgement.number.bound == "estimate"
            if judgement.measured == "fail":
                assert judgement.low > one.limit.at_most


@pytest.mark.parametrize("name", KINDS)
def test_every_reading_of_a_result_says_where_it_comes_from(name):
    for one in golden(name):
        readings = read(one)
        assert readings
        assert all(r.key == one.key and r.seed == one.seed and r.secret and r.kinds for r in readings)
        assert all(bool(r.failure) == bool(one.error) for r in readings)
        for row in (row for r in readings for row in r.measured.values()):
            assert all(end is None or math.isfinite(end) for end in (row.value, row.low, row.high))
