"""Two runs compared: p is right under the null, intervals cover, and the words say what the numbers do."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from builders import Page, fail, game, keep, measure, refuses
from scipy import stats
from statsmodels.stats.multitest import multipletests

from leakscope.core.errors import StoreError
from leakscope.report import comparison
from leakscope.report.comparison import sentences
from leakscope.results import compare as comparing
from leakscope.results.compare import compare, holm, independent, paired, unpaired
from leakscope.results.number import Number

SIMULATED = 1_000
COVERED = (
    stats.binom.ppf([0.0005, 0.9995], SIMULATED, 0.95) / SIMULATED
)  # where 95% shows, but for 1 in 1,000


def estimate(value, low, high, level=0.95):
    given = {"key": "k", "id": "", "cell": "c", "data": "d", "game": "g", "secret": "s", "attack": "a"}
    given |= {"defense": "", "adaptive": None, "seed": 0}
    return Number(**given, measure="m", value=value, low=low, high=high, level=level, n=100)


def run(column="sex", *, values, name="", **changes):
    """A cell over as many seeds as it has success rates; guessing is right in 67 of 100."""
    return [
        game(column, rate=value, n=10_000, prior=0.33, seed=seed, id=name or column, **changes)
        for seed, value in enumerate(values)
    ]


def flips(d):
    """The p of all sign flips, by trying them."""
    sums = [
        abs(sum(s * x for s, x in zip(signs, d, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(d))
    ]
    return sum(total >= abs(sum(d)) - 1e-12 for total in sums) / len(sums)


@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_a_paired_gap_is_students_interval_and_the_p_of_all_sign_flips(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(0.8, 0.1, n), rng.normal(0.9, 0.1, n)
    gap, test = paired(a, b), stats.ttest_rel(b, a)
    assert gap.value == pytest.approx(test.statistic * stats.sem(b - a))
    assert (gap.low, gap.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert gap.p == pytest.approx(flips(b - a))
    assert gap.seeds == n


def test_beyond_ten_seeds_the_p_is_students():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.8, 0.1, 13), rng.normal(0.9, 0.1, 13)
    assert paired(a, b).p == pytest.approx(stats.ttest_rel(b, a).pvalue)


@pytest.mark.parametrize("n", [6, 20])
def test_under_the_null_a_paired_p_is_calibrated_and_the_interval_covers_95_percent(n):
    """Seeds that are easy for one run are easy for the other: only their difference is compared."""
    rng = np.random.default_rng(7)
    shared = rng.normal(0.8, 0.2, (SIMULATED, n, 1))
    runs = shared + rng.normal(0, 0.03, (SIMULATED, n, 2))
    gaps = [paired(one[:, 0], one[:, 1]) for one in runs]
    ps = np.array([gap.p for gap in gaps])
    for alpha in (0.05, 0.1, 0.25):
        assert np.mean(ps <= alpha) <= stats.binom.ppf(0.9995, SIMULATED, alpha) / SIMULATED
    steps = 2.0 ** (1 - n) if n <= 10 else 0  # an exact p has that many values
    assert np.mean(ps <= 0.25) >= stats.binom.ppf(0.0005, SIMULATED, 0.25 - steps) / SIMULATED
    covered = np.mean([gap.low <= 0 <= gap.high for gap in gaps])
    assert COVERED[0] <= covered <= COVERED[1]


def test_differences_that_are_not_normal_keep_the_exact_p():
    rng = np.random.default_rng(3)
    draws = rng.choice([-1, 1], (SIMULATED, 8)) * rng.exponential(1, (SIMULATED, 8)) ** 3
    ps = np.array([paired(np.zeros(8), d).p for d in draws])
    assert np.mean(ps <= 0.05) <= stats.binom.ppf(0.9995, SIMULATED, 0.05) / SIMULATED


def test_seeds_of_their_own_are_compared_by_welch_with_the_coverage_it_claims():
    rng = np.random.default_rng(11)
    a, b = rng.normal(0.8, 0.05, (SIMULATED, 6)), rng.normal(0.7, 0.15, (SIMULATED, 9))
    gaps = [unpaired(x, y) for x, y in zip(a, b, strict=True)]
    reference = stats.ttest_ind(b[0], a[0], equal_var=False)
    assert gaps[0].p == pytest.approx(reference.pvalue)
    assert (gaps[0].low, gaps[0].high) == pytest.approx(tuple(reference.confidence_interval(0.95)))
    assert np.mean([gap.low <= -0.1 <= gap.high for gap in gaps]) >= COVERED[0]


def test_one_run_each_covers_the_difference_of_two_rates_and_errs_in_at_most_5_percent():
    """Exact intervals of two binomial rates: the difference's own is then conservative."""
    rng = np.random.default_rng(5)
    for rates in ((0.8, 0.8), (0.95, 0.9), (0.5, 0.45)):
        hits = rng.binomial(500, rates, (SIMULATED, 2))
        each = {}
        for k in np.unique(hits):
            interval = stats.binomtest(int(k), 500).proportion_ci(0.95)
            each[k] = estimate(k / 500, interval.low, interval.high)
        gaps = [independent(each[a], each[b]) for a, b in hits]
        truth = rates[1] - rates[0]
        assert np.mean([gap.low <= truth <= gap.high for gap in gaps]) >= COVERED[0]
        if truth == 0:
            assert (
                np.mean([gap.p <= 0.05 for gap in gaps])
                <= stats.binom.ppf(0.9995, SIMULATED, 0.05) / SIMULATED
            )


def test_one_run_each_has_a_p_below_5_percent_exactly_where_its_interval_leaves_zero():
    rng = np.random.default_rng(9)
    for _ in range(300):
        a, b = rng.uniform(0.2, 0.8, 2)
        halves = rng.uniform(0.01, 0.2, 4)
        gap = independent(
            estimate(a, a - halves[0], a + halves[1]), estimate(b, b - halves[2], b + halves[3])
        )
        assert (gap.p < 0.05) == (gap.low > 0 or gap.high < 0)
    symmetric = independent(estimate(0.5, 0.4, 0.6), estimate(0.7, 0.6, 0.8))
    assert (symmetric.low, symmetric.high) == pytest.approx((0.2 - math.sqrt(0.02), 0.2 + math.sqrt(0.02)))


def test_a_number_without_limits_has_a_difference_and_nothing_more():
    """A certified epsilon has no upper limit."""
    result = measure("canary")
    (one,) = [d for d in compare([result], [result]).differences if d.measure == "epsilon_any"]
    assert (one.gap.low, one.gap.high, one.gap.p, one.reading) == (None, None, None, "open")


def test_holm_is_the_step_down_correction():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([]) == []
    ps = np.random.default_rng(0).uniform(0, 0.2, 20) ** 2
    assert holm(ps.tolist()) == pytest.approx(multipletests(ps, method="holm")[1].tolist())


def test_the_words_count_the_cells_and_begin_with_them():
    eight = np.linspace(-0.01, 0.01, 8)
    a = [r for c in ("sex", "race", "age") for r in run(c, values=0.9 + eight)]
    b = (
        run("sex", values=0.8 + eight[::-1] / 2)
        + run("race", values=0.97 + eight / 3)
        + run("age", values=0.9 + eight[::-1])
    )
    found = compare(a, b)
    assert (
        sentences(found)[0]
        == "B gives away less than A in 1 of 3 cells, more in 1; in 1 no difference is shown."
    )
    assert [one.reading for one in found.headlines] == ["open", "more", "less"]
    assert all(one.measure == "advantage" for one in found.headlines)
    mirrored = compare(b, a)
    assert sentences(mirrored)[0] == sentences(found)[0]
    assert [-one.gap.value for one in mirrored.headlines] == pytest.approx(
        [one.gap.value for one in found.headlines]
    )


def test_too_few_seeds_are_said_to_be_so_and_the_wanted_number_is_enough():
    def words(n):
        d = np.linspace(0, 0.001, n)
        a = [r for c in ("sex", "race") for r in run(c, values=0.9 + d)]
        b = [r for c in ("sex", "race") for r in run(c, values=0.8 + d**2)]
        return sentences(compare(a, b))

    few = [s for s in words(5) if s.startswith("So few seeds")]
    assert few == [
        "So few seeds cannot show any difference: their smallest possible p is 0.062, and 2 headlines would "
        "need 7 shared seeds."
    ]
    assert "uncorrected: less in 2 of 2" in " ".join(words(5))
    assert words(6)[0].startswith("B gives away neither less nor more than A")
    assert words(7)[0] == "B gives away less than A in 2 of 2 cells."


def test_what_one_run_each_can_say_is_said():
    told_words = " ".join(sentences(compare(run(values=[0.9]), run(values=[0.75]))))
    assert told_words.startswith("B gives away less than A in 1 of 1 cell.")
    assert "It covers the chance of the trials alone" in told_words


def test_an_advantage_is_compared_before_it_is_cut_at_zero():
    low, high = 0.60 + np.linspace(-0.02, 0.02, 7), 0.64 + np.linspace(-0.02, 0.02, 7)
    found = compare(run(values=low), run(values=high)).differences
    (one,) = [difference for difference in found if difference.measure == "advantage"]
    assert one.gap.value == pytest.approx(0.04 / 0.33, rel=1e-3)


def test_cells_are_matched_by_id_and_else_by_what_they_are():
    named = compare(run(values=[0.9]), run(values=[0.8], defense={"name": "Sign"}, adaptive=True))
    (pair,) = named.pairs
    assert pair.label == "sex"
    assert pair.differs[1] == "defense Sign"
    unnamed = [game(), game("race"), game("age")], [game(seed=1), game("race")]
    found = compare(*unnamed)
    assert [pair.label for pair in found.pairs] == ["adult, race, no defense", "adult, sex, no defense"]
    assert found.only == (("adult, age, no defense",), ())
    twice = [game(id="same"), game("race", id="same")]
    assert len(compare(twice, twice).pairs) == 2  # an id that two cells have names neither


def test_what_only_one_has_and_what_failed_is_listed():
    a = [*run(values=[0.9]), fail(game("age"))]
    (only,) = run(values=[0.9])
    less = only.found.model_copy(update={"scores": only.found.scores.model_copy(update={"auroc": None})})
    b = [only.model_copy(update={"found": less}), *run("race", values=[0.9])]
    lines = " ".join(comparison.text(compare(a, b, names=("old", "new"))))
    assert lines.startswith("A is old, B is new.")
    assert "Only A has 1 cell: adult, age, no defense." in lines
    assert "Only B has 1 cell: race." in lines
    assert "sex: only A measures sex, auroc." in lines


def test_nothing_in_common_is_said():
    found = compare([game()], [game("race")])
    assert sentences(found) == ["The two have no cell in common, so nothing can be compared."]
    assert "nothing can be compared" in Page(comparison.render(found)).text


@pytest.mark.parametrize("kind", ["game", "share", "canary", "members", "layers", "guard"])
def test_every_kind_of_result_has_one_headline_a_secret(kind):
    """By the first measure that it has; of layers and attacks by the highest, which favours neither."""
    result = measure(kind)
    found = compare([result], [result])
    secrets = {one.secret for one in found.differences if one.about == "leakage"}
    assert sorted(one.secret for one in found.headlines) == sorted(secrets)
    assert {one.reading for one in found.headlines} == {"open"}


def test_a_mean_squared_error_that_rises_gives_away_less():
    one = comparing.Difference("leakage", "x", "", "mse", comparing.Gap(0.01, 0.5, 0.4, 0.6, 0.001, 5, ""))
    assert one.direction == "less"


def test_seeds_that_agree_exactly_do_not_claim_an_interval_of_no_width():
    (one,) = compare(run(values=[0.9] * 4), run(values=[0.8] * 4)).headlines
    assert one.gap.low < one.gap.value < one.gap.high
    assert one.gap.p == pytest.approx(2 / 2**4)
    (same,) = compare(run(values=[0.9] * 4), run(values=[0.9] * 4)).headlines
    assert (same.gap.value, same.gap.p) == (0.0, 1.0)


def test_the_command_says_it_as_words_as_json_and_as_a_page(leakscope, tmp_path):
    a, b = keep(tmp_path / "a", run(values=[0.9])), keep(tmp_path / "b", run(values=[0.75]))
    plain = leakscope("compare", a, b, "-o", tmp_path)
    assert plain.code == 0
    assert plain.out.splitlines()[:2] == ["A is a, B is b.", "B gives away less than A in 1 of 1 cell."]
    assert "B gives away less than A" in (tmp_path / "comparison.html").read_text(encoding="utf-8")
    found = json.loads(leakscope("compare", a, b, "--json").out)
    (headline,) = [d for d in found["cells"][0]["differences"] if d["headline"]]
    assert headline["value"] == pytest.approx(-0.15 / 0.33)
    assert headline["low"] < headline["value"] < headline["high"] < 0
    assert headline["reading"] == "less"
    assert (tmp_path / "comparison.html").exists()


def test_a_folder_without_results_is_refused_in_one_sentence(tmp_path):
    good = keep(tmp_path / "good", run(values=[0.9]))
    for bad, words in (
        (tmp_path / "none", "has no plan.toml"),
        (keep(tmp_path / "empty", []), "holds no result yet"),
    ):
        refuses(StoreError, words, comparing.read, good, bad)
