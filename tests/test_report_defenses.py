"""What the report says of defenses, bounds and the audit of differential privacy."""

from __future__ import annotations

import copy
import math
import random
import re

import numpy as np
import pytest
from scipy import stats
from test_report import HOSTILE, Tags, estimate, failed, grid, page, result, tables_after_figures

from leakscope import charts, pages, report
from leakscope.sections import frontier, secrets
from leakscope.summary import audits, summarise

PRUNING, DPSGD = {"name": "Pruning", "rate": 0.99}, {"name": "DPSGD", "clip": 2.0, "noise": 0.1}
NO_NOISE = "none: this defense adds no noise to what is released, so nothing bounds what it gives away"


def setting(defense=None, *, aware=True, advantage=0.7, worth=0.9, seed=0, **bounds):
    one = result(defense=defense, adaptive=aware, seed=seed)
    one["estimates"]["advantage"] = estimate("advantage", advantage)
    one["utility"]["auroc"] = estimate("auroc", worth)
    return one | bounds


def bounded(advantage=0.31, *, information=0.2, half=0.05):
    spread = {"low": information - half, "high": information + half, "method": "log loss"}
    return {
        "information": estimate("mutual information", information) | spread,
        "information_bound": None if advantage is None else 0.8,
        "accuracy_bound": None if advantage is None else 0.77,
        "advantage_bound": advantage,
        "method": None if advantage is None else "Fano",
    }


def certificate(low, high=7.2):
    return {"name": "epsilon", "value": low + 0.4, "low": low, "high": high, "level": 0.95, "n": 100_000}


def audit(attribute="sex", *, low=5.3, clip=2.0, std=0.1, crafted=True, seed=0, **facts):
    table = {
        "attribute": attribute,
        "values": ["Female", "Male"],
        "statistic": "likelihood ratio",
        "delta": 1e-5,
        "crafted": crafted,
        "distance": 1.9,
        "clip": clip,
        "std": std,
        "dimensions": 11102,
        "trials": 100_000,
        "point": 7.4,
        "any": certificate(low),
        "gaussian": certificate(40.0, 61.5),
        "saturation": 7.2,
        "classical": 96.9,
        "exact": 284.0,
        "histogram": {"edges": [-2.0, -1.0, 0.0, 1.5], "h0": [30, 15, 5], "h1": [4, 16, 30]},
    }
    game = {"name": "AttributeAudit", "attribute": attribute, "crafted": crafted}
    cell = {
        "data": {"name": "adult"},
        "game": game,
        "defense": {"name": "DPSGD", "clip": clip, "noise": std},
    }
    return {"key": "51ab" * 8, "seed": seed, "cell": cell, "audit": table | facts}


def front(results):
    (secret,) = secrets(summarise(results))
    return frontier(secret)


@pytest.mark.parametrize(
    ("results", "drawn"),
    [
        ([setting()], False),
        ([setting(PRUNING)], False),
        ([setting(PRUNING), setting(PRUNING, aware=False)], False),
        ([setting(), setting(PRUNING)], True),
        ([setting(PRUNING), setting(PRUNING | {"rate": 0.9})], True),
    ],
)
def test_a_frontier_needs_two_different_defenses_or_strengths(results, drawn):
    assert (front(results) is not None) == drawn
    assert ("What each defense buys and costs" in Tags(page(results)).text) == drawn


def test_the_table_under_the_frontier_holds_the_data():
    free, defended = (
        setting(worth=0.9),
        setting(DPSGD, advantage=0.05, worth=0.84, bounds=bounded(information=0.01)),
    )
    table = next(t for t in tables_after_figures(page([free, defended])) if t[0][0] == "1")
    assert table == [
        ["1", "no defense", "0.900", "0.880 to 0.920", "0.000", "0.700", "0.680 to 0.720", "–"],
        [
            "2",
            "DPSGD (clip 2.0, noise 0.1), adversary aware",
            *("0.840", "0.820 to 0.860", "0.060", "0.050", "0.030 to 0.070", "0.310"),
        ],
    ]


def test_utility_is_accuracy_where_a_setting_has_no_task_auroc():
    defended = setting(PRUNING)
    del defended["utility"]["auroc"]
    assert front([setting(), defended]).measure == "accuracy"
    assert "Advantage against task accuracy" in Tags(page([setting(), defended])).text


def test_the_cheapest_defense_that_holds_is_named_with_its_cost():
    results = [
        setting(worth=0.9),
        setting(DPSGD, advantage=0.07, worth=0.8),
        setting(DPSGD | {"noise": 0.05}, advantage=0.078, worth=0.85),
        setting(PRUNING, advantage=0.5, worth=0.89),
    ]
    text = Tags(page(results)).text
    assert (
        "Of 3 defense settings tried against an adversary who knows it, 2 keep the advantage at 0.1" in text
    )
    assert "The cheapest: DPSGD noise 0.05 , advantage at most 0.098 (upper limit), task AUROC 0.850" in text
    assert "0.850, a loss of 0.050." in text


def test_a_defense_holds_only_if_it_holds_against_the_strongest_attack_on_it():
    weak, strong = setting(DPSGD, advantage=0.0, worth=0.8), setting(DPSGD, advantage=0.8, worth=0.8)
    strong["cell"]["attack"] = {"name": "Posterior", "reduce": {"name": "PCA"}}
    text = Tags(page([setting(), weak, strong])).text
    assert "None of 1 defense setting tried keeps the advantage" in text
    assert "The nearest: DPSGD , up to 0.820 (upper limit)." in text


def test_a_defense_that_only_met_an_unaware_adversary_is_not_said_to_hold():
    results = [setting(), setting(PRUNING, aware=False, advantage=0.0)]
    assert "so none is shown to hold" in Tags(page(results)).text
    results.append(setting(DPSGD, advantage=0.02))
    assert "1 further defense setting met an unaware adversary only" in Tags(page(results)).text


def test_names_of_cells_do_not_hide_the_undefended_model():
    free, defended = setting(worth=0.9), setting(DPSGD, advantage=0.0, worth=0.8)
    free["cell"] |= {"id": "property", "figure": ["fig6", "fig7"]}
    defended["cell"] |= {"id": "property, DPSGD", "figure": ["fig7"], "note": "the default"}
    text = Tags(page([free, defended])).text
    assert "a loss of 0.100" in text
    assert not re.search("id property|figure fig|note the", text)


def test_the_frontier_says_which_corner_is_ideal_and_fills_what_the_adversary_knows():
    results = [setting(), setting(PRUNING, advantage=0.6, worth=0.89), setting(DPSGD, aware=False, worth=0.8)]
    html = page(results)
    assert "Ideal is the bottom right corner" in html
    assert "adversary knows the defense" in html
    chart = next(c for c in re.findall(r"<svg class=\"chart\".*?</svg>", html, re.S) if "goal" in c)
    assert (chart.count("dot first"), chart.count("dot hollow")) == (2, 1)


def test_words_that_do_not_fit_beside_a_mark_become_numbers_in_a_legend():
    apart = [
        (1, "left", 1, True, 0.6, (0.9, 0.85, 0.95), "tip"),
        (2, "right", 2, True, 0.9, (0.1, 0.0, 0.2), "tip"),
    ]
    chart, numbered = charts.frontier(apart, goal=0.1, percent=False, axis="task AUROC", title="t")
    assert numbered == []
    assert ">left</text>" in chart
    crowd = [
        (i, f"a defense with a long name {i}", 1, True, 0.9, (0.5, 0.4, 0.6), "tip") for i in range(1, 7)
    ]
    chart, numbered = charts.frontier(crowd, goal=0.1, percent=False, axis="task AUROC", title="t")
    assert len(numbered) >= 4
    assert all(f">{number}</text>" in chart for number in numbered)


def test_the_numbers_of_a_crowded_frontier_are_explained():
    results = [setting(), *(setting(PRUNING | {"rate": i / 40}, advantage=0.6) for i in range(20))]
    html = page(results)
    legend = re.search(r"<div class=\"frontier\">.*?<table>(.*?)</table>", html, re.S)
    assert legend is not None
    assert "Pruning rate" in legend[1]


def test_the_bound_stands_in_the_measures_with_how_it_was_computed():
    text = Tags(page([setting(DPSGD, advantage=0.05, bounds=bounded())])).text
    assert "Bound on the advantage No adversary of any kind can have more. 0.310 Fano" in text
    assert "Success rate at most 77.0%. Information at most 0.8 nats." in text
    assert "0.200 nats (0.289 bits) 0.150 to 0.250" in text


def test_the_guarantee_of_dp_sgd_stands_beside_its_attacks():
    promise = {"delta": 1e-5, "step": 5.3123, "run": 12.341}
    runs = [setting(DPSGD, seed=i, guarantee=promise | {"run": run}) for i, run in enumerate((11.0, 12.341))]
    words = (
        "By its own accounting this run is (ε, δ)-DP with ε = 12.4 and δ = 1e-5"  # the largest, rounded up
    )
    text = Tags(page([setting(), *runs])).text
    assert text.count(words) == 1
    assert "one step whose batch is known has ε = 5.32." in text
    runs[1]["guarantee"] = None
    assert "accounting" not in Tags(page([setting(), *runs])).text
    assert "accounting" not in Tags(page([setting(PRUNING, guarantee=None), setting(DPSGD)])).text


def test_a_promised_epsilon_is_never_rounded_down():
    values = (5.361, 0.01991, 12.31, 7.0, 284.0, 2841.2, 0.0)
    assert [pages.promised(v) for v in values] == ["5.37", "0.02", "12.4", "7", "284", "2850", "0"]


@pytest.mark.parametrize("bounds", [None, bounded(None)])
def test_a_defense_without_noise_is_said_to_have_no_bound(bounds):
    assert NO_NOISE in Tags(page([setting(PRUNING, bounds=bounds)])).text
    assert NO_NOISE not in Tags(page([setting(bounds=bounds)])).text
    assert NO_NOISE not in Tags(page([setting(PRUNING)])).text  # none was sought
    noisy = Tags(page([setting({"name": "Noise", "std": 0.1}, bounds=bounds)])).text
    assert "none: no bound is known for this defense" in noisy


@pytest.mark.parametrize(("bound", "ticks"), [(0.31, 1), (1.0, 0), (0.99999, 0), (None, 0)])
def test_a_bound_below_one_is_a_tick_on_the_strip(bound, ticks):
    html = page([setting(DPSGD, advantage=0.05, bounds=bounded(bound))])
    assert html.count('class="bound"/>') == ticks
    assert ("A tall tick is a bound" in html) == bool(ticks)
    assert ("rules nothing out" in html) == (bound is not None and bound > 0.9)


def test_over_seeds_the_weakest_bound_stands_and_a_missing_one_means_none():
    runs = [setting(DPSGD, advantage=0.05, seed=i, bounds=bounded(b)) for i, b in enumerate((0.2, 0.4, 0.3))]
    (section,) = summarise(runs)
    assert section.bounds.advantage == 0.4
    runs[1]["bounds"] = None
    (section,) = summarise(runs)
    assert section.bounds.advantage is None


def test_information_over_seeds_is_students_t_and_may_be_negative():
    values = np.array([-0.1, 0.02, -0.3, 1.7])
    runs = [setting(seed=i, bounds=bounded(None, information=v)) for i, v in enumerate(values)]
    (section,) = summarise(runs)
    low, high = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    shown = section.information
    assert (shown.value, shown.low, shown.high) == pytest.approx((values.mean(), low, high))
    assert shown.low < 0 < 1 < shown.high
    (equal,) = summarise([setting(seed=i, bounds=bounded(None, information=-0.2)) for i in range(3)])
    assert (equal.information.low, equal.information.high) == pytest.approx((-0.25, -0.15))


def test_the_threat_model_says_what_an_aware_adversary_knows():
    words = "It knows which defense is in place and all its settings"
    assert words in Tags(page([setting(PRUNING)])).text
    assert words not in Tags(page([setting(), setting(PRUNING, aware=False)])).text


def test_an_audit_says_what_it_certifies_and_what_the_mechanism_promises():
    assert (
        "From 100,000 noisy gradients of one crafted record an auditor certifies that one step is NOT better "
        "than (epsilon = 5.3, delta = 1e-5)-private for sex , at 95% confidence; the mechanism's own guarantee "
        "is 284 (exact), 96.9 by the classical formula, which holds for epsilon up to 1 only."
    ) in Tags(page([audit()])).text


def test_a_certified_epsilon_is_never_rounded_up():
    assert [pages.certified(v) for v in (5.369, 0.01999, 12.39, 7.0, 0.0)] == [
        "5.36",
        "0.0199",
        "12.3",
        "7",
        "0",
    ]


def test_an_audit_that_certifies_nothing_does_not_say_that_the_step_is_private():
    text = Tags(page([audit(low=0.0, crafted=False)])).text
    assert "of one sampled record an auditor certifies nothing about sex" in text
    assert "That does not show that the step is private" in text
    assert "NOT better" not in text


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"low": 7.2}, "the most that so many trials can certify"),
        ({"distance": 3.6}, "The two clipped gradients are 3.6 apart, more than the clip"),
        ({"low": 6.0, "exact": 4.0}, "More is certified than the guarantee allows"),
        ({"exact": None, "classical": None}, "guarantee is not known"),
        ({"any": None}, "no number: the audit has none"),
    ],
)
def test_an_audit_says_what_is_odd_about_it(facts, words):
    assert words in Tags(page([audit(**facts)])).text
    assert words not in Tags(page([audit()])).text


def test_each_certificate_names_its_assumption():
    text = Tags(page([audit()])).text
    assert "assumes nothing about the mechanism" in text
    assert "assumes a Gaussian trade-off, which is true for one DP-SGD step" in text


def test_over_seeds_an_audit_claims_the_least():
    (one,) = audits([audit(seed=0, low=5.0), audit(seed=1, low=4.0), audit(seed=2, low=6.0, exact=300.0)])
    assert one.certified("any").low == 4.0
    assert one.largest("exact") == 300.0
    assert "epsilon = 4," in Tags(page([audit(seed=0), audit(seed=1, low=4.0)])).text
    assert "with each of 2 seeds" in Tags(page([audit(seed=0), audit(seed=1, low=4.0)])).text


def test_the_tables_under_the_histograms_hold_the_data():
    html = page([audit()])
    (histogram,) = tables_after_figures(html)
    table = audit()["audit"]["histogram"]
    edges = [f"{edge:.4f}".replace("-", "−") for edge in table["edges"]]
    assert histogram == [
        [edges[i], edges[i + 1], str(table["h0"][i]), str(table["h1"][i])] for i in range(len(edges) - 1)
    ]


def test_a_histogram_of_many_bins_is_joined_without_losing_a_trial():
    n = 1000
    many = {"edges": [i / n for i in range(n + 1)], "h0": [1] * n, "h1": list(range(n))}
    (table,) = tables_after_figures(page([audit(histogram=many)]))
    assert len(table) <= report.BINS
    assert sum(int(row[2].replace(",", "")) for row in table) == n
    assert sum(int(row[3].replace(",", "")) for row in table) == sum(range(n))


def test_several_audits_share_a_chart_of_epsilon_with_its_table_and_its_limit():
    html = page([audit(clip=c, low=low) for c, low in ((4.0, 7.0), (2.0, 5.3), (1.5, 0.0))])
    chart = next(c for c in re.findall(r"<svg class=\"chart\".*?</svg>", html, re.S) if "log scale" in c)
    assert "more cannot be certified with this many trials" in chart
    assert 'class="chance"' in chart
    assert chart.count("tabindex") == 12
    table = next(t for t in tables_after_figures(html) if len(t[0]) == 13)
    assert [row[1] for row in table] == ["4.0", "2.0", "1.5"]
    assert table[1] == [
        *("crafted", "2.0", "0.1", "100,000", "1", "5.300", "7.200", "40.000", "61.500"),
        *("284.000", "96.900", "7.400", "1.900"),
    ]
    assert "log scale" not in page([audit()])


def test_a_crafted_and_a_sampled_record_stand_side_by_side_on_one_axis():
    sampled = audit(crafted=False, low=0.5)
    sampled["audit"]["histogram"] = {"edges": [-9.0, 0.0, 1.0], "h0": [3, 4], "h1": [4, 3]}
    html = page([sampled, audit()])
    plots = [p for p in html.split('<div class="plots">')[1:] if "Crafted record" in p]
    assert len(plots) == 1
    assert plots[0].index("Crafted record") < plots[0].index("Sampled record")
    charts = re.findall(r"<svg class=\"chart\".*?</svg>", plots[0], re.S)
    assert all(">−9.0" in chart and ">1.5" in chart for chart in charts)


def test_audits_do_not_disturb_the_other_results():
    alone = Tags(page([result(), setting(PRUNING)])).text
    together = Tags(page([result(), setting(PRUNING), audit()])).text
    start, end = alone.index("Verdict"), alone.index("What was assumed")
    assert alone[start:end] in together
    assert "1 audit of differential privacy" in together
    only = Tags(page([audit()])).text
    assert "Verdict" not in only
    assert "honest-but-curious" not in only
    assert "The auditor" in only


def test_a_failed_audit_is_a_failure_of_the_audit():
    broken = {key: audit()[key] for key in ("key", "seed", "cell")} | {"error": "PlanError: no noise"}
    text = Tags(page([broken])).text
    assert "Seed 0 failed: PlanError: no noise" in text
    assert "certifies that" not in text
    assert "is not known: the measurement failed" not in text


@pytest.mark.parametrize("key", sorted(audit()["audit"]))
def test_any_part_of_an_audit_may_be_missing(key):
    one, two = audit(), audit(clip=4.0)
    del one["audit"][key], two["audit"][key]
    Tags(page([one]))
    assert not re.search(r"\b(nan|inf|None)\b", Tags(page([one, two])).text)


def test_an_attribute_of_many_values_is_not_given_two_names():
    text = Tags(page([audit(values=["A", "B", "C"])])).text
    assert "one value another" in text


def test_no_name_in_a_defense_or_an_audit_becomes_markup():
    table = audit(HOSTILE, statistic=HOSTILE, values=[HOSTILE, HOSTILE])
    table["cell"]["data"]["name"] = HOSTILE
    broken = {key: table[key] for key in ("key", "cell")} | {"seed": 1, "error": HOSTILE}
    hostile = [
        setting({"name": HOSTILE, HOSTILE: i}, aware=i % 2 == 0, bounds=bounded() | {"method": HOSTILE})
        for i in range(4)
    ]
    other = copy.deepcopy(table)
    other["audit"]["clip"] = 4.0
    tags = Tags(page([setting(), *hostile, table, other, broken]))
    assert not {"script", "img"} & {tag for tag, _ in tags.seen}
    assert not [name for _, attrs in tags.seen for name in attrs if name.startswith("on")]


def test_every_chart_is_named_described_and_followed_by_its_table():
    html = page([setting(), setting(PRUNING), audit(), audit(clip=4.0), audit(crafted=False)])
    assert html.count("<figure>") == len(tables_after_figures(html))
    for chart in re.findall(r"<svg[^>]*role=\"img\"[^>]*>.*?</svg>", html, re.S):
        assert re.search(r"role=\"img\"[^>]*><title>[^<]+</title><desc>[^<]+</desc>", chart)
        assert 'tabindex="0"' in chart


def test_the_page_of_defenses_and_audits_is_the_same_whatever_the_order():
    results = [setting(), setting(PRUNING), setting(DPSGD, bounds=bounded()), failed()]
    results += [audit(clip=c, crafted=k, seed=s) for c in (1.0, 2.0) for k in (True, False) for s in (0, 1)]
    html = page(results)
    random.Random(1).shuffle(results)
    assert page(copy.deepcopy(results)) == html


def test_fifty_cells_with_bounds_and_fifty_audits_stay_under_300_kilobytes():
    bounds = grid(50)
    for i, one in enumerate(bounds):
        one["bounds"] = bounded(0.9, information=0.1 + 0.01 * (i % 3))
    assert len(page(bounds).encode()) < 300_000
    edges = [math.sin(i / 99) for i in range(101)]
    spread = {"edges": edges, "h0": list(range(100)), "h1": list(range(100, 0, -1))}
    many = [audit(std=0.05 + 0.01 * i, histogram=spread) for i in range(50)]
    html = page(many)
    assert len(html.encode()) < 300_000
    assert html.count("an auditor certifies") == 50
