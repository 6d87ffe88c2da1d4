"""The papers as data: their cells are valid plans, their tables come from what was recorded."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from leakscope import published
from leakscope.errors import PlanError
from leakscope.membership.judged import brief
from leakscope.plan import construct, federated, from_document, guards, localises

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("number", published.documents())
def test_every_cell_of_a_paper_is_a_valid_plan(number):
    document = published.documents()[number]
    made = {"seeds": document["seeds"], "defaults": document["defaults"], "cell": document["cell"]}
    plan = from_document(made)
    assert len({cell.id for cell in plan.cell}) == len(plan.cell)
    assert all(cell.figure for cell in plan.cell)
    for cell in plan.cell:
        assert set(cell.published) <= measures(cell)


def measures(cell) -> set[str]:
    """What a result of the cell can be compared by."""
    if guards(cell):
        judged = list(construct(cell.game, "audit").asked())
        assert len(judged) == 1 or not cell.published
        measures = ("success_rate", "auroc", "ssim", "psnr")
        names = ("strongest", "stale", "Inversion", "Decoder")
        return {"utility", *(f"{name} {measure}" for name in names for measure in measures)}
    if localises(cell):
        return layered(construct(cell.game, "audit"))
    if not federated(cell):
        return {*published.MEASURES}
    attacks = [brief(attack) for attack in construct(cell.game, "audit").attacks]
    return {
        "accuracy",
        *(f"{a} {m}" for a in attacks for m in ("plr_at_1%", "plr_at_2%", "plr_at_5%", "auroc")),
    }


def layered(audit) -> set[str]:
    """The claims that the parts of an audit of layers can bear out."""
    found = set()
    if audit.secrets:
        found |= {"latent peak at the first classifier layer", "subspace distance beats random splits there"}
        found |= {"subspace distance correlation"}
    if audit.sensitive:
        found |= {f"{norm} sensitivity peak at the first layer" for norm in ("F", "1", "inf", "relative")}
    return found | ({"original peak at the first layers"} if audit.images else set())


@pytest.mark.parametrize("number", published.documents())
def test_quick_never_asks_for_more_than_the_paper(number, monkeypatch):
    monkeypatch.setenv("LEAKSCOPE_DATA", "somewhere")
    full, _, _ = published.plan(number)
    quick, _, _ = published.plan(number, quick=True)
    for a, b in zip(full.cell, quick.cell, strict=True):
        assert b.rounds <= a.rounds
        assert b.trials <= a.trials
        assert b.rehearsals <= a.rehearsals
        assert set(b.observed) <= set(a.observed) or len(b.observed) == 1
        assert b.game.get("scored", 1) <= a.game.get("scored", a.game.get("clients", 1))
    assert len(quick.seeds) < len(full.seeds)


def test_cells_whose_files_are_not_here_are_named(monkeypatch):
    monkeypatch.delenv("LEAKSCOPE_DATA", raising=False)
    plan, _, missing = published.plan("000", only=["fig2"])
    assert missing == ["user-cremad"]
    assert {cell.id for cell in plan.cell} == {"attribute-adult", "property-adult", "distribution-adult"}
    with pytest.raises(PlanError, match="fig2, fig11"):
        published.plan("000", only=["fig1"])


def result(seed: int, value: float, published_value: float | None = 0.9) -> dict:
    """A finished run of property-adult."""
    estimate = {
        "name": "AUROC",
        "value": value,
        "low": value - 0.01,
        "high": value + 0.01,
        "level": 0.95,
        "n": 100,
        "method": "m",
    }
    theirs = {} if published_value is None else {"auroc": published_value}
    return {
        "key": f"k{seed}",
        "seed": seed,
        "cell": {
            "id": "property-adult",
            "figure": ["fig2"],
            "published": theirs,
            "note": "",
            "rounds": 5,
            "trials": 100,
            "rehearsals": 100,
        },
        "estimates": dict.fromkeys(published.MEASURES, estimate),
        "guessing": 0.6,
        "versions": {"leakscope": "0"},
    }


def test_an_entry_says_whether_its_interval_covers_the_published_value():
    runs = [result(seed, value) for seed, value in enumerate((0.89, 0.90, 0.92))]
    entry = next(e for e in published.entries(runs, quick=False) if e["measure"] == "auroc")
    assert entry["covers"] is True
    assert entry["value"] == pytest.approx(0.9033, abs=1e-4)
    far = [result(seed, value, 0.5) for seed, value in enumerate((0.89, 0.90, 0.92))]
    assert next(e for e in published.entries(far, quick=False) if e["measure"] == "auroc")["covers"] is False


def test_a_quick_run_never_replaces_a_full_one(tmp_path, monkeypatch):
    documents = published.documents()
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    monkeypatch.setattr(published, "documents", lambda: documents)
    published.record("000", [result(0, 0.91)], quick=True)
    path = published.record("000", [result(0, 0.92), result(1, 0.93)], quick=False)
    published.record("000", [result(0, 0.5)], quick=True)
    kept = json.loads(path.read_text())
    assert {entry["value"] for entry in kept} == {
        0.925,
        0.8125,
    }  # the advantage comes from success and guessing
    assert "quick" not in kept[0]["scaled"]


def test_recorded_values_are_whole_and_belong_to_cells_of_the_paper():
    for number, document in published.documents().items():
        known = {cell["id"]: cell for cell in document["cell"]}
        for entry in published.measured(number):
            cell = known[entry["cell"]]
            assert entry["published"] == cell.get("published", {}).get(entry["measure"])
            assert len(entry["values"]) == len(entry["seeds"]) == len(entry["keys"])
            assert all(math.isfinite(entry[key]) for key in ("value", "low", "high", "guessing"))
            assert entry["low"] <= entry["value"] <= entry["high"]
            assert entry["versions"]


def test_a_cell_can_be_asked_for_by_its_name(monkeypatch):
    monkeypatch.setenv("LEAKSCOPE_DATA", "somewhere")
    plan, _, _ = published.plan("002", only=["location-sign", "table1"])
    assert [cell.id for cell in plan.cell] == ["location-sign", "cifar100"]
