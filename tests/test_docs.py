"""What the pages show runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leakscope import Inference, Knowledge, Plain, play, seeded, success_rate

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
def test_the_example_of_the_readme_runs_and_finds_the_leak(capsys):
    code, *_ = blocks("README.md")
    names: dict = {}
    exec(code, names)
    assert names["ls"].advantage(names["transcript"]).low > 0.5
    assert "AUROC" in capsys.readouterr().out
    assert len([line for line in code.splitlines() if line.strip()]) <= 16


def test_the_federation_of_the_readme_runs_and_finds_members(capsys, tmp_path, monkeypatch):
    _, code, *_ = blocks("README.md")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    assert names["ls"].auroc(names["found"]).low > 0.6
    assert "PLR at 5% FPR" in capsys.readouterr().out


@pytest.mark.slow
def test_the_layers_of_the_readme_run_and_the_first_tells_most(capsys):
    *_, code, _ = blocks("README.md")
    exec(code, {})
    told = {line.split()[0]: float(line.split()[2]) for line in capsys.readouterr().out.splitlines()}
    assert list(told) == ["0", "2", "4"]
    assert max(told, key=told.get) == "0"
    assert told["0"] > 0.5


@pytest.mark.slow
def test_the_guard_of_the_readme_hides_the_secret_from_one_draw_and_less_from_sixteen(capsys):
    *_, code = blocks("README.md")
    names: dict = {}
    exec(code, names)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [
        ["Network", "1"],
        ["Fisher", "1"],
        ["Network", "16"],
        ["Fisher", "16"],
    ]
    assert all(float(line[2]) < 0.75 for line in lines[:2])


def test_the_attack_of_the_contributing_page_finds_everything_in_plain(parts):
    (code,) = blocks("CONTRIBUTING.md")
    names: dict = {"__name__": "example"}
    exec(code, names)
    game = Inference(parts[0], "group", batch=4)
    knowledge = Knowledge(game.on(parts[2]), Plain(2), 200, game.chances)
    transcript = play(game, Plain(2), names["NearestMean"](), knowledge, trials=100, rng=seeded(0))
    assert success_rate(transcript).value == 1.0


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target
