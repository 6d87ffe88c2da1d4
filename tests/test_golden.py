"""The numbers of tiny cells over all kinds of audit are those that were recorded, and so are the pages of
results that were kept in the first format."""

from __future__ import annotations

import difflib
import json
import shutil

import golden_numbers as golden
import pytest
from builders import refuses
from golden.pages import FOLDERS, draw_page
from golden.pages import golden as golden_page

from leakscope.core.catalogue import KINDS
from leakscope.core.errors import StoreError
from leakscope.results import store

TOLERANCE = 1e-6  # relative: another processor may round differently

# What may differ because a fault was cured: {(game, measure): why}. Recording the numbers anew empties it.
CURED: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[golden.Row]:
    return golden.run(tmp_path_factory.mktemp("golden") / "results")


@pytest.mark.slow
def test_every_number_is_the_recorded_one_unless_a_fault_was_cured(rows):
    found = golden.differences(golden.recorded(), rows, tolerance=TOLERANCE)
    assert not [str(difference) for difference in found if (difference.game, difference.measure) not in CURED]
    assert {(difference.game, difference.measure) for difference in found} == set(CURED)


def test_the_golden_numbers_cover_every_kind_of_audit_with_intervals():
    rows = golden.recorded()
    assert {row["game"] for row in rows} == {
        "Inference",
        "Distribution",
        "UserInference",
        "AttributeAudit",
        "MembershipAudit",
        "RecordingAudit",
        "LayerAudit",
        "GuardAudit",
    }
    assert len({row["cell"] for row in rows}) >= 14
    assert sum(row["low"] is not None for row in rows) > len(rows) / 2


def test_a_number_that_changed_went_or_came_is_a_difference():
    first, *rest = golden.recorded()
    changed = {**first, "value": first["value"] * (1 + 1e-5) + 1e-5}
    assert not golden.differences([first, *rest], [first, *rest])
    (found,) = golden.differences([first, *rest], [changed, *rest], tolerance=TOLERANCE)
    assert (found.old, found.new) == ({"value": first["value"]}, {"value": changed["value"]})
    (gone,) = golden.differences([first, *rest], rest)
    assert not gone.new
    (come,) = golden.differences(rest, [first, *rest])
    assert not come.old
    near = {**first, "value": first["value"] * (1 + 1e-12) + 1e-12}
    assert golden.differences([first], [near])
    assert not golden.differences([first], [near], tolerance=TOLERANCE)


def test_what_rounding_moves_may_move_within_its_interval_alone():
    rows = golden.recorded()
    for (cell, measure), why in golden.ROUNDED.items():
        row = next(r for r in rows if r["cell"] == cell and r["measure"] == (measure or "auroc"))
        moved = row["value"] + 0.5 * (row["high"] - row["value"])
        assert why
        assert not golden.differences([row], [{**row, "value": moved}])
        assert golden.differences([row], [{**row, "value": row["high"] + 0.01}])
        assert golden.differences([{**row, "cell": "another"}], [{**row, "cell": "another", "value": moved}])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_page_of_old_results_is_the_golden_one(folder):
    wanted, shown = golden_page(folder).read_text(encoding="utf-8"), draw_page(folder)
    changed = list(
        difflib.unified_diff(wanted.splitlines(), shown.splitlines(), "golden", "now", lineterm="", n=0)
    )
    again = "write them again with `python tests/golden/pages.py` if this is meant"
    assert shown == wanted, "\n".join([again, *(line[:200] for line in changed[:40])])


def test_there_is_a_golden_page_of_every_kind():
    new = {"sites", "records", "questions"}  # kinds that the first format did not have
    assert {result.kind for folder in FOLDERS for result in store.results(folder)} == set(KINDS) - new


def test_a_result_may_be_laid_out_anew_but_not_changed(tmp_path):
    shutil.copytree(FOLDERS[0], place := tmp_path / "kept")
    path = min((place / "cells").glob("*.json"))
    table, kept = json.loads(path.read_text(encoding="utf-8")), store.load(place, path.stem)
    path.write_text(json.dumps(table), encoding="utf-8")
    assert store.load(place, path.stem) == kept
    for layout in (None, 1):
        path.write_text(json.dumps(table | {"seed": 9}, indent=layout), encoding="utf-8")
        refuses(StoreError, "not what was written", store.load, place, path.stem)
