"""results.csv and results.json: every number of the results, no private record, nothing that runs."""

from __future__ import annotations

import copy
import csv
import io
import json
from importlib import resources

import jsonschema
import pytest
import test_report_guards as guards
import test_report_layers as layers
import test_report_membership as membership
from hypothesis import given
from hypothesis import strategies as st
from test_report import HOSTILE, failed, grid, hostile, result
from test_report_defenses import audit, bounded

from leakscope import exports, report, store

KINDS = {
    "game": lambda: result() | {"bounds": bounded(), "guarantee": {"delta": 1e-5, "step": 2.0, "run": 1.5}},
    "audit": audit,
    "federation": membership.federation,
    "layers": layers.localisation,
    "guard": guards.guarded,
    "reconstruction": lambda: guards.guarded(guards.rebuilt()),
    "members": lambda: guards.guarded(guards.members()),
    "failed": failed,
}
SCHEMA = json.loads(resources.files("leakscope").joinpath("results.schema.json").read_text(encoding="utf-8"))
VALID = jsonschema.Draft202012Validator(SCHEMA)


def document(*results):
    found = [number for one in results for number in exports.numbers(one)]
    return json.loads(exports.as_json(found, title="Audit"))


def table(*results):
    found = [number for one in results for number in exports.numbers(one)]
    return list(csv.DictReader(io.StringIO(exports.as_csv(found))))


def estimates(value):
    """Every estimate in a nested table, other than those at a surer level, of one round, or told twice."""
    if isinstance(value, dict):
        if {"value", "low", "high", "n"} <= value.keys():
            yield value
        else:
            for key, part in value.items():
                yield from estimates(part) if key not in ("sure", "rounds", "measured") else ()
    elif isinstance(value, list):
        for part in value:
            yield from estimates(part)


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["$defs"]["number"]["required"]) == set(exports.COLUMNS)
    assert SCHEMA["properties"]["format"]["const"] == exports.FORMAT


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_result_is_valid_under_the_schema(kind):
    VALID.validate(document(KINDS[kind]()))


def test_an_empty_folder_and_hostile_names_are_valid_too():
    VALID.validate(document())
    VALID.validate(document(*hostile()))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("format"),
        lambda d: d.update(format=2),
        lambda d: d.update(more=1),
        lambda d: d["numbers"][0].pop("low"),
        lambda d: d["numbers"][0].update(record=[1, 2]),
        lambda d: d["numbers"][0].update(value="0.9"),
        lambda d: d["numbers"][0].update(value=None),
        lambda d: d["numbers"][0].update(level=None),
        lambda d: d["numbers"][0].update(level=1.5),
        lambda d: d["numbers"][0].update(about="gossip"),
        lambda d: d["numbers"][0].update(error="failed"),
        lambda d: d["numbers"][0].update(measure=""),
        lambda d: d["numbers"][0].update(cell="../x"),
        lambda d: d["numbers"][0].update(seed=0.5),
        lambda d: d["numbers"][0].update(n=-1),
        lambda d: d["numbers"][0].update(adaptive="yes"),
    ],
)
def test_a_broken_document_is_refused(spoil):
    whole = document(result())
    VALID.validate(whole)
    spoil(whole)
    assert not VALID.is_valid(whole)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "failed"])
def test_every_estimate_of_a_result_is_a_row_and_every_row_with_an_interval_an_estimate(kind):
    one = KINDS[kind]()
    kept = [(e["value"], e["low"], e["n"]) for e in estimates(one)]
    rows = [(r["value"], r["low"], r["n"]) for r in document(one)["numbers"] if r["level"] is not None]
    assert sorted(rows) == sorted(kept)


def test_a_row_says_what_was_tried_and_what_guessing_achieves():
    one = result(seed=3, defense={"name": "Pruning", "rate": 0.99}, adaptive=True)
    one["cell"]["id"] = "attribute"
    rows = {(row["about"], row["measure"]): row for row in table(one)}
    row = rows["leakage", "success"]
    told = {"id": "attribute", "data": "adult", "game": "Inference", "secret": "sex", "attack": "Posterior"}
    told |= {
        "defense": "Pruning (rate 0.99)",
        "adaptive": "true",
        "seed": "3",
        "value": "0.91",
        "low": "0.89",
    }
    told |= {"high": "0.93", "level": "0.95", "n": "1000", "method": "exact", "guessing": "0.67", "error": ""}
    assert {key: row[key] for key in told} == told
    chances = {
        measure: rows["leakage", measure]["guessing"]
        for measure in ("advantage", "auroc", "tpr_at_1%", "tpr_at_0.1%")
    }
    assert chances == {"advantage": "0.0", "auroc": "0.5", "tpr_at_1%": "0.01", "tpr_at_0.1%": "0.001"}
    assert rows["utility", "accuracy"]["guessing"] == "0.76"
    assert table(result())[0]["adaptive"] == ""


def test_seeds_of_a_cell_share_its_name_and_other_cells_do_not():
    rows = table(result(seed=0), result(seed=1), result("race"))
    assert len({row["cell"] for row in rows}) == 2
    assert len({(row["cell"], row["seed"]) for row in rows}) == 3
    renamed = result()
    renamed["cell"] |= {"id": "first", "note": "a note"}
    assert table(renamed)[0]["cell"] == rows[0]["cell"]


def test_a_certified_epsilon_has_no_upper_limit():
    rows = {row["measure"]: row for row in document(audit())["numbers"]}
    assert (rows["epsilon_any"]["low"], rows["epsilon_any"]["high"]) == (5.3, None)
    assert (rows["epsilon_exact"]["about"], rows["epsilon_exact"]["value"]) == ("bound", 284.0)


def test_attacks_layers_and_heads_are_told_apart():
    for one in (
        membership.federation(membership.attacked("Cosine"), membership.attacked("Loss")),
        layers.localisation(),
        guards.guarded(),
    ):
        rows = [(r["about"], r["secret"], r["part"], r["measure"]) for r in document(one)["numbers"]]
        assert len(rows) == len(set(rows))


def test_a_failed_cell_is_a_row_with_its_error():
    (row,) = table(failed(reason="DataError: nothing to infer"))
    assert (row["measure"], row["value"], row["error"]) == ("", "", "DataError: nothing to infer")
    broken = result()
    broken["estimates"] = dict.fromkeys(broken["estimates"])
    broken |= {"utility": None}
    assert [row["error"] for row in table(broken)] == ["no finite number"]


def test_no_record_picture_value_or_path_is_exported():
    whole = result(name="csv")
    whole["cell"]["data"] |= {"path": "/home/me/PRIVATE/table.csv", "sha256": "PRIVATE"}
    whole["secret"]["values"] = ["PRIVATE", "PRIVATE"]
    shown = layers.localisation(pictures=[{"original": "PRIVATE", "reconstruction": "PRIVATE", "ssim": 0.5}])
    told = guards.told(map={"before": guards.cloud(5), "after": guards.cloud(5), "values": ["PRIVATE"]})
    told["values"] = ["PRIVATE"]
    recorded = membership.federation(recording="/home/me/PRIVATE/run", records="/home/me/PRIVATE/scores.csv")
    recorded["membership"]["watched"] = ["PRIVATE"]
    results = [whole, shown, guards.guarded(told, game={"save": "/home/me/PRIVATE/e"}), recorded]
    found = [number for one in results for number in exports.numbers(one)]
    for text in (exports.as_csv(found), exports.as_json(found, title="Audit")):
        assert "PRIVATE" not in text
        assert "table.csv" in text


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r", " =", "＝"])
def test_no_name_is_a_formula_in_a_spreadsheet(sign):
    row = table(result(f"{sign}HYPERLINK(1)"))[0]
    assert row["secret"] == f"'{sign}HYPERLINK(1)"
    assert table(result(HOSTILE))[0]["secret"] == HOSTILE


def test_a_negative_number_stays_a_number():
    row = next(
        r for r in table(layers.localisation()) if r["part"] == "conv1" and r["measure"] == "information"
    )
    assert float(row["value"]) == -0.013


@given(st.text(max_size=40))
def test_any_text_comes_back_from_the_table_and_begins_no_formula(text):
    one = result(text)
    one["secret"]["column"] = text
    (row, *_) = table(one)
    assert row["secret"] in (text, f"'{text}") or not text
    assert not row["secret"].lstrip(" ").startswith(("=", "+", "-", "@"))


def test_both_files_are_written_with_the_report_and_hold_the_same_rows(tmp_path):
    store.write(tmp_path / "plan.toml", 'name = "Trial"\n')
    for i, one in enumerate([*grid(3), failed()]):
        store.save(tmp_path, {**copy.deepcopy(one), "key": f"{i:016x}"})
    report.write(tmp_path)
    whole = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    VALID.validate(whole)
    assert whole["title"] == "Trial"
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(exports.COLUMNS)
    assert [(r["key"], r["measure"]) for r in rows] == [(n["key"], n["measure"]) for n in whole["numbers"]]
    assert [float(r["value"]) for r in rows if r["value"]] == [
        n["value"] for n in whole["numbers"] if n["value"] is not None
    ]
    assert {path.name for path in tmp_path.iterdir()} == {
        "plan.toml",
        "cells",
        "report.html",
        "results.csv",
        "results.json",
    }
