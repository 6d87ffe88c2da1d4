"""The gate: a pass needs upper limits, a fail lower ones, and an epsilon's pass an accountant."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from test_report import HOSTILE, Tags
from test_report_defenses import audit
from test_report_membership import attacked, federation

from leakscope import Transcript, advantage, auroc, epsilon, gating, pages, store, svg, tpr_at_fpr
from leakscope.errors import PlanError
from leakscope.experiment import measure
from leakscope.gating import evidence
from leakscope.gating.readings import readings
from leakscope.measures.information import mutual_information
from leakscope.plan import parse as plan_of

PASS, FAIL, OPEN = 0, 1, 3


def limit(**settings):
    return {"secret": "sex", "measure": "advantage", "at_most": 0.1} | settings


def appetite(*limits, **rest):
    return gating.parse(tomli_w.dumps({"limit": list(limits)} | rest))


def transcript(hits, n, seed=0):
    """Guesses of a fair coin of which exactly ``hits`` are right, with various confidence."""
    rng = torch.Generator().manual_seed(seed)
    secrets = torch.arange(n) % 2
    right = torch.randperm(n, generator=rng) < hits
    sure = 0.5 + 0.5 * torch.rand(n, generator=rng, dtype=torch.float64).clamp(1e-3, 1 - 1e-3)
    one = torch.where((secrets == 1) == right, sure, 1 - sure)
    return Transcript(secrets, torch.stack([1 - one, one], 1), torch.tensor([0.5, 0.5], dtype=torch.float64))


def game(hits=1000, n=2000, *, seed=0, column="sex", kind="attribute", defense=None, adaptive=True, **rest):
    played = transcript(hits, n, seed=seed)
    cell = {"data": {"name": "adult"}, "game": {"name": "Inference", "secret": column}, "defense": defense}
    found = {"key": f"{hits}-{n}-{seed}", "seed": seed, "cell": cell | {"adaptive": adaptive}}
    secret = {"kind": kind, "column": column, "values": ["a", "b"], "chances": [0.5, 0.5]}
    nats = vars(mutual_information(played))
    return found | {"secret": secret, **measure(played), "bounds": {"information": nats}} | rest


def code(wanted, *results):
    return gating.verdict(wanted, results).exit_code


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_an_advantage_is_judged_by_clopper_and_pearson_alone(share):
    """Every count of 400, against scipy's own one-sided test at 5%."""
    wanted, edge = appetite(limit(at_most=share)), 0.5 + share / 2
    for hits in range(160, 400, 6):
        low = stats.binomtest(hits, 400, edge, "greater").pvalue  # fails: more than the limit
        high = stats.binomtest(hits, 400, edge, "less").pvalue
        expected = FAIL if low < 0.05 else PASS if high <= 0.05 else OPEN
        assert code(wanted, game(hits, 400)) == expected, hits


def test_what_is_computed_again_is_what_the_measures_give_at_that_level():
    played = transcript(700, 1001, seed=3)
    found = {k: evidence.Estimate(**v) for k, v in measure(played)["estimates"].items()}
    nats = mutual_information(played)
    again = {
        advantage: evidence.counted(found["advantage"], base=0.5, hits=700),
        auroc: evidence.ranked(found["auroc"]),
        mutual_information: evidence.normal(nats),
    }
    for level in (0.8, 0.99, 0.9999):
        for measured, one in again.items():
            exact, error = measured(played, level=level), (1 - level) / 2
            assert one.low(error) == pytest.approx(exact.low, abs=1e-6), (measured, level)
            assert one.high(error) == pytest.approx(exact.high, abs=1e-6), (measured, level)


@pytest.mark.parametrize("hits", [0, 460, 480, 500, 700, 1000])
def test_hits_are_found_from_an_advantage_alone(hits):
    found = advantage(transcript(hits, 1000))
    again = evidence.counted(found, base=0.5)
    assert isinstance(again, evidence.Counted)
    most = max(hits, 468)  # an advantage cut at 0 is taken for the most that fits
    assert again.hits == most
    assert stats.binomtest(468, 1000).proportion_ci(0.95).high < 0.5
    assert stats.binomtest(469, 1000).proportion_ci(0.95).high > 0.5


def test_rare_false_alarms_are_computed_again_from_the_curve_never_too_narrow():
    for hits, n, seed in ((900, 1400, 0), (1900, 2000, 1), (2600, 5000, 2)):
        played = transcript(hits, n, seed=seed)
        table = measure(played)
        one = evidence.curved(evidence.Estimate(**table["estimates"]["tpr_at_1%"]), table["roc"], fpr=0.01)
        assert isinstance(one, evidence.Curve)
        for level in (0.9, 0.95, 0.999):
            exact = tpr_at_fpr(played, level=level)
            assert one.low((1 - level) / 2) <= exact.low + 1e-12
            assert one.high((1 - level) / 2) >= exact.high - 1e-12
            assert one.high((1 - level) / 2) - exact.high < 0.06


def test_a_stored_interval_is_good_for_its_own_error_and_no_smaller_one():
    one = federation(attacked(found=(0.02, 0.01, 0.04)))
    wanted = limit(secret="membership", measure="tpr_at_1%", at_most=0.05)
    assert code(appetite(wanted), one) == PASS
    assert code(appetite(wanted | {"confidence": 0.975}), one) == PASS
    assert code(appetite(wanted | {"confidence": 0.98}), one) == OPEN
    told = gating.verdict(appetite(wanted | {"confidence": 0.98}), [one])
    assert "stored at 97.5%" in told.limits[0].decisive.reason
    assert told.limits[0].enough is None


def test_a_surer_interval_beside_it_is_used_where_it_is_needed():
    entry = attacked(found=(0.5, 0.4, 0.6))
    entry["sure"] = {"tpr_at_1%": entry["estimates"]["tpr_at_1%"] | {"level": 0.999, "low": 0.3, "high": 0.7}}
    wanted = limit(secret="membership", measure="tpr_at_1%", at_most=0.35, confidence=0.99)
    assert code(appetite(wanted), federation(entry)) == OPEN
    assert code(appetite(wanted | {"at_most": 0.2}), federation(entry)) == FAIL
    assert code(appetite(wanted | {"at_most": 0.2}), federation(attacked(found=(0.5, 0.4, 0.6)))) == OPEN


def test_errors_are_shared_by_limits_and_seeds_and_for_failing_by_attacks_too():
    runs = [
        game(seed=s, defense=d, column=c)
        for s in (0, 1, 2)
        for d in (None, {"name": "Sign"})
        for c in ("sex", "age")
    ]
    (first, second) = gating.verdict(appetite(limit(), limit(secret="*", confidence=0.9)), runs).limits
    assert first.errors == pytest.approx((0.05 / 2 / 6, 0.05 / 2 / 3))
    assert second.errors == pytest.approx((0.1 / 2 / 12, 0.1 / 2 / 3))


def test_more_seeds_never_make_failing_by_chance_likelier_than_was_asked():
    """At the limit itself, of 4 seeds, fewer than 5% of audits fail and fewer than 5% pass."""
    rng = np.random.default_rng(0)
    wanted, hits = appetite(limit()), rng.binomial(300, 0.55, size=(80, 4))
    base = game(165, 300)
    codes = []
    for row in hits:
        runs = []
        for seed, k in enumerate(row):
            table = {"success": {"value": k / 300, "low": 0, "high": 1, "level": 0.95, "n": 300}}
            gain = advantage(transcript(int(k), 300))
            table |= {"advantage": vars(gain), "auroc": base["estimates"]["auroc"]}
            runs.append(base | {"seed": seed, "estimates": table, "guessing": 0.5})
        codes.append(code(wanted, *runs))
    assert codes.count(FAIL) <= stats.binom.ppf(0.999, 80, 0.05)
    assert codes.count(PASS) <= stats.binom.ppf(0.999, 80, 0.05)


@pytest.mark.parametrize(
    ("hits", "n", "at_most"), [(530, 1000, 0.1), (530, 1000, 0.02), (60, 100, 0.3), (300, 400, 0.45)]
)
def test_as_many_trials_as_are_said_decide_in_nine_audits_of_ten(hits, n, at_most):
    (judged,) = gating.verdict(appetite(limit(at_most=at_most)), [game(hits, n)]).limits
    assert judged.combined == "not enough evidence"
    trials, by = judged.enough
    assert by == "inverting Clopper-Pearson"
    rate, edge = hits / n, 0.5 + at_most / 2
    drawn = np.random.default_rng(1).binomial(trials, rate, 4000)
    which = "less" if rate < edge else "greater"
    wins = {int(k): stats.binomtest(int(k), trials, edge, which).pvalue <= 0.05 for k in set(drawn)}
    assert np.mean([wins[int(k)] for k in drawn]) > 0.9 - 3 * np.sqrt(0.09 / 4000)
    assert trials > n


def test_trials_by_the_normal_approximation_put_the_expected_interval_on_one_side():
    one = auroc(transcript(600, 1000))
    at_most = one.value + 0.02
    (judged,) = gating.verdict(appetite(limit(measure="auroc", at_most=at_most)), [game(600, 1000)]).limits
    trials, by = judged.enough
    assert by == "normal approximation"
    grown = evidence.Ranked(one.value, evidence.ranked(one).effective * trials / 1000, trials)
    assert grown.high(0.05) < at_most
    assert judged.judgements[0].high > at_most


def test_no_number_of_trials_decides_where_the_estimate_is_the_limit():
    (judged,) = gating.verdict(appetite(limit(at_most=0.1)), [game(550, 1000)]).limits
    assert judged.combined == "not enough evidence"
    assert judged.enough is None


def test_an_attack_never_passes_an_epsilon():
    one, wanted = audit(low=0.0, exact=0.5), limit(measure="epsilon", at_most=1.0)
    assert code(appetite(wanted), one) == OPEN
    told = gating.verdict(appetite(wanted), [one])
    assert "never pass" in " ".join(gating.text(told))
    assert code(appetite(wanted, declared={"epsilon": 0.9}), one) == PASS
    assert code(appetite(wanted, declared={"epsilon": 1.1}), one) == OPEN
    assert code(appetite(wanted, declared={"epsilon": 0.9, "delta": 1e-4}), one) == OPEN
    assert code(appetite(wanted, declared={"epsilon": 0.9}), audit(low=0.0, exact=1.2)) == OPEN


def test_a_certified_epsilon_fails_whatever_is_declared():
    one, wanted = audit(low=5.3), limit(measure="epsilon", at_most=3.0)
    assert code(appetite(wanted, declared={"epsilon": 1.0}), one) == FAIL
    assert (
        code(appetite(wanted | {"delta": 1e-4}, declared={"epsilon": 1.0}), one) == OPEN
    )  # of another delta
    unsure = appetite(wanted | {"confidence": 0.99}, declared={"epsilon": 1.0})
    assert code(unsure, audit(low=5.3, exact=None)) == OPEN  # too unsure to fail, and yet no pass


def test_the_accountant_of_a_training_passes_it_and_none_speaks_for_no_defense():
    wanted = appetite(limit(measure="epsilon", at_most=3.0))
    promise = {"delta": 1e-5, "step": 0.1, "run": epsilon.gaussian_epsilon(0.5, 1e-5)}
    dp = {"name": "DPSGD", "noise": 2.0}
    assert promise["run"] < 3
    assert code(wanted, game(defense=dp, guarantee=promise)) == PASS
    assert code(wanted, game(defense=dp, guarantee=promise | {"run": 3.1})) == OPEN
    assert code(appetite(limit(measure="epsilon", at_most=3.0), declared={"epsilon": 1.0}), game()) == OPEN


def test_a_bound_of_the_mechanism_passes_what_trials_leave_open():
    bounds = {"advantage_bound": 0.08, "information_bound": 0.01}
    few, wanted = game(26, 50), appetite(limit())
    assert code(wanted, few) == OPEN
    told = gating.verdict(wanted, [few | {"bounds": few["bounds"] | bounds}])
    assert (told.measured, told.declared, told.combined) == ("not enough evidence", "pass", "pass")
    assert code(wanted, game(50, 50) | {"bounds": bounds}) == FAIL


def test_what_failed_or_is_missing_never_passes(tmp_path):
    wanted, good = appetite(limit(secret="sex")), game(1000, 2000)
    broken = {key: good[key] for key in ("key", "seed", "cell")} | {"error": "no disk."}
    assert code(wanted, good) == PASS
    assert code(wanted, good, broken) == OPEN
    assert code(wanted) == OPEN
    assert code(wanted, good, good | {"seed": 1, "estimates": {"advantage": {"value": float("nan")}}}) == OPEN
    text = 'seeds = [0, 1]\n[[cell]]\ndata = {name = "adult"}\ngame = {name = "Inference", secret = "sex"}\n'
    plan = plan_of(text)
    store.claim(tmp_path, text, plan.digest)
    for seed, expected in ((0, OPEN), (1, PASS)):
        store.save(tmp_path, good | {"key": plan.cell[0].key(seed), "seed": seed})
        assert code(wanted, *gating.results(tmp_path)) == expected
    assert gating.kept(tmp_path) is None
    (tmp_path / gating.APPETITE).write_text(tomli_w.dumps({"limit": [limit()]}))
    assert gating.kept(tmp_path) == gating.verdict(wanted, gating.results(tmp_path))


def test_an_adversary_is_the_one_that_was_asked_for():
    static = game(2000, 2000, defense={"name": "Sign"}, adaptive=False)
    aware = game(1000, 2000, defense={"name": "Sign"})
    assert code(appetite(limit()), static) == OPEN
    assert code(appetite(limit(adversary="static")), static) == FAIL
    assert code(appetite(limit()), static, aware) == PASS
    assert code(appetite(limit(adversary="any")), static, aware) == FAIL
    assert "any" in gating.verdict(appetite(limit()), [static]).limits[0].reason
    recorded = federation()
    recorded["cell"]["game"]["name"] = "RecordingAudit"
    wanted = limit(secret="membership", measure="tpr_at_1%", at_most=0.9)
    assert code(appetite(wanted), recorded) == OPEN
    told = gating.verdict(appetite(wanted | {"adversary": "any"}), [recorded])
    assert told.exit_code == PASS
    assert "does not know of the defense" in " ".join(gating.text(told))


def test_a_defense_is_found_by_name_and_by_its_settings():
    open_, pruned = game(2000, 2000), game(1000, 2000, defense={"name": "Pruning", "rate": 0.9})
    for defense, expected in (
        ("Pruning", PASS),
        ({"name": "Pruning", "rate": 0.9}, PASS),
        ({"name": "Pruning", "rate": 0.5}, OPEN),
        ("none", FAIL),
        ("Sign", OPEN),
    ):
        assert code(appetite(limit(defense=defense)), open_, pruned) == expected, defense
    chained = game(1000, 2000, defense={"name": "Chain", "defenses": [{"name": "Sign"}]})
    assert code(appetite(limit(defense="Sign")), chained) == PASS


def test_layers_and_guards_are_read_too():
    found = {k: vars(v(transcript(1000, 2000))) for k, v in (("advantage", advantage), ("auroc", auroc))}
    nats = vars(mutual_information(transcript(1000, 2000)))
    told = {"secret": "sex", "values": ["a", "b"], "together": found | {"information": nats}}
    leaking = {
        "advantage": vars(advantage(transcript(1900, 2000))),
        "auroc": found["auroc"],
        "information": nats,
    }
    cell = {"data": {"name": "adult"}, "game": {"name": "LayerAudit", "secrets": ["sex"]}, "defense": None}
    run = {"key": "1", "seed": 0, "cell": cell}
    wanted = appetite(limit(game="layers"))
    assert (
        code(wanted, run | {"localisation": {"latent": [told | {"layers": {"fc": told["together"]}}]}})
        == PASS
    )
    assert code(wanted, run | {"localisation": {"latent": [told | {"layers": {"fc": leaking}}]}}) == FAIL
    cell = {
        "data": {"name": "adult"},
        "game": {"name": "GuardAudit", "guard": {"name": "Inf2Guard", "lam": 0.5}},
    }
    stale = {"name": "Stale", "queries": 1, "estimates": {k: leaking[k] for k in found}, "guessing": 0.5}
    entry = {"name": "Network", "queries": 1, "estimates": found, "guessing": 0.5}
    one = {"secret": "attribute", "column": "sex", "attacks": [entry], "stale": stale}
    run = {"key": "2", "seed": 0, "cell": cell, "guarding": {"judged": [one]}}
    assert code(appetite(limit(game="guard")), run) == PASS
    assert code(appetite(limit(game="guard", adversary="any")), run) == FAIL
    assert code(appetite(limit(game="membership")), run) == OPEN


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "[[limit]]"),
        ("limit = 3", "limit"),
        ("[[limit]]\nsecret = 'sex'", "measure is missing"),
        ("[[limit]]\nsecret='a'\nmeasure='advantage'\nat_most=1.5", "at most 1"),
        ("[[limit]]\nsecret='a'\nmeasure='advantage'\nat_most=nan", "at_most"),
        ("[[limit]]\nsecret='a'\nmeasure='advantage'\nat_most=true", "at_most"),
        ("[[limit]]\nsecret='a'\nmeasure='recall'\nat_most=0.5", "'recall'"),
        ("[[limit]]\nsecret='a'\nmeasure='auroc'\nat_most=0.5\nlevel=0.9", "unknown setting 'limit.1.level'"),
        ("[[limit]]\nsecret='a'\nmeasure='auroc'\nat_most=0.5\nconfidence=95", "confidence"),
        ("[[limit", "not valid TOML"),
        ("a = 1" + "0" * 5000, "not valid TOML"),
    ],
)
def test_a_bad_appetite_is_refused_in_one_sentence(text, words):
    with pytest.raises(PlanError, match=re.escape(words)) as caught:
        gating.parse(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def html(verdict):
    environment = pages.template("report.html").environment
    template = '{% from "gate.html" import gate_section with context %}{{ gate_section(gate) }}'
    return environment.from_string(template).render(
        gate=gating.section(verdict), icon=pages.marked(svg.severity)
    )


def test_nothing_in_the_data_or_the_appetite_becomes_markup():
    one = game(1200, 2000, column=HOSTILE, defense={"name": HOSTILE, HOSTILE: HOSTILE})
    broken = {key: one[key] for key in ("key", "seed", "cell")} | {"error": HOSTILE}
    wanted = appetite(limit(secret=HOSTILE, defense=HOSTILE), limit(secret=HOSTILE + "2"))
    page = html(gating.verdict(wanted, [one, broken]))
    assert "<script" not in page
    assert "<img" not in page
    assert HOSTILE in Tags(page).text


def test_the_page_shows_value_interval_limit_and_verdict():
    told = gating.verdict(appetite(limit()), [game(1200, 2000)])
    words = Tags(html(told)).text
    one = told.limits[0].judgements[0]
    for part in ("fail", "0.200", f"{one.low:.3f} to {one.high:.3f}", "0.1", "2,000", "Bonferroni"):
        assert part in words


def test_machines_get_the_words_and_numbers_of_people():
    told = gating.verdict(appetite(limit(), declared={"epsilon": 2.0}), [game(530, 1000)])
    table = json.loads(json.dumps(gating.as_json(told), allow_nan=False))
    assert (table["verdict"], table["exit_code"]) == ("not enough evidence", 3)
    (judged,) = table["limits"]
    assert judged["trials"] == judged["judgements"][0]["trials"] == told.limits[0].enough[0]
    assert f"{judged['trials']:,} trials" in " ".join(gating.text(told))


WORDS = st.sampled_from(["sex", "membership", "*", "", HOSTILE])
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.floats(), WORDS)
TREES = st.recursive(
    VALUES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=6,
)
LIMITS = st.fixed_dictionaries(
    {
        "secret": WORDS,
        "measure": st.sampled_from(["advantage", "auroc", "tpr_at_1%", "information", "epsilon"]),
        "at_most": st.floats(-0.1, 1.1) | st.sampled_from([0, 1, 0.5]),
    },
    optional={
        "game": st.sampled_from(["*", "attribute", "membership", "guard"]),
        "confidence": st.floats(0.45, 1.02) | st.just(1 - 1e-15),
        "adversary": st.sampled_from(["adaptive", "static", "any"]),
        "defense": st.sampled_from(["none", "Sign", {"name": "Sign", "x": [1, {"y": 2}]}]),
        "delta": st.floats(0, 1),
    },
)
ODD = {
    "level": 0.95,
    "n": 3,
    "method": "Clopper-Pearson on the success rate",
    "value": 0.5,
    "low": 0.1,
    "high": 0.9,
}
RESULTS = [game(30, 40), audit(), federation(), game(40, 40, defense={"name": "Sign"})]


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(LIMITS, max_size=3),
    st.none() | st.fixed_dictionaries({"epsilon": st.floats(-1, 9)}),
    TREES,
    TREES,
)
def test_any_appetite_and_any_result_give_a_verdict_or_one_sentence(limits, declared, tree, other):
    document = {"limit": limits} | ({"declared": declared} if declared else {})
    odd = [
        {"key": "k", "seed": 0, "cell": tree, name: other} for name in ("estimates", "membership", "audit")
    ]
    odd.append({"key": "k", "seed": tree, "cell": {"game": tree, "defense": other}, "error": "x"})
    odd.append(RESULTS[0] | {"estimates": {"advantage": ODD, "auroc": ODD, "tpr_at_1%": tree}, "roc": other})
    odd.append(
        {"key": "k", "seed": 1, "cell": {}, "guarding": {"judged": [tree, {"attacks": other, "stale": tree}]}}
    )
    odd.append({"key": "k", "seed": 1, "cell": {}, "localisation": {"latent": [tree, {"layers": other}]}})
    try:
        wanted = gating.parse(tomli_w.dumps(document))
    except PlanError as error:
        assert "\n" not in str(error)
        return
    told = gating.verdict(wanted, [*RESULTS, *odd])
    assert told.exit_code in (PASS, FAIL, OPEN)
    json.dumps(gating.as_json(told), allow_nan=False)
    assert gating.text(told)
    html(told)


def test_every_reading_of_a_result_says_where_it_comes_from():
    for one in RESULTS:
        assert all(r.key == one["key"] and not r.failure for r in readings(one))
