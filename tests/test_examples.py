"""The examples run as they are, and show what they say they show."""

from __future__ import annotations

import ast
import json
import re
import runpy
from pathlib import Path

import pytest

from leakscope import Recording

FOLDER = Path(__file__).parent.parent / "examples"
NAMES = {"first_audit", "own_csv", "own_model", "defense", "federation", "closed_form"}


@pytest.fixture
def example(tmp_path, monkeypatch, capsys):
    """What an example prints, run in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> list[str]:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def notebook(tmp_path, monkeypatch, capsys):
    """What a notebook's cells show when they are run one after the other in an empty folder: what each
    prints, and the value of a last expression, as a notebook would have it."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> list[tuple[str, object]]:
        names: dict[str, object] = {"__name__": "__main__"}
        shown = []
        for cell in cells(FOLDER / f"{name}.ipynb"):
            tree, value = ast.parse("".join(cell["source"])), None
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, name, "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), name, "eval"), names)
            shown.append((capsys.readouterr().out, value))
        return shown

    return run


def cells(path: Path) -> list[dict]:
    return [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


def values(line: str, name: str) -> tuple[float, float, float]:
    """The estimate of this name in a line: value, low, high."""
    found = re.search(rf"{name} ([\d.]+) \(([\d.]+) to ([\d.]+) at 95%", line)
    return float(found[1]), float(found[2]), float(found[3])


def test_there_are_six_examples_of_under_forty_lines():
    assert {path.stem for path in FOLDER.glob("*.py")} == NAMES
    for path in FOLDER.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 40, path.name
        assert f"python examples/{path.name}" in text


def test_notebooks_are_kept_without_what_they_showed():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {"first_audit", "federation"}
    for path in FOLDER.glob("*.ipynb"):
        document = json.loads(path.read_text(encoding="utf-8"))
        assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
        assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(path))


@pytest.mark.slow
def test_the_first_audit_is_a_page_a_table_and_a_picture_in_a_notebook(notebook):
    (told, _), (_, report), (_, table), (_, figures), (_, roc), (mine, _) = notebook("first_audit")
    assert "Severe: sex (attribute), adult." in told
    assert report._repr_html_().startswith("<iframe")
    low = table.groupby("id")["low"].max()
    assert set(low[low > 0.5].index) == {"attribute", "property", "distribution", "membership"}
    assert set(low[low <= 0.5].index) == {"attribute, DPSGD"}
    assert "roc" in figures
    assert roc._repr_svg_().startswith("<svg xmlns")
    for fact in ("sex (property), adult", "weights of its own", "batch by batch", "dropout", "not attacked"):
        assert fact in mine
    assert "say nothing about" not in mine


@pytest.mark.slow
def test_a_federation_is_recorded_and_audited_in_a_notebook(notebook):
    (recorded, _), (told, _), (_, report), (_, roc) = notebook("federation")
    assert "Clients: 4" in recorded
    assert report.verdicts[0].leaks
    assert "100 records" in told
    assert roc.startswith("<svg xmlns")


@pytest.mark.slow
def test_three_gradients_tell_the_sex_of_sixteen_people(example):
    guess, success, advantage, auroc, tpr = example("first_audit")
    assert values(success, "success rate")[1] > float(guess.split()[1])
    assert values(advantage, "advantage")[1] > 0.5
    assert values(auroc, "AUROC")[1] > 0.9
    assert tpr.startswith("TPR at 1% FPR")


@pytest.mark.slow
def test_a_table_becomes_a_report(example, tmp_path):
    title, *verdicts = (lines := example("own_csv"))[:6]
    assert "6 results" in title
    assert sum("gender" in verdict for verdict in verdicts) == 3
    assert sum("who was trained on" in verdict for verdict in verdicts) == 1
    cut = next(
        i for i, line in enumerate(lines) if line.split() == ["id", "value", "low", "high", "guessing"]
    )
    rows = {line.rsplit(maxsplit=4)[0].strip(): [*map(float, line.split()[-4:])] for line in lines[cut + 1 :]}
    assert list(rows) == ["attribute", "property", "distribution", "attribute, DPSGD"]
    assert rows["attribute"][1] > 0.6  # the column is an input
    assert "<!doctype html>" in (tmp_path / "report.html").read_text(encoding="utf-8")[:100].lower()


@pytest.mark.slow
def test_every_layer_of_a_module_is_attacked_and_those_next_to_the_inputs_tell_most(example):
    told = {line.split(":")[0]: values(line, "AUROC") for line in example("own_model")}
    assert list(told) == ["deep.0", "deep.2", "wide"]
    assert min(told["deep.0"][1], told["wide"][1]) > told["deep.2"][2]


@pytest.mark.slow
def test_pruning_spoils_the_guesses_of_the_static_adversary_only(example):
    static, adaptive = example("defense")
    assert values(adaptive, "advantage")[1] > values(static, "advantage")[2]
    assert values(static, "AUROC")[1] > 0.8  # it ranks well all the same


@pytest.mark.slow
def test_the_whitened_attack_finds_more_members_than_the_loss(example, tmp_path):
    loss, cosine, whitened = example("federation")
    assert values(whitened, "AUROC")[1] > values(loss, "AUROC")[2]
    assert values(cosine, "AUROC")[1] > 0.6
    Recording(tmp_path / "run").complete()


@pytest.mark.slow
def test_no_attack_is_better_than_the_best_possible_one(example):
    lines = example("closed_form")
    assert len(lines) == 4
    for line in lines:
        best = float(re.search(r"right in ([\d.]+)", line)[1])
        _, low, high = values(line, "success rate")
        assert low <= best
        assert high > 0.5
