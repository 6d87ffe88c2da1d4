"""The page of games and of audits of a mechanism: its numbers are the results', in words of their own kind,
and nothing in the data becomes markup."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import Page, cell, fail, game, grid, measure, refuses, transcript
from scipy import stats

from leakscope import Transcript, tpr_at_fpr
from leakscope.audits.inference.page import POINTS, tell, too_few
from leakscope.audits.inference.request import TRIED, list_defenses
from leakscope.audits.inference.settings import MARKS, average_setting, draw_frontier, group_settings
from leakscope.audits.mechanism import page as mechanism
from leakscope.core.errors import ArgumentError
from leakscope.report import page as report
from leakscope.report import pages
from leakscope.run import experiment

PRUNING, DPSGD = {"name": "Pruning", "rate": 0.99}, {"name": "DPSGD", "clip": 1.0, "noise": 8.0}


def tables(shown: Page) -> list[list[list[str]]]:
    """The rows of the table right under each figure."""
    under = r"</figure>\s*<details class=\"data\">.*?<tbody>(.*?)</tbody>"
    rows = [re.findall(r"<tr>(.*?)</tr>", body, re.S) for body in re.findall(under, shown.html, re.S)]
    return [[re.findall(r"<td>(.*?)</td>", row) for row in table] for table in rows]


def page(*results, **options) -> Page:
    return Page(report.render(results, **{"plan": "", "title": "Audit", **options}))


def alter(result, *, cell=None, **found):
    """A measured result with a few things changed, for a rule of its readers."""
    changed = result.cell.model_copy(update=cell or {})
    told = result.found.model_copy(update=found)
    return result.model_copy(update={"cell": changed, "key": changed.key(result.seed), "found": told})


def ask(result, **secret):
    return alter(result, secret=result.found.secret.model_copy(update=secret))


def setting(defense=None, *, rate=0.9, accuracy=0.8, aware=True, n=20_000, **cell):
    return game(rate=rate, accuracy=accuracy, defense=defense, adaptive=aware, n=n, **cell)


@pytest.fixture(scope="session")
def noisy():
    return experiment.run(cell("game", defense=DPSGD), 0)


# Nothing of the data becomes markup, and the page is whole


@pytest.mark.parametrize(
    "results", [[], [game()], [fail(game())], [game(), fail(game("age"))], grid(20, seeds=2)]
)
def test_every_tag_is_closed_and_every_link_leads_somewhere_on_the_page(results):
    shown = page(*results)
    ids = [attrs["id"] for _, attrs in shown.seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for _, attrs in shown.seen if "href" in attrs} <= set(ids)
    assert not re.findall(r"https?:|url\(|@import|src=", shown.html)
    assert ("No results yet" in shown.text) == (not results)


def test_every_chart_is_named_reachable_and_followed_by_its_table(noisy):
    canary = measure("canary")
    shown = page(
        setting(), setting(PRUNING), noisy, canary, alter(canary, cell={"trials": 41}, crafted=False)
    )
    assert shown.html.count("<figure>") == len(tables(shown))
    for chart in re.findall(r"<svg[^>]*role=\"img\"[^>]*>.*?</svg>", shown.html, re.S):
        assert re.search(r"role=\"img\"[^>]*><title>[^<]+</title><desc>[^<]+</desc>", chart)
        assert 'tabindex="0"' in chart or 'class="scene"' in chart  # which has no marks to reach


def test_the_same_results_in_any_order_give_the_same_page():
    results = [*grid(7, seeds=2), fail(game("age")), measure("canary"), measure("canary", seed=1)]
    once = page(*results).html
    random.Random(0).shuffle(results)
    assert page(*results).html == once


@pytest.mark.parametrize("columns", [("sex",), tuple(f"a column with a long name, {i}" for i in range(50))])
def test_fifty_cells_stay_under_300_kilobytes(columns):
    shown = page(*grid(50, columns, seeds=3))
    assert len(shown.html.encode()) < 300_000
    assert shown.html.count('<table class="measures') == 50


def test_five_thousand_cells_stay_under_a_megabyte_and_a_long_plan_is_named_and_not_quoted():
    html = report.render(grid(5_000), plan=report.quote_plan(f'name = "{"x" * 200_000}"'), title="Many")
    assert len(html.encode()) < 1_000_000
    assert "4,800 more settings" in html
    assert "200,009 characters" in html
    frontiers = [draw_frontier(group) for group in group_settings(grid(300))]
    assert all(len(f.drawn) == MARKS and f.drawn[0].shape == 0 for f in frontiers)


# What each number says


def test_secrets_of_one_column_are_told_apart_by_kind_and_by_data():
    inside = ask(
        game(
            data={"name": "adult", "without": ["sex"]},
            game={"name": "Inference", "secret": "sex", "batch": 4},
        ),
        kind="property",
    )
    names = {row[0] for row in tables(page(game(), inside))[0]}
    assert names == {"sex (attribute)", "sex (property)"}
    files = [game(data={"name": "csv", "path": f"/{folder}/t.csv"}) for folder in "ab"]
    assert len(group_settings(files)) == 2
    other = page(game(), game(data={"name": "health"})).text
    assert "sex (attribute, adult)" in other
    assert "sex (attribute, health)" in other


RANKED = torch.arange(400) % 2
SEVERITIES = {
    "severe": transcript(360, 400),
    "substantial": transcript(650, 1000),
    "slight": transcript(1080, 2000),
    "ranking": Transcript(RANKED, torch.stack([0.7 - 0.1 * RANKED, 0.3 + 0.1 * RANKED], 1), torch.full((2,), 0.5)),
    "inconclusive": transcript(20, 40),
    "none": transcript(10_000, 20_000),
}  # fmt: skip


@pytest.mark.parametrize("word", SEVERITIES)
def test_severity_follows_the_lower_limit_and_never_hides_a_ranking(word):
    (verdict,) = tell([game(played=SEVERITIES[word])]).verdicts
    assert verdict.severity == word


def test_the_worst_secret_comes_first_and_a_failure_is_never_a_number():
    results = [
        game("low", rate=0.6),
        fail(game("broken"), "no records"),
        game("high"),
        game("middle", rate=0.8),
    ]
    shown = report.order_verdicts(tell(results).verdicts)
    assert [verdict.about.split()[0] for verdict in shown] == ["high", "middle", "low", "broken"]
    assert shown[-1].severity == "failed"
    text = page(results[1]).text
    assert "no records" in text
    assert "of cases" not in text


def test_a_failed_seed_is_named_and_is_in_no_number():
    kept, lost = game(), fail(game(seed=1), "no records")
    one = average_setting([kept, lost])
    assert one.scores.success.value == kept.found.scores.success.value
    assert one.failures == ((1, "no records"),)
    assert "Seed 1 failed and is in no number here" in page(kept, lost).text


def test_one_seed_keeps_its_interval_and_several_have_students():
    runs = [game(seed=i, rate=rate) for i, rate in enumerate((0.9, 0.88, 0.913, 0.904))]
    own, shown = runs[0].found.scores.auroc, average_setting(runs[:1]).scores.auroc
    assert (shown.value, shown.low, shown.high, shown.method) == (own.value, own.low, own.high, own.method)
    values = np.array([2 * run.found.scores.success.value - 1 for run in runs])
    low, high = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    mean = average_setting(runs).scores.advantage
    assert (mean.value, mean.low, mean.high) == pytest.approx((values.mean(), low, high))
    assert mean.std == pytest.approx(values.std(ddof=1))
    text = page(*runs).text
    assert "400 trials per seed, 4 seeds" in text
    assert "Student's t over 4 seeds" in text
    far = average_setting([game(rate=1.0), game(rate=0.55, seed=1)]).scores.success
    assert far.high == 1.0
    same = average_setting([game(), game().model_copy(update={"seed": 1})]).scores.success
    assert (same.low, same.high) == pytest.approx(
        (game().found.scores.success.low, game().found.scores.success.high)
    )


def test_the_tables_under_the_figures_hold_the_data():
    one = measure("game")
    found, (overview, roc, rounds) = one.found, tables(page(one))
    gain = found.scores.advantage
    assert overview[0][2:5] == [f"{value:.3f}" for value in (gain.value, gain.low, gain.high)]
    measured = {(f"{100 * fpr:.3g}%", f"{100 * tpr:.1f}%") for fpr, tpr in found.roc}
    assert {tuple(row) for row in roc} <= measured
    assert len(roc) <= POINTS
    for i, (row, both) in enumerate(zip(rounds, found.rounds, strict=True), start=1):
        alone, so_far = both.single.auroc, both.accumulated.auroc
        spans = [f"{e.low:.3f} to {e.high:.3f}" for e in (alone, so_far)]
        assert row == [str(i), f"{alone.value:.3f}", spans[0], f"{so_far.value:.3f}", spans[1]]


@pytest.mark.parametrize(("kinds", "fpr"), [(2, 0.001), (2, 0.01), (3, 0.01)])
def test_too_few_trials_are_said_to_be_so_and_one_more_is_enough(kinds, fpr):
    """A perfect adversary has a lower limit above zero from the said number of others on, not before."""

    def play(others):
        """With so many trials of other values for every value."""
        secrets = torch.arange(kinds).repeat_interleave(others // (kinds - 1))
        guesses = torch.eye(kinds, dtype=torch.float64)[secrets]
        return Transcript(secrets, guesses, torch.full((kinds,), 1 / kinds, dtype=torch.float64))

    one = ask(game(played=play(20)), values=tuple("abc"[:kinds]), chances=(1 / kinds,) * kinds)
    row = average_setting([one])
    scores = dict(row.scores.present())
    _, without, needed = too_few(row, scores[f"tpr_at_{100 * fpr:g}%"], fpr)
    assert tpr_at_fpr(play((without - 1) // (kinds - 1) * (kinds - 1)), fpr=fpr).low == 0.0
    assert tpr_at_fpr(play(without + without % (kinds - 1)), fpr=fpr).low > 0.0
    assert needed == math.ceil(without / (1 - 1 / kinds if kinds > 2 else 0.5))
    assert f"on average {needed:,} in all" in page(one).text


def test_only_who_knows_the_defense_is_said_to_know_it_and_only_people_who_are_split_to_be():
    words = "It knows which defense is in place and all its settings"
    assert words in page(setting(PRUNING)).text
    assert words not in page(setting(), setting(PRUNING, aware=False)).text
    whole, loose = game(data={"name": "adult", "by": "patient"}), game("race")
    assert "the people in them (patient): nobody is in two" in page(whole).text
    assert "except for race (attribute)" in page(whole, loose).text


# Defenses


def test_a_frontier_needs_two_defenses_or_strengths_and_its_table_holds_its_data():
    one, other = setting(PRUNING), setting(PRUNING | {"rate": 0.5})
    drawn = {1: [setting()], 2: [one, setting(PRUNING, aware=False)], 3: [setting(), one], 4: [one, other]}
    groups = {key: draw_frontier(*group_settings(results)) for key, results in drawn.items()}
    assert [key for key, found in groups.items() if found] == [3, 4]
    cheap = setting(PRUNING, rate=0.52, accuracy=0.7)
    rows = next(t for t in tables(page(setting(), cheap)) if t[0][0] == "1" and len(t[0]) == 8)
    e = cheap.found.scores.advantage
    assert rows[1][1:3] == ["Pruning (rate 0.99), adversary aware", "70.0%"]
    assert rows[1][4:7] == ["10.0%", f"{e.value:.3f}", f"{e.low:.3f} to {e.high:.3f}"]


def test_the_best_defense_is_sought_among_adversaries_who_know_it():
    weak, strong = PRUNING | {"rate": 0.5}, PRUNING
    results = [
        setting(),
        setting(weak, rate=0.7),
        setting(strong, rate=0.8),
        setting(strong, rate=0.5, aware=False),
    ]
    (group,) = group_settings(results)
    assert group.best_defended.cell.defense == weak
    (verdict,) = tell(results).verdicts
    assert "Pruning (rate 0.5), right in 70" in " ".join(verdict.notes)
    unaware = [setting(), setting(PRUNING, rate=0.5, aware=False)]
    assert not draw_frontier(*group_settings(unaware)).tried
    assert "none is shown to hold" in page(*unaware).text


def test_the_cheapest_defense_that_holds_against_the_strongest_attack_on_it_is_named():
    dear, cheap = (
        setting(DPSGD, rate=0.51, accuracy=0.6),
        setting(DPSGD | {"noise": 4.0}, rate=0.52, accuracy=0.7),
    )
    leaky = setting(PRUNING, accuracy=0.79)
    found = draw_frontier(*group_settings([setting(), dear, cheap, leaky]))
    assert [mark.row.cell.defense for mark in found.holding] == [cheap.cell.defense, dear.cell.defense]
    assert found.holding[0].loss == pytest.approx(0.1)
    stronger = setting(DPSGD | {"noise": 4.0}, rate=0.8, accuracy=0.7, attack={"name": "NoiseAware"})
    found = draw_frontier(*group_settings([setting(), dear, cheap, stronger]))
    assert [mark.row.cell.defense for mark in found.holding] == [dear.cell.defense]
    ranked = game(played=SEVERITIES["ranking"], defense=PRUNING)
    assert not draw_frontier(*group_settings([setting(), ranked])).holding
    assert "Its ranking still tells: AUROC" in page(setting(), ranked).text


def test_names_of_cells_do_not_hide_the_undefended_model():
    free, defended = (
        setting(id="free", figure=["fig6"]),
        setting(DPSGD, rate=0.5, accuracy=0.7, id="dp", note="n"),
    )
    text = page(free, defended).text
    assert "−10.0 points" in text
    assert not re.search("id free|figure fig|note n", text)


@pytest.mark.parametrize(
    ("defense", "said"),
    [
        (DPSGD, "Success rate at most"),
        ({"name": "FlowerLocalDp", "clip": 1.0, "sensitivity": 1.0, "epsilon": 1.0}, "Success rate at most"),
        (PRUNING, "adds no noise to what is released"),
    ],
)
def test_bounds_and_epsilon_are_of_what_was_shown_and_the_training_stands_apart(defense, said):
    one = experiment.run(cell("game", defense=defense), 0)
    text, found = page(one).text, one.found
    assert said in text
    assert ("adds no noise" in text) == (not found.bounds.noise)
    shown, training = found.guarantee.shown, found.guarantee.training
    if shown is None:
        assert "No ε holds for what the adversary saw." in text
    else:
        assert f"2 rounds of the same 4 records: ε = {pages.promised(shown.added)}" in text
        assert f"apart from what this adversary saw: ε = {pages.promised(training.added)}" in text


def test_over_seeds_the_weakest_bound_and_epsilon_stand_and_a_missing_one_means_none(noisy):
    weaker = noisy.found.bounds.model_copy(update={"advantage": 0.4})
    larger = noisy.found.guarantee.model_copy(
        update={"shown": replace(noisy.found.guarantee.shown, replaced=9.0)}
    )
    runs = [noisy, alter(noisy, bounds=weaker, guarantee=larger)]
    assert average_setting(runs).bounds.advantage == 0.4
    assert average_setting(runs).guarantee.shown.replaced == 9.0
    none = [
        noisy,
        alter(noisy, bounds=weaker.model_copy(update={"advantage": None}), guarantee=type(larger)()),
    ]
    assert average_setting(none).bounds.advantage is None
    assert average_setting(none).guarantee.shown is None


@pytest.mark.parametrize(("bound", "ticks"), [(0.31, 1), (1.0, 0), (None, 0)])
def test_a_bound_below_one_is_a_tick_on_the_strip(noisy, bound, ticks):
    limits = noisy.found.bounds.model_copy(update={"advantage": bound})
    shown = page(alter(noisy, bounds=limits))
    assert shown.html.count('class="bound"/>') == ticks
    assert ("rules nothing out" in shown.text) == (bound == 1.0)


def test_a_certified_epsilon_is_never_rounded_up_and_a_promised_one_never_down():
    below = {5.369: "5.36", 0.01999: "0.0199", 12.39: "12.3", 7.0: "7", 0.0: "0"}
    above = {5.361: "5.37", 0.01991: "0.02", 7.0: "7", 2841.2: "2850", 0.0: "0"}
    assert {value: pages.certified(value) for value in below} == below
    assert {value: pages.promised(value) for value in above} == above


# Audits of a mechanism


def certify(low, **changes):
    """A measured audit, had it certified so much."""
    canary = measure("canary")
    estimate = replace(canary.found.certified, low=low, value=low, high=max(low, 0.8))
    return alter(canary, certified=estimate, **changes)


def test_an_audit_says_what_it_certifies_and_never_that_a_step_is_private():
    nothing, something = (
        mechanism.tell([certify(0.0)]).verdicts[0],
        mechanism.tell([certify(0.536)]).verdicts[0],
    )
    assert (nothing.severity, something.severity) == ("inconclusive", "certified")
    assert "does not show that the step is private" in nothing.sentence
    assert "NOT better than (epsilon = 0.536, delta = 1e-5)-private for sex" in something.sentence
    promised = f"guarantee is {pages.significant(measure('canary').found.exact)}"
    assert promised in nothing.sentence
    assert mechanism.tell([fail(certify(0.1))]).verdicts[0].severity == "failed"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"low": 0.8}, "the most that so many trials can certify"),
        ({"low": 0.1, "distance": 3.6}, "are 3.6 apart, more than the clip"),
        ({"low": 0.5, "exact": 0.4}, "More is certified than the guarantee allows"),
    ],
)
def test_an_audit_says_what_is_odd_about_it(changes, words):
    assert words in page(certify(**changes)).text
    assert words not in page(certify(0.1)).text


def test_over_seeds_an_audit_claims_the_least_and_a_failed_seed_is_named():
    runs = [
        certify(0.5),
        certify(0.4).model_copy(update={"seed": 1}),
        certify(0.6, exact=300.0).model_copy(update={"seed": 2}),
    ]
    ((ledger,),) = (attribute.audits for attribute in mechanism.group_attributes(runs))
    assert ledger.certified("certified").low == 0.4
    assert ledger.largest("exact") == 300.0
    assert "with each of 3 seeds" in page(*runs).text
    assert "Seed 1 failed" in page(runs[0], fail(runs[1])).text


def test_histograms_hold_every_trial_and_several_audits_share_a_chart_of_epsilon():
    canary = measure("canary")
    for n in (len(canary.found.histogram.h0), 1_000):
        many = {
            "edges": tuple(i / n for i in range(n + 1)),
            "h0": (1.0,) * n,
            "h1": tuple(map(float, range(n))),
        }
        (table,) = tables(page(alter(canary, histogram=canary.found.histogram.model_copy(update=many))))
        assert len(table) <= mechanism.BINS
        assert [sum(float(row[k].replace(",", "")) for row in table) for k in (2, 3)] == [n, sum(range(n))]
    three = [certify(low, cell={"trials": 40 + i}, clip=4.0 - i) for i, low in enumerate((0.7, 0.5, 0.0))]
    shown = page(*three, certify(0.2, cell={"trials": 50}, crafted=False))
    charts = [c for c in re.findall(r"<svg class=\"chart\".*?</svg>", shown.html, re.S) if "log scale" in c]
    assert len(charts) == 1
    ledger = next(table for table in tables(shown) if len(table[0]) == 14)
    assert [row[1] for row in ledger][:1] == ["4.0"]
    assert "log scale" not in page(canary).html
    assert "Crafted record" in shown.text
    assert "Sampled record" in shown.text


def test_fifty_audits_stay_under_300_kilobytes_and_leave_other_results_alone():
    many = [certify(0.5, cell={"trials": 40 + i}, std=0.05 + 0.01 * i) for i in range(50)]
    shown = page(*many)
    assert len(shown.html.encode()) < 300_000
    assert shown.html.count("Certified, any") >= 1
    alone, together = page(game(), setting(PRUNING)).text, page(game(), setting(PRUNING), many[0]).text
    body = alone[alone.index("At a glance") : alone.index("What was assumed")]
    assert body in together


@pytest.mark.parametrize("told", [True, 7, "x2", {"a": 1}, None])
def test_a_forged_cell_that_lists_nothing_is_a_page_all_the_same(told):
    one = game()
    changed = {"game": one.cell.game | {"known": told}, "attack": {"name": "Strongest", "attacks": told}}
    forged = one.model_copy(update={"cell": one.cell.model_copy(update=changed)})
    assert "sex" in report.render([forged], plan="", title="")


def test_which_attacks_were_tried_tells_no_setting_apart():
    """Two attacks were tried without a defense and three with one: a row is called by its defense."""

    def tried(*names, **changes):
        parts = [{"name": name} for name in names]
        return game(attack={"name": "Strongest", "attacks": parts}, **changes)

    rows = [tried("Joint", "Posterior"), tried("Joint", "Posterior", "NoiseAware", defense={"name": "Sign"})]
    (group,) = group_settings(rows)
    assert [row.differs for row in group.rows] == ["", ""]
    other = game(attack={"name": "Posterior"}, defense={"name": "Sign"})
    (group,) = group_settings([*rows, other])
    assert sum("Strongest" in row.differs for row in group.rows) == 2


def test_a_page_says_where_no_attack_could_be_chosen():
    parts = [{"name": "Joint"}, {"name": "Posterior"}]
    one = game(attack={"name": "Strongest", "attacks": parts})
    assert "too few public records to choose" in tell([one]).body
    assert "too few public records to choose" not in tell([game()]).body


# The first page: what would help is what this run measured, and what it did not test is said


def helps(*results) -> str:
    return " ".join(tell(results).brief.helps)


def test_what_would_help_is_a_defense_that_holds_against_who_knows_it_with_its_cost():
    free, safe = setting(rate=0.9, accuracy=0.8), setting(DPSGD, rate=0.5, accuracy=0.7)
    told = helps(free, safe)
    assert told.startswith("DPSGD (clip 1.0, noise 8.0) holds: the advantage is at most 0.0")
    assert re.search(r"70.0% instead of 80.0%: 10.0 points lost \(\d+\.\d to \d+\.\d\)", told)
    assert "10.0 points gained" in helps(setting(accuracy=0.7), setting(DPSGD, rate=0.5, accuracy=0.8))
    for other in (setting(DPSGD, rate=0.8), setting(DPSGD, rate=0.5, n=40)):  # a leak, and too few trials
        assert "No defense that was tried is shown to hold." in helps(free, other)
        assert " holds: " not in helps(free, other)
    assert "none is shown to help" in helps(free, setting(DPSGD, rate=0.5, aware=False))
    assert helps(free) == ""
    assert "No defense was tried, so this run cannot say what would help." in page(free).text


def test_a_defense_under_which_nothing_is_learned_is_no_answer():
    told = helps(setting(rate=0.9, accuracy=0.8), setting(DPSGD, rate=0.5, accuracy=0.5))
    assert told.startswith("DPSGD (clip 1.0, noise 8.0) is no answer yet: it keeps the advantage at 0.0")
    assert "not clearly better than always answering the most common label." in told
    assert " holds: " not in told


def test_the_first_page_says_what_was_not_tested():
    text = page(setting(), setting(DPSGD, rate=0.5)).text
    assert "Not asked: the epsilon of a DP-SGD step; whose records a federation trained on" in text
    assert "The model was trained once." in text
    assert "1 of 2 measurements failed" in page(setting(), fail(setting(DPSGD))).text
    assert "The plan asks for 2 more measurements." in page(setting(), wanted=3).text
    assert "Who sees what" in text


def test_the_word_none_stands_for_no_defense():
    assert list_defenses(["none"]) == []
    assert list_defenses(["Sign", TRIED[0]]) == [{"name": "Sign"}, TRIED[0]]
    refuses(ArgumentError, "must stand alone", list_defenses, ["none", "Sign"])
