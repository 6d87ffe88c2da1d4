"""The examples run as they are, and show what they say they show."""

from __future__ import annotations

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


@pytest.mark.slow
def test_three_gradients_tell_the_sex_of_sixteen_people(example):
    guess, success, advantage, auroc, tpr = example("first_audit")
    assert values(success, "success rate")[1] > float(guess.split()[1])
    assert values(advantage, "advantage")[1] > 0.5
    assert values(auroc, "AUROC")[1] > 0.9
    assert tpr.startswith("TPR at 1% FPR")


@pytest.mark.slow
def test_a_table_becomes_a_report(example, tmp_path):
    title, *verdicts = (lines := example("own_csv"))[:4]
    assert "3 results" in title
    assert all("gender" in verdict for verdict in verdicts)
    rows = {line.split()[0]: [*map(float, line.split()[1:])] for line in lines[5:]}
    assert list(rows) == ["attribute", "property", "distribution"]
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
