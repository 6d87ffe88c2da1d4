"""The report page: its numbers are the results' numbers, and nothing in the data can become markup."""

from __future__ import annotations

import copy
import math
import random
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from scipy import stats

from leakscope import Transcript, report, tpr_at_fpr
from leakscope.summary import summarise

PLAN = '[data]\nname = "adult"\n'
HOSTILE = "<script>alert(1)</script>\"' onload=alert(2) <img src=x onerror=alert(3)> {{ 7 * 7 }} &amp;"
VOID = {"meta", "br", "img", "input", "link", "hr"}


def estimate(name, value, half=0.02):
    low, high = max(0.0, value - half), min(1.0, value + half)
    return {
        "name": name,
        "value": value,
        "low": low,
        "high": high,
        "level": 0.95,
        "n": 1000,
        "method": "exact",
    }


def measures(shift=0.0):
    values = {"success": 0.91, "advantage": 0.7, "auroc": 0.95, "tpr_at_1%": 0.6, "tpr_at_0.1%": 0.3}
    return {name: estimate(name, value + shift) for name, value in values.items()}


def result(column="sex", *, seed=0, kind="attribute", defense=None, adaptive=False, shift=0.0, name="adult"):
    starts = {"single": 0.61, "accumulated": 0.71}
    return {
        "format": 1,
        "key": "9f3c" * 8,
        "seed": seed,
        "cell": {
            "data": {"name": name},
            "model": {"name": "MLP"},
            "game": {"name": "Inference", "secret": column, "batch": 16},
            "attack": {"name": "Posterior"},
            "defense": defense,
            "adaptive": adaptive,
            "rounds": 3,
        },
        "secret": {
            "kind": kind,
            "column": column,
            "values": ["F", "Male"],
            "chances": [0.33, 0.67],
            "batch": 16,
        },
        "estimates": measures(shift),
        "guessing": 0.67,
        "rounds": [
            {seen: {"auroc": estimate("auroc", at + 0.05 * i + shift)} for seen, at in starts.items()}
            for i in range(3)
        ],
        "roc": [[float(x), float(x**0.3)] for x in np.linspace(0, 1, 701)],
        "utility": {
            "accuracy": estimate("accuracy", 0.85),
            "auroc": estimate("auroc", 0.9),
            "majority": 0.76,
        },
        "data": {"name": name, "label": "income", "records": 48842, "train": 5000, "public": 1000},
        "model": {"name": "MLP", "parameters": 4018},
        "versions": {"leakscope": "0.1.0"},
        "seconds": 12.3,
    }


def failed(column="age", reason="DataError: nothing to infer"):
    whole = result(column)
    return {key: whole[key] for key in ("format", "key", "seed", "cell")} | {"error": reason}


def grid(cells=50, columns=("sex", "race", "marital-status")):
    """Defenses of growing strength for each column in turn, three seeds each."""
    defenses = [{"name": "Pruning", "rate": i / cells} if i >= len(columns) else None for i in range(cells)]
    return [
        result(
            columns[i % len(columns)],
            seed=seed,
            defense=defense,
            adaptive=i % 2 == 0,
            shift=shift - 0.002 * i,
        )
        for i, defense in enumerate(defenses)
        for seed, shift in enumerate((0.0, 0.001, 0.003))
    ]


def page(results, **kwargs):
    return report.render(results, **{"plan": PLAN, "title": "Audit", **kwargs})


class Tags(HTMLParser):
    """Every tag in order, checked to be closed in the order it was opened."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.words = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice in <{tag}>"
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def tables_after_figures(html):
    """The rows of the table right under each figure."""
    under = r"</figure>\s*<details class=\"data\">.*?<tbody>(.*?)</tbody>"
    rows = [re.findall(r"<tr>(.*?)</tr>", body, re.S) for body in re.findall(under, html, re.S)]
    return [[re.findall(r"<td>(.*?)</td>", row) for row in table] for table in rows]


def hostile():
    whole = result(HOSTILE, name=HOSTILE, defense={"name": HOSTILE, HOSTILE: HOSTILE}, adaptive=True)
    whole["cell"]["attack"] = {"name": HOSTILE}
    whole["cell"]["game"]["known"] = [HOSTILE]
    whole["cell"]["published"] = {"advantage": HOSTILE}
    whole["secret"] |= {"values": [HOSTILE, HOSTILE], "value": HOSTILE}
    whole["data"]["label"] = whole["model"]["name"] = whole["versions"][HOSTILE] = HOSTILE
    whole["key"] = HOSTILE
    for measure in whole["estimates"].values():
        measure["method"] = HOSTILE
    kinds = [copy.deepcopy(whole) for _ in range(4)]
    for one, kind in zip(kinds, ("property", "distribution", "user", HOSTILE), strict=True):
        one["secret"]["kind"] = kind
        one["cell"]["game"]["name"] = kind
    return [whole, *kinds, failed(HOSTILE, HOSTILE)]


def test_no_name_in_the_data_becomes_markup():
    html = page(hostile(), plan=HOSTILE, title=HOSTILE)
    tags = Tags(html)
    assert not {"script", "img", "iframe", "object", "link"} & {tag for tag, _ in tags.seen}
    assert not [name for _, attrs in tags.seen for name in attrs if name.startswith("on")]
    assert "{{ 7 * 7 }}" in tags.text
    assert "<script>alert(1)</script>" in tags.text
    assert "alert(1)" in html
    assert "<script" not in html


def test_the_page_asks_nothing_of_any_other_place():
    html = page([result(), *grid(6), failed()])
    assert not re.findall(r"https?:|url\(|@import|src=", html)
    assert all(attrs["href"].startswith("#") for _, attrs in Tags(html).seen if "href" in attrs)


@pytest.mark.parametrize("results", [[], [result()], [failed()], [result(), failed()], grid(20)])
def test_every_tag_is_closed_in_order(results):
    Tags(page(results))


def test_anchors_are_unique_and_lead_somewhere():
    seen = Tags(page(grid(9))).seen
    ids = [attrs["id"] for _, attrs in seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for _, attrs in seen if "href" in attrs} <= set(ids)


def test_zero_results_give_a_page_that_says_so():
    text = Tags(page([])).text
    assert "No results yet" in text
    assert "Verdict" not in text


def test_the_verdict_says_the_numbers_of_the_data():
    text = Tags(page([result()])).text
    assert "sees 3 updates of 16 records tells the sex of that group right in 91% of cases" in text
    assert "(95% interval 89–93%); guessing without the updates: 67%." in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("property", "a column that is not part of the training data"),
        ("distribution", "in which of 6 ranges the share of Male"),
        ("user", "picks the right person of 6 ( sex )"),
    ],
)
def test_each_kind_of_secret_is_told_in_its_own_words(kind, words):
    one = result(kind=kind)
    one["secret"]["chances"] = [1 / 6] * 6
    assert words in Tags(page([one])).text


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("attribute", ["F", "Male"], "Chances: F (33%), Male (67%)."),
        ("distribution", ["Male"], "Chances: none (33%), 0–100% (67%)."),
    ],
)
def test_each_kind_of_secret_states_its_chances(kind, values, words):
    one = result(kind=kind)
    one["secret"]["values"] = values
    assert words in Tags(page([one])).text


def test_the_ranges_of_a_distribution_are_those_it_is_drawn_from():
    one = result(kind="distribution")
    one["secret"] |= {"values": ["Male"], "chances": [1 / 6] * 6}
    ranges = "none (17%), 0–20% (17%), 20–40% (17%), 40–60% (17%), 60–80% (17%), 80–100% (17%)."
    assert f"Chances: {ranges}" in Tags(page([one])).text


@pytest.mark.parametrize("kind", ["attribute", "property", "distribution", "user", ""])
def test_a_file_of_ones_own_goes_by_its_own_name(kind):
    name = f"{HOSTILE.replace('/', ':')}.csv"
    one = result(kind=kind, name="csv")
    one["cell"]["data"]["path"] = f"/home/me/tables/{name}"
    tags = Tags(page([one]))
    assert f"{'of' if kind == 'property' else 'in'} {name}" in tags.text
    assert "/home/me" not in tags.text
    assert "script" not in {tag for tag, _ in tags.seen}


def test_files_of_one_name_in_two_folders_stay_two_secrets():
    two = [result(name="csv"), result(name="csv")]
    for one, folder in zip(two, ("a", "b"), strict=True):
        one["cell"]["data"]["path"] = f"/{folder}/t.csv"
    assert "2 secrets, 2 settings" in Tags(page(two)).text


def test_rows_of_an_attribute_and_a_property_of_one_column_say_which_is_which():
    attribute, inside = result(), result(kind="property")
    inside["cell"]["data"]["without"] = ["sex"]
    attribute["utility"]["accuracy"] = estimate("accuracy", 0.9)
    for more in ([], [result(defense={"name": "Sign"})]):
        html = page([attribute, inside, *more])
        names = [row[0] for row in tables_after_figures(html)[0]]
        assert set(names) == {"sex (attribute)", "sex (property)"}
        tasks = Tags(html).text.split("What the model is worth")[1].split("What was assumed")[0]
        assert "sex (attribute)" in tasks
        assert "sex (property)" in tasks
    other = result(name="health")
    assert "sex (attribute, adult)" in page([result(), other])
    assert "sex (attribute, health)" in page([result(), other])


@pytest.mark.parametrize(("kinds", "fpr"), [(2, 0.001), (2, 0.01), (3, 0.01)])
def test_too_few_trials_are_said_to_be_so_and_one_more_is_enough(kinds, fpr):
    """A perfect adversary has a lower limit above zero from the said number of others on, not before."""

    def low(others):
        """With so many trials of other values for every value."""
        secrets = torch.arange(kinds).repeat_interleave(others // (kinds - 1))
        guesses = torch.eye(kinds, dtype=torch.float64)[secrets]
        return tpr_at_fpr(Transcript(secrets, guesses, torch.full((kinds,), 1 / kinds)), fpr=fpr).low

    one, name = result(), f"tpr_at_{100 * fpr:g}%"
    chances = [0.25, *[0.75 / (kinds - 1)] * (kinds - 1)]
    one["secret"] |= {"values": list("abc")[:kinds], "chances": chances}
    one["estimates"][name] |= {"low": 0.0, "high": 1.0, "n": 100}
    (section,) = summarise([one])
    parts, without, needed = report.too_few(section, section.estimates[name], fpr)
    assert parts == (4 if kinds == 2 else 12)
    assert low((without - 1) // (kinds - 1) * (kinds - 1)) == 0.0
    assert low(without + without % (kinds - 1)) > 0.0
    assert needed == math.ceil(without / (0.25 if kinds == 2 else 0.625))
    text = Tags(page([one])).text
    assert "0.0% to 100.0% too few trials to tell" in text
    arithmetic = f"ln((1 − 0.95) / {parts}) / ln(1 − {fpr}) = {without:,} trials without"
    assert arithmetic in text
    assert f"on average {needed:,} in all (--trials), and there were 100." in text
    one["estimates"][name]["n"] = needed
    assert "too few trials" not in Tags(page([one])).text


def test_side_knowledge_that_does_not_reach_a_game_is_said_not_to():
    told, untold = result(), result(kind="distribution")
    told["cell"]["game"]["known"] = ["age"]
    text = Tags(page([told, untold])).text
    assert "For sex (attribute): the batch's means of age." in text
    assert "(distribution): none; --known reaches attributes and properties only." in text
    assert "--known reaches" not in Tags(page([told])).text
    assert "--known reaches" not in Tags(page([untold])).text


def test_the_page_says_whether_people_or_records_were_split():
    by_person, by_record = result(), result("race")
    by_person["cell"]["data"]["by"] = "patient"
    assert "are disjoint. To repeat" in Tags(page([by_record])).text
    assert "so are the people in them (patient): nobody is in two" in Tags(page([by_person])).text
    mixed = Tags(page([by_person, by_record])).text
    assert "(patient) are so too, except for race (attribute): there records are split one by one" in mixed


@pytest.mark.parametrize(
    ("adaptive", "words"), [(True, "knows of this defense"), (False, "does not know of")]
)
def test_the_verdict_names_the_defense_and_who_knows_of_it(adaptive, words):
    text = Tags(page([result(defense={"name": "Pruning", "rate": 0.99}, adaptive=adaptive)])).text
    assert "Under Pruning (rate 0.99)" in text
    assert words in text


def test_the_best_defense_is_sought_among_adversaries_who_know_it():
    weak, strong = {"name": "Pruning", "rate": 0.5}, {"name": "Pruning", "rate": 0.99}
    results = [
        result(),
        result(defense=weak, adaptive=True, shift=-0.2),
        result(defense=strong, adaptive=True, shift=-0.1),
        result(defense=strong, adaptive=False, shift=-0.4),
    ]
    assert "aware of the defense: Pruning (rate 0.5), right in 71% of cases" in Tags(page(results)).text


@pytest.mark.parametrize(
    ("low", "high", "auroc", "word"),
    [
        (0.5, 0.9, 0.9, "severe"),
        (0.1, 0.3, 0.9, "substantial"),
        (0.01, 0.3, 0.9, "slight"),
        (0.0, 0.05, 0.98, "ranking"),
        (0.0, 0.3, 0.49, "inconclusive"),
        (0.0, 0.05, 0.49, "none"),
        (-0.1, 0.05, 0.49, "none"),
    ],
)
def test_severity_follows_the_lower_limit_and_never_hides_a_ranking(low, high, auroc, word):
    one = result()
    one["estimates"]["advantage"] |= {"low": low, "high": high}
    one["estimates"]["auroc"] |= {"low": auroc}
    (section,) = summarise([one])
    assert section.severity == word


def test_secrets_come_worst_first_whatever_the_order_of_the_results():
    results = [result("low", shift=-0.5), failed("broken"), result("high"), result("middle", shift=-0.3)]
    text = Tags(page(results)).text
    positions = [
        text.index(f"{words}") for words in ("the high of", "the middle of", "the low of", "about broken")
    ]
    assert positions == sorted(positions)
    random.Random(0).shuffle(results)
    assert Tags(page(results)).text == text


def test_a_failed_cell_is_shown_as_a_failure_and_never_as_a_number():
    text = Tags(page([failed()])).text
    assert "the measurement failed" in text
    assert "DataError: nothing to infer" in text
    assert "of cases" not in text


def test_a_failed_seed_is_named_and_left_out_of_the_mean():
    broken = failed("sex") | {"seed": 1}
    (section,) = summarise([result(), broken])
    assert section.estimates["success"].value == 0.91
    assert section.failures == ((1, "DataError: nothing to infer"),)
    assert "Seed 1 failed and is in no number here" in Tags(page([result(), broken])).text


def test_a_measurement_that_is_not_finite_is_a_failure():
    one = result()
    one["estimates"]["success"]["value"] = float("nan")
    (section,) = summarise([one])
    assert section.severity == "failed"
    assert "nan" not in page([one]).lower()


def test_every_figure_is_followed_by_its_table():
    html = page([result(), result("race", defense={"name": "Sign"})])
    assert html.count("<figure>") == len(tables_after_figures(html)) == 5


def test_the_tables_under_the_figures_hold_the_data():
    one = result()
    overview, roc, rounds = tables_after_figures(page([one]))
    advantage = one["estimates"]["advantage"]
    expected = [f"{advantage[key]:.3f}" for key in ("value", "low", "high")]
    assert overview == [["sex (attribute)", "no defense", *expected, "91.0%", "67.0%"]]
    measured = {(f"{100 * fpr:.3g}%", f"{100 * tpr:.1f}%") for fpr, tpr in one["roc"]}
    assert {tuple(row) for row in roc} <= measured
    assert 20 < len(roc) <= report.POINTS
    assert roc[-1] == ["100%", "100.0%"]
    for i, row in enumerate(rounds):
        alone, so_far = (one["rounds"][i][seen]["auroc"] for seen in ("single", "accumulated"))
        told = [f"{alone['low']:.3f} to {alone['high']:.3f}", f"{so_far['low']:.3f} to {so_far['high']:.3f}"]
        assert row == [str(i + 1), f"{alone['value']:.3f}", told[0], f"{so_far['value']:.3f}", told[1]]


def test_every_measure_stands_with_its_interval_and_what_no_leakage_looks_like():
    text = Tags(page([result()])).text
    assert "91.0% 89.0% to 93.0% 67.0%" in text
    assert "0.700 0.680 to 0.720 0.0" in text
    assert "0.950 0.930 to 0.970 0.5" in text
    assert "60.0% 58.0% to 62.0% 1.0%" in text
    assert "30.0% 28.0% to 32.0% 0.1%" in text


def test_one_seed_keeps_its_own_interval():
    (section,) = summarise([result()])
    own, shown = result()["estimates"]["auroc"], section.estimates["auroc"]
    assert (shown.value, shown.low, shown.high) == (own["value"], own["low"], own["high"])
    assert (shown.method, shown.std) == ("exact", None)


def test_intervals_over_seeds_are_students_t():
    shifts = [0.0, -0.02, 0.013, 0.004]
    runs = [result(seed=i, shift=shift) for i, shift in enumerate(shifts)]
    (section,) = summarise(runs)
    values = np.array([(run["estimates"]["success"]["value"] - 0.67) / (1 - 0.67) for run in runs])
    low, high = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    shown = section.estimates["advantage"]
    assert (shown.value, shown.low, shown.high) == pytest.approx((values.mean(), low, high), abs=1e-12)
    assert shown.std == pytest.approx(values.std(ddof=1))
    text = Tags(page([result(seed=i, shift=shift) for i, shift in enumerate(shifts)])).text
    assert "1,000 trials per seed, 4 seeds" in text
    assert "Student's t over 4 seeds" in text


def test_intervals_over_seeds_stay_within_the_range():
    (section,) = summarise([result(seed=i, shift=shift) for i, shift in enumerate((0.05, -0.4))])
    assert section.estimates["success"].high == 1.0
    assert section.estimates["tpr_at_0.1%"].low == 0.0


def test_seeds_that_agree_exactly_do_not_claim_certainty():
    (section,) = summarise([result(seed=i) for i in range(3)])
    assert section.estimates["success"].low == pytest.approx(0.89)


def test_a_mean_roc_never_exceeds_the_mean_of_what_was_reached():
    one, two = result(), result(seed=1)
    one["roc"], two["roc"] = [[0, 0], [0, 0.5], [1, 1]], [[0, 0.1], [0.5, 0.9], [1, 1]]
    (section,) = summarise([one, two])
    assert section.roc == ((0.0, pytest.approx(0.3)), (0.5, pytest.approx(0.7)), (1.0, 1.0))


def test_optional_parts_may_be_missing():
    one = result()
    one |= {"utility": None, "rounds": [], "roc": [], "data": None, "versions": None}
    del one["estimates"]["auroc"], one["seconds"]
    text = Tags(page([one])).text
    assert "What the model is worth" not in text
    assert "right in 91% of cases" in text


def test_task_accuracy_stands_beside_the_majority_and_the_undefended_model():
    defended = result(defense={"name": "Sign"}, adaptive=True)
    defended["utility"]["accuracy"] = estimate("accuracy", 0.8)
    text = Tags(page([result(), defended])).text
    assert "income none 85.0% 83.0% to 87.0% 76.0% –" in text
    assert "income Sign 80.0% 78.0% to 82.0% 76.0% −5.0 points" in text


@pytest.mark.parametrize(
    "columns",
    [
        ("sex",),
        ("sex", "race", "marital-status"),
        tuple(f"a private column with a long name, {i}" for i in range(50)),
    ],
)
def test_fifty_cells_stay_under_300_kilobytes(columns):
    html = page(grid(50, columns))
    assert len(html.encode()) < 300_000
    assert html.count('<table class="measures') == 50


def test_a_large_grid_says_which_settings_have_figures():
    html = page(grid(50))
    assert html.count('<details class="cell"') == 50
    assert "Figures are drawn for 12 settings" in html


def test_cells_that_differ_in_more_than_the_defense_say_in_what():
    small, large = result(), result()
    large["cell"]["game"]["batch"] = large["secret"]["batch"] = 64
    assert "no defense, game batch 64" in Tags(page([small, large])).text


def test_the_same_results_give_the_same_page():
    assert page(grid(7)) == page(copy.deepcopy(grid(7)))


def test_the_plan_is_quoted_word_for_word_with_the_command_to_repeat_it():
    html = page([result()], plan="a = 1\n\n# <b>\n")
    assert "<pre>a = 1\n\n# &lt;b&gt;\n</pre>" in html
    assert "leakscope run plan.toml" in html


def test_charts_are_named_described_and_reachable_by_keyboard():
    html = page([result()])
    charts = re.findall(r"<svg[^>]*role=\"img\"[^>]*>.*?</svg>", html, re.S)
    assert len(charts) == 3
    for chart in charts:
        assert re.search(r"role=\"img\"[^>]*><title>[^<]+</title><desc>[^<]+</desc>", chart)
        assert 'tabindex="0"' in chart


def test_severity_is_a_word_beside_every_mark():
    html = page([result()])
    assert 'aria-hidden="true"' in html
    assert '<span class="word">Severe</span>' in html
    assert "a reading aid, not a standard" in html


def test_a_page_of_a_run_that_has_not_ended_says_how_much_is_missing():
    assert "1 of 12 results are there" in page([result()], wanted=12)
    assert "results are there" not in page([result()], wanted=1)
    assert "results are there" not in page([result()])
