"""The papers as data: their cells are valid plans, their tables come from what was recorded."""

from __future__ import annotations

import json
import math

import pytest
from builders import fail, game, measure, refuses, transcript

from leakscope.audits.membership.judged import brief
from leakscope.core.errors import PlanError
from leakscope.core.tables import construct
from leakscope.results.kind import kind_named
from leakscope.run import published
from leakscope.run.plan import from_document


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
    return MEASURES_OF[cell.kind](construct(cell.game, "audit") if cell.kind in AUDITED else None, cell)


def guarded(audit, cell) -> set[str]:
    assert len(audit.asked) == 1 or not cell.published
    names = ("strongest", "stale", "Inversion", "Decoder")
    kinds = ("success_rate", "auroc", "ssim", "psnr")
    return {"utility", *(f"{name} {measure}" for name in names for measure in kinds)}


def attacked(audit, cell) -> set[str]:
    ratios = ("plr_at_1%", "plr_at_2%", "plr_at_5%", "auroc")
    return {"accuracy", *(f"{brief(attack)} {measure}" for attack in audit.attacks for measure in ratios)}


def layered(audit, cell) -> set[str]:
    """The claims that the parts of an audit of layers can bear out."""
    found = set()
    if audit.secrets:
        found |= {"latent peak at the first classifier layer", "subspace distance beats random splits there"}
        found |= {"subspace distance correlation"}
    if audit.sensitive:
        found |= {f"{norm} sensitivity peak at the first layer" for norm in ("F", "1", "inf", "relative")}
    return found | ({"original peak at the first layers"} if audit.images else set())


MEASURES_OF = {
    "inference": lambda audit, cell: set(entries_of("game")),
    "mechanism": lambda audit, cell: set(entries_of("canary")),
    "membership": attacked,
    "layers": layered,
    "guards": guarded,
}
AUDITED = ("membership", "layers", "guards")


def entries_of(kind: str):
    """The names under which a measured result of the kind can be compared."""
    result = measure(kind)
    return kind_named(result.kind).entries(result.found)


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
    assert missing == ["user-cremad", "user-strongest-cremad"]
    assert {cell.id for cell in plan.cell} == {"attribute-adult", "property-adult", "distribution-adult"}
    refuses(PlanError, "fig2, fig11", published.plan, "000", only=["fig1"])


def ran(seed: int, hits: int, theirs: float = 0.9):
    """A finished run of property-adult."""
    words = {"id": "property-adult", "figure": ["fig2"], "published": {"success": theirs}}
    return game(played=transcript(hits, 1_000, seed=seed), seed=seed, rounds=5, **words)


def test_a_quick_cell_observes_the_rounds_it_is_called_by(monkeypatch):
    monkeypatch.setenv("LEAKSCOPE_DATA", "anywhere")
    full, quick = (published.plan("001", only=["fig10"], quick=quick)[0] for quick in (False, True))
    for a, b in zip(full.cell, quick.cell, strict=True):
        assert set(b.observed) <= set(a.observed)
        assert max(b.observed) < b.rounds


def entry_of(runs, measure: str, *, quick: bool = False):
    return next(entry for entry in published.entries(runs, quick=quick) if entry["measure"] == measure)


def test_an_entry_says_whether_its_interval_covers_the_published_value():
    hits = (890, 900, 920)
    entry = entry_of([ran(seed, n) for seed, n in enumerate(hits)], "success")
    assert entry["covers"] is True
    assert entry["value"] == pytest.approx(0.9033, abs=1e-4)
    assert entry["guessing"] == 0.5
    assert entry_of([ran(seed, n, 0.5) for seed, n in enumerate(hits)], "success")["covers"] is False
    assert entry_of([ran(0, 900)], "auroc")["covers"] is None
    assert not published.entries([fail(ran(0, 900))], quick=False)


def test_a_quick_run_never_replaces_a_full_one(tmp_path, monkeypatch):
    documents = published.documents()
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    monkeypatch.setattr(published, "documents", lambda: documents)
    published.record("000", [ran(0, 910)], quick=True)
    path = published.record("000", [ran(0, 920), ran(1, 930)], quick=False)
    published.record("000", [ran(0, 500)], quick=True)
    kept = {entry["measure"]: entry for entry in json.loads(path.read_text())}
    assert (kept["success"]["value"], kept["advantage"]["value"]) == (0.925, 0.85)
    assert "quick" not in kept["success"]["scaled"]


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
