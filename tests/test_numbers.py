"""results.csv and results.json: every number of the results, no private record, nothing that runs."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from importlib import resources

import builders
import jsonschema
import pytest
from builders import FORMAT1, HOSTILE, fail, game, golden, keep, measure
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.nouns import Estimate
from leakscope.report import page
from leakscope.results import gate, kind, number
from leakscope.results.cell import words
from leakscope.results.scores import FrozenModel
from leakscope.run import engines

PRIVATE, HIDDEN = "PRIVATE", ("values", "watched", "original", "reconstruction")  # fields of records
DEFENDED = {"name": "DPSGD", "clip": 1.0, "noise": 1.0}
OLD = [path.name for path in sorted(FORMAT1.iterdir())]
SCHEMA = json.loads(
    resources.files("leakscope.results").joinpath("results.schema.json").read_text(encoding="utf-8")
)
VALID = jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture(scope="session")
def shielded():
    """A real game against DP-SGD."""
    return engines.run_task(builders.cell("game", defense=DEFENDED), 0, trusted=(), spare=1).result


@pytest.fixture(scope="session")
def every(shielded):
    """Real results of every kind, of both formats, a failed one of each among them."""
    new = [*(measure(name) for name in builders.KINDS), shielded]
    return [*new, *map(fail, new), *(one for name in OLD for one in golden(name))]


def rows_of(*results):
    return [row for one in results for row in kind.numbers(one)]


def document(*results):
    return json.loads(number.as_json(rows_of(*results), title="Audit"))


def table(*results):
    return list(csv.DictReader(io.StringIO(number.as_csv(rows_of(*results)))))


def estimates(part, left_out=("rounds", "measured", "tuned")):
    """Every estimate in what was found, other than those of one round, or told twice."""
    if isinstance(part, Estimate):
        yield part.value, part.low, part.level, part.n, part.method
    elif isinstance(part, FrozenModel):
        for field in type(part).model_fields:
            yield from () if field in left_out else estimates(getattr(part, field))
    elif isinstance(part, dict | list | tuple):
        for item in part.values() if isinstance(part, dict) else part:
            yield from estimates(item)


def recall(result, **changes):
    """The same result of a cell that says otherwise."""
    return result.model_copy(update={"cell": result.cell.model_copy(update=changes)})


GAME = game()


def rename(name, one=GAME):
    """A game about a secret of that name."""
    secret = one.found.secret.model_copy(update={"column": name})
    return one.model_copy(update={"found": one.found.model_copy(update={"secret": secret})})


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["$defs"]["number"]["required"]) == set(number.COLUMNS)
    assert SCHEMA["properties"]["format"]["const"] == number.FORMAT


def test_every_result_is_valid_under_the_schema_and_so_is_none_and_a_hostile_name(every):
    VALID.validate(document(*every))
    VALID.validate(document())
    VALID.validate(document(rename(HOSTILE, game(id=HOSTILE, defense={"name": HOSTILE}))))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d, _: d.pop("format"),
        lambda d, _: d.update(format=1),
        lambda d, _: d.update(more=1),
        lambda _, row: row.pop("low"),
        *(
            lambda _, row, change=change: row.update(change)
            for change in (
                {"record": [1, 2]}, {"value": "0.9"}, {"value": None}, {"level": None}, {"level": 1.5},
                {"about": "gossip"}, {"error": "failed"}, {"measure": ""}, {"cell": "../x"}, {"seed": 0.5},
                {"n": -1}, {"adaptive": "yes"}, {"bound": "sure"}, {"kind": ""}, {"delta": "1e-5"},
            )
        ),
    ],
)  # fmt: skip
def test_a_broken_document_is_refused(spoil):
    whole = document(game())
    VALID.validate(whole)
    spoil(whole, whole["numbers"][0])
    assert not VALID.is_valid(whole)


def test_every_estimate_of_a_result_is_a_row_and_every_row_with_an_interval_an_estimate(every):
    for one in (result for result in every if result.found is not None):
        rows = [
            (r.value, r.low, r.level, r.n, r.method)
            for r in rows_of(one)
            if r.level and r.measure != "correlation"
        ]
        assert Counter(rows) == Counter(estimates(one.found)), one.cell


def test_no_two_rows_of_a_result_are_about_the_same(every):
    for one in every:
        seen = [(r.about, r.secret, r.part, r.measure, r.level, r.covers) for r in rows_of(one)]
        assert len(seen) == len(set(seen)), one.cell


def test_a_row_says_what_was_tried_and_what_guessing_achieves():
    defense = {"name": "Pruning", "rate": 0.99}
    one = game(rate=0.9, prior=0.25, seed=3, id="attribute", defense=defense, adaptive=False)
    rows = {(row["about"], row["measure"]): row for row in table(one)}
    told = {
        "id": "attribute",
        "kind": "inference",
        "data": "adult",
        "game": "Inference",
        "question": "attribute",
    }
    told |= {"secret": "sex", "attack": "Posterior", "defense": "Pruning (rate 0.99)", "adaptive": "false"}
    told |= {"seed": "3", "value": "0.9", "level": "0.95", "n": "400", "guessing": "0.75", "error": ""}
    row = rows["leakage", "success"]
    assert {key: row[key] for key in told} == told
    assert float(row["low"]) < 0.9 < float(row["high"])
    chances = {"advantage": 0, "auroc": 0.5, "tpr_at_1%": 0.01, "tpr_at_0.1%": 0.001}
    assert {name: float(rows["leakage", name]["guessing"]) for name in chances} == chances
    assert rows["utility", "accuracy"]["guessing"] == "0.5"
    assert table(game())[0]["adaptive"] == ""


def test_the_attack_on_a_row_is_one_that_was_used(every):
    """What was played stands in the result: the attack of a cell may be a default that nobody ran."""
    for one in every:
        named = {row.attack for row in rows_of(recall(one, attack={"name": "Unused"}))} - {""}
        known = one.kind != "inference" or (one.found and one.found.attack)  # the first format does not say
        assert named == {"Unused"} if not known else "Unused" not in named
    others = [recall(one, attack={"name": "Unused"}) for one in every if one.kind != "inference"]
    assert "Unused" not in page.render(others, plan="", title="") + "".join(map(kind.headline, others))
    assert not [told for one in others for told in gate.readings.read(one) if "Unused" in told.attack]
    (layers,) = {row.attack for row in rows_of(measure("layers")) if row.about == "leakage"}
    assert layers == words(measure("layers").cell.game["family"])


def test_what_an_attack_reached_names_it_and_what_needs_none_names_none(every):
    for row in rows_of(*(one for one in every if one.found is not None)):
        assert row.attack or row.about != "leakage"
        assert not row.attack or row.about not in ("utility", "bound")
        assert not row.attack or row.measure not in ("accuracy", "trained")


def test_seeds_of_a_cell_share_its_name_and_other_cells_do_not():
    rows = table(game(), game(seed=1), game("race"), game(id="first", note="a note"))
    first, other = {row["cell"] for row in rows if row["secret"] == "sex"}, {row["cell"] for row in rows}
    assert (len(first), len(other)) == (1, 2)
    assert len({row["key"] for row in rows}) == 3


def test_a_certified_epsilon_has_no_upper_limit_and_what_is_promised_covers_one_step():
    canary = measure("canary")
    rows = {(row.measure, row.level): row for row in rows_of(canary)}
    certified = [row for row in rows.values() if row.about == "leakage"]
    assert {row.measure for row in certified} == {"epsilon_any", "epsilon_gaussian"}
    assert {(row.high, row.bound, row.delta) for row in certified} == {(None, "lower", 1e-5)}
    assert rows["epsilon_any", 0.999].low <= rows["epsilon_any", 0.95].low == canary.found.certified.low
    promised = rows["epsilon_exact", None]
    assert (promised.value, promised.bound, promised.covers) == (canary.found.exact, "upper", "one step")


def test_an_upper_bound_says_which_releases_it_covers_and_at_which_delta(shielded):
    found, rows = shielded.found, [row for row in rows_of(shielded) if row.bound == "upper"]
    assert {row.about for row in rows} == {"bound"}
    epsilons = {(row.covers, row.part): row.value for row in rows if row.measure == "epsilon"}
    assert epsilons == {
        (one.covers, part): value
        for one in (found.guarantee.shown,)
        for part, value in (("replace", one.replaced), ("add or remove", one.added))
    }
    counted = {row.value for row in rows_of(shielded) if row.covers == "training"}
    assert counted == {found.guarantee.training.replaced, found.guarantee.training.added}
    assert {row.delta for row in rows if row.measure == "epsilon"} == {found.guarantee.shown.delta}
    others = {row.measure: row for row in rows if row.measure != "epsilon"}
    assert {(row.covers, row.delta) for row in others.values()} == {("shown", None)}
    assert others["advantage"].value == found.bounds.advantage
    assert others["success"].value == found.bounds.accuracy


def test_information_is_a_lower_limit_and_no_other_measure_of_an_attack_is_a_bound(every):
    """But where one attack alone was tried, or a search may have missed some."""
    for row in rows_of(*every):
        if row.error or row.about not in ("leakage", "baseline", "protection"):
            continue
        if row.measure.startswith("epsilon") or row.measure in ("recovered", "certified"):
            continue
        least = row.measure == "information" or (row.kind in ("records", "questions") and row.attack)
        assert row.bound == ("lower" if least else "estimate")


def test_a_failed_cell_is_a_row_with_its_error_and_what_it_asked():
    (row,) = table(fail(game(), "DataError: nothing to infer"))
    assert (row["measure"], row["value"], row["error"]) == ("", "", "DataError: nothing to infer")
    assert (row["secret"], row["attack"], row["question"]) == ("sex", "Posterior", "attribute or property")
    nothing = game().model_copy(update={"found": None})
    assert [row["error"] for row in table(nothing)] == ["nothing was measured"]


def test_no_record_picture_value_or_path_is_exported():
    """Every word of what was found that is no name of an attack, a layer or a secret, and every path."""

    def spoil(part, at=""):
        if isinstance(part, FrozenModel):
            fields = {name: spoil(getattr(part, name), name) for name in type(part).model_fields}
            return part.model_copy(update=fields)
        if isinstance(part, dict):
            return {key: spoil(item, at) for key, item in part.items()}
        if isinstance(part, list | tuple):
            return tuple(spoil(item, at) for item in part)
        return PRIVATE if isinstance(part, str) and at in HIDDEN else part

    data = {"name": "csv", "path": f"/home/me/{PRIVATE}/table.csv", "sha256": PRIVATE}
    extra = {"recording": f"/home/me/{PRIVATE}/run", "digest": PRIVATE, "save": f"/home/me/{PRIVATE}/e"}
    results = [
        recall(one.model_copy(update={"found": spoil(one.found)}), data=data, game=one.cell.game | extra)
        for one in (*map(measure, builders.KINDS), *golden("layers"), *golden("guards"), *golden("recording"))
        if one.found is not None
    ]
    assert all(PRIVATE in one.model_dump_json() for one in results)
    for text in (number.as_csv(rows_of(*results)), number.as_json(rows_of(*results), title="Audit")):
        assert PRIVATE not in text
        assert "table.csv" in text


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r", " =", "＝"])
def test_no_name_is_a_formula_in_a_spreadsheet(sign):
    row = table(rename(f"{sign}HYPERLINK(1)"))[0]
    assert row["secret"] == f"'{sign}HYPERLINK(1)"
    assert table(rename(HOSTILE))[0]["secret"] == HOSTILE


def test_a_negative_number_stays_a_number():
    told = [float(row["value"]) for row in table(measure("layers")) if row["value"]]
    assert told == [row.value for row in rows_of(measure("layers"))]
    assert min(told) < 0


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_any_text_comes_back_from_the_table_and_begins_no_formula(text):
    row = table(rename(text))[0]
    assert row["secret"] in (text, f"'{text}")
    assert not row["secret"].lstrip(" ").startswith(number.FORMULAS)


def test_both_files_are_written_with_the_report_and_hold_the_same_rows(tmp_path):
    keep(tmp_path, [game(), game(seed=1), fail(game("race"))])
    page.write(tmp_path)
    whole = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    VALID.validate(whole)
    assert whole["title"] == "Trial"
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == number.COLUMNS
    for column in ("key", "measure", "error"):
        assert [row[column] for row in rows] == [one[column] for one in whole["numbers"]]
    values = [one["value"] for one in whole["numbers"]]
    assert [float(row["value"]) if row["value"] else None for row in rows] == values
    written = {"plan.toml", "cells", "report.html", "results.csv", "results.json"}
    assert {path.name for path in tmp_path.iterdir()} == written
