"""The papers as data: their cells are valid plans, their tables come from what was recorded."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from builders import fail, game, measure, refuses, transcript
from leakscope.epsilon import classical_epsilon

from leakscope.audits.membership.judged import brief
from leakscope.core.errors import DataError, PlanError
from leakscope.core.tables import construct
from leakscope.data import tabled
from leakscope.results.kind import kind_named
from leakscope.run import coverage, measured, published
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
    kinds = ("success_rate", "auroc", "ssim", "psnr", "mse")
    return {"utility", *(f"{name} {measure}" for name in names for measure in kinds)}


def attacked(audit, cell) -> set[str]:
    further = [f"plr_at_{100 * rate:g}%" for rate in audit.rates]
    ratios = ("plr_at_1%", "plr_at_2%", "plr_at_5%", "auroc", *further)
    return {
        "accuracy",
        "trained accuracy",
        *(f"{brief(attack)} {measure}" for attack in audit.attacks for measure in ratios),
    }


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
    "records": lambda audit, cell: set(entries_of("records")),
}
AUDITED = ("membership", "layers", "guards")


def entries_of(kind: str):
    """The names under which a measured result of the kind can be compared."""
    result = measure(kind)
    return kind_named(result.kind).entries(result.found)


def test_an_audits_ratio_is_that_of_the_classical_epsilon_to_the_point_estimate():
    found = measure("canary").found
    ratio = entries_of("canary")["classical_over_point"].estimate.value
    assert ratio * found.point == pytest.approx(found.classical)


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


def line_of(runs, measure: str, *, quick: bool = False):
    return next(line for line in published.compare(runs, quick=quick) if line.measure == measure)


def test_a_line_says_whether_its_interval_covers_the_published_value():
    hits = (890, 900, 920)
    line = line_of([ran(seed, n) for seed, n in enumerate(hits)], "success")
    assert line.covers is True
    assert line.number.value == pytest.approx(0.9033, abs=1e-4)
    assert line.number.guessing == 0.5
    assert line_of([ran(seed, n, 0.5) for seed, n in enumerate(hits)], "success").covers is False
    assert line_of([ran(0, 900)], "auroc").covers is None
    assert not published.compare([fail(ran(0, 900))], quick=False)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "measured").mkdir()
    return tmp_path


def test_a_quick_run_never_replaces_a_full_one(folder):
    published.record("000", [ran(0, 910)], quick=True, folder=folder)
    published.record("000", [ran(0, 920), ran(1, 930)], quick=False, folder=folder)
    published.record("000", [ran(0, 500)], quick=True, folder=folder)
    (block,) = measured.load("000", folder).values()
    assert (block.measures["success"].value, block.measures["advantage"].value) == (0.925, 0.85)
    assert not block.scaled


def test_a_block_says_what_its_numbers_rest_on_and_comes_back_as_it_was(folder):
    run = measure("game")
    run = run.model_copy(update={"cell": run.cell.model_copy(update={"id": "property-adult"})})
    path = published.record("000", [run], quick=True, folder=folder)
    (block,) = measured.load("000", folder).values()
    assert (block.seeds, block.keys) == ((run.seed,), (run.key,))
    assert (block.date, block.code) == (run.made.date, (run.made.code,))
    assert block.seconds == pytest.approx(run.made.seconds, abs=0.1)
    assert block.trials == run.cell.trials
    assert "quick" in block.scaled
    assert block.data == tabled(run.cell.data).digest
    lines = path.read_text().splitlines()
    assert len(lines) == 2 + 1 + len(block.measures)  # a line a measure
    assert measured.save("000", measured.load("000", folder), folder).read_text().splitlines() == lines


def test_a_measure_of_fewer_seeds_says_which():
    runs = [ran(0, 920), ran(1, 930)]
    assert {line.seeds for line in published.compare(runs, quick=False)} == {(0, 1)}
    whole = published.PaperLine(
        runs[0].cell, line_of(runs, "auroc").block, "auroc", line_of(runs, "auroc").number, 5
    )
    assert whole.differs.endswith("2 of 5 seeds")


@pytest.mark.parametrize("number", published.documents())
def test_recorded_values_are_whole_and_belong_to_cells_of_the_paper(number):
    blocks = measured.load(number)
    assert set(blocks) <= set(published.cells(number))
    for block in blocks.values():
        assert len(block.seeds) == len(block.keys)
        assert block.versions
        for value in block.measures.values():
            assert len(value.values) == len(value.seeds or block.seeds)
            assert all(math.isfinite(x) for x in (value.value, value.low, value.high, value.guessing))
            assert value.low <= value.value <= value.high


@pytest.mark.parametrize("number", published.documents())
def test_a_recording_of_other_settings_says_that_it_is_stale(number):
    """Every key is computed again from the plan. A change of a cell's settings makes its numbers stale: run
    the cell again, or say in its block why it still stands."""
    blocks = measured.load(number)
    assert set(published.find_stale(number)) == {name for name, block in blocks.items() if block.stale}
    for block in blocks.values():
        unknown = measured.UNKNOWN in (block.date, block.data, block.seconds, *block.code)
        assert not unknown or block.stale  # what is measured now knows where it comes from


def test_a_changed_setting_is_found(folder):
    published.record("000", [ran(0, 920)], quick=False, folder=folder)
    assert list(published.find_stale("000", folder)) == ["property-adult"]


def test_recordings_stay_small_and_outside_the_package():
    files = list((measured.CHECKOUT / "measured").glob("*.json"))
    assert len(files) == len(published.documents())
    assert sum(len(path.read_text().splitlines()) for path in files) <= 6_000
    assert not list(published.FOLDER.rglob("*.json"))


def test_without_a_checkout_the_way_out_is_told(tmp_path):
    refuses(DataError, "--recordings", published.recorded, "000", tmp_path)


def test_a_cell_can_be_asked_for_by_its_name(monkeypatch):
    monkeypatch.setenv("LEAKSCOPE_DATA", "somewhere")
    plan, _, _ = published.plan("002", only=["location-sign", "table1"])
    assert [cell.id for cell in plan.cell] == ["location-sign", "cifar100", "densenet", "skin", "retina"]


@pytest.fixture(scope="module")
def fates():
    return coverage.fates()


def test_every_printed_number_has_one_fate(fates):
    assert len(fates) == 849
    assert {one.fate for one in fates} <= set(coverage.WORDS)
    *papers, total = coverage.count(fates)
    assert [row[1] for row in papers] == ["50", "9", "373", "342", "75"]
    assert sum(map(int, total[2 : 2 + len(coverage.WORDS)])) == int(total[1]) == 849
    for one in fates:
        assert (one.ours is None) == (one.fate not in coverage.MEASURED)
        assert one.why or one.fate == coverage.SETTINGS, (
            one.printed
        )  # what is not the paper's says how or why


def test_what_is_called_the_papers_settings_differs_in_nothing(fates):
    for one in fates:
        if one.fate == coverage.SETTINGS and one.line:
            assert not one.line.cell.note
            assert not one.line.block.scaled
            assert len(one.line.seeds) == one.line.asked


def test_a_cell_without_a_recording_is_not_measured_yet(folder):
    (folder / "printed.csv").write_text((measured.CHECKOUT / "printed.csv").read_text())
    for one in coverage.fates(folder):
        assert one.fate not in coverage.MEASURED or one.printed.ours is not None


def told(folder, block, **settings):
    """The fates of the numbers beside property-adult, were this all that is recorded."""
    (folder / "printed.csv").write_text((measured.CHECKOUT / "printed.csv").read_text())
    measured.save("000", {"property-adult": block.model_copy(update=settings)}, folder)
    return [one for one in coverage.fates(folder) if one.printed.cell == "property-adult"]


def test_a_model_that_learned_nothing_measures_nothing(folder, monkeypatch):
    block = measured.load("000")["property-adult"]
    assert {one.fate for one in told(folder, block)} == {coverage.SETTINGS}
    document = published.documents()["000"]
    monkeypatch.setattr(published, "_document", lambda number: document | {"void": ["property-adult"]})
    found = told(folder, block)
    assert all(one.fate == coverage.NOT_YET and "means nothing" in one.why for one in found)
    assert found


def test_what_was_measured_with_other_settings_is_not_measured(folder):
    found = told(folder, measured.load("000")["property-adult"], stale=measured.CHANGED)
    assert all(one.fate == coverage.NOT_YET and measured.CHANGED in one.why for one in found)
    assert found


def test_ours_is_in_the_units_of_the_printed_number(folder):
    one = told(folder, measured.load("000")["property-adult"])[0]
    number = one.line.number
    printed = replace(one.printed, less=0.5, per=2.0)
    ours = [(x - 0.5) / 2 for x in (number.value, number.low, number.high)]
    assert replace(one, printed=printed).ours == pytest.approx(ours)


def test_published_values_of_cells_are_printed_ones(fates):
    """A value beside ours is one that the paper prints; what paper 001 prints are claims."""
    printed: dict = {}
    for one in fates:
        printed.setdefault((one.printed.paper, one.printed.cell, one.printed.measure), set()).add(
            one.printed.value
        )
    for number in set(published.documents()) - {"001"}:
        for cell in published.cells(number).values():
            for name, value in cell.published.items():
                values = printed.get((number, cell.id, name))
                assert values is None or value in values, (number, cell.id, name)


def test_numbers_without_a_training_are_computed_again(fates):
    ours = {
        (one.printed.table, one.printed.dataset): one.printed.ours
        for one in fates
        if one.printed.ours is not None
    }
    people = tabled({"name": "adult"})
    woman = (people.private["sex"] == people.value_names("sex").index("Female")).double()
    assert ours["Table 1", "Adult"] == pytest.approx(
        torch.corrcoef(torch.stack([people.y.double(), woman]))[0, 1].item(), abs=1e-4
    )
    assert ours["sec 6.1", "Adult"] == pytest.approx(classical_epsilon(2.0, 0.1, 1e-5), abs=0.05)
    assert ours["sec 5.1.3", "CREMA-D"] == 988 * 64 + 64 + 64 * 64 + 64 + 64 * 4 + 4
    for dataset, ratios in (("Census", 4), ("RSNA", 7), ("CelebA", 11)):
        assert ours["Table 3 caption", dataset] == pytest.approx(1 / ratios, abs=1e-4)


def test_differences_of_recorded_cells_are_computed_again(fates):
    ours = {
        one.printed.metric: one for one in fates if (one.printed.paper, one.printed.table) == ("002", "A.4")
    }
    blocks = measured.load("002")

    def differ(data: str, name: str) -> float:
        cells = (f"{data}-virtual-10-repartitioned", f"{data}-virtual-1")
        cut, whole = (blocks[cell].measures[name].value for cell in cells)
        return cut - whole

    for name, metric, unit in (
        ("accuracy", "test accuracy gain (percentage points)", 100.0),
        ("Loss auroc", "AUC reduction", -1.0),
    ):
        one = ours[metric]
        assert one.printed.ours == pytest.approx(unit * differ("location", name), abs=1e-4)
        assert one.why.endswith(f" {unit * differ('cifar10', name):.{2 if unit > 1 else 4}f}")


def test_the_coverage_is_printed(leakscope):
    assert "849" in leakscope("papers", "--coverage").out
    assert "location-dpsgd" in leakscope("papers", "002", "--stale").out


def test_a_cell_that_is_like_another_has_all_but_its_published_values():
    first = {
        "id": "a",
        "figure": ["x"],
        "published": {"m": 1.0},
        "game": {"name": "G", "of": {"name": "A", "n": 1}},
    }
    cells = [
        first,
        {"id": "b", "like": "a", "game": {"of": {"n": 2}}},
        {"id": "c", "like": "b", "game": {"name": "H"}},
    ]
    _, second, third = published.spelt_out(cells)
    assert second == {"id": "b", "figure": ["x"], "game": {"name": "G", "of": {"name": "A", "n": 2}}}
    assert third == {"id": "c", "figure": ["x"], "game": {"name": "H"}}
    assert published.spelt_out(cells)[0] == first
