"""What the pages show runs, and prints what they say it prints."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from builders import hastened

from leakscope import Dataset, Inference, Knowledge, Plain, play, seeded, success_rate
from leakscope.attacks.heads import RandomForest
from leakscope.audits.mechanism import canary
from leakscope.core.errors import DataError
from leakscope.data import LOADERS, adult
from leakscope.run import coverage, measured, published

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer takes names that click 8.5 is giving up
    import typer
    from typer.testing import CliRunner

    from leakscope import cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [str(path.relative_to(ROOT)) for path in sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w-]+\.(?:py|toml))\n")  # a block that begins with a file's name is that file
CODE = re.compile(r"# exit code (\d)$")
NEEDED = {"index.md", "first-audit.md", "your-csv.md", "your-model.md", "your-federation.md"}
NEEDED |= {
    "recording-format.md",
    "reading-the-report.md",
    "the-game.md",
    "threat-models.md",
    "extending.md",
    "is-my-epsilon-true.md",
}
NEEDED |= {"papers/found.md", *(f"papers/{number}.md" for number in published.documents())}


def fences(page: str) -> list[tuple[str, str]]:
    """The language and the text of every fenced block."""
    return FENCE.findall((ROOT / page).read_text(encoding="utf-8"))


def blocks(page: str) -> list[str]:
    return [code for language, code in fences(page) if language == "python"]


def commands(code: str) -> list[str]:
    return [line for line in code.replace("\\\n", " ").splitlines() if line.strip()]


def few() -> Dataset:
    """Every eighteenth person of Adult."""
    people = adult()
    return people.take(torch.arange(0, len(people), 18))


def run(command: str) -> str:
    """What ``leakscope ...`` prints; it must end with the exit code its comment says, or with 0. What is
    shown is that it runs, so it has few records, forests of five trees, a canary of twenty steps and networks
    of two epochs."""
    name, *words = shlex.split(command, comments=True)
    assert name == "leakscope", command
    fresh, climb = RandomForest.fresh, canary._climb
    with (
        hastened(),
        patch("leakscope.data.LOADERS", LOADERS | {"adult": few}),
        patch.object(RandomForest, "fresh", lambda head, seed: fresh(replace(head, trees=5), seed)),
        patch.object(canary, "_climb", lambda *parts, **given: climb(*parts, **given | {"steps": 20})),
    ):
        result = CliRunner().invoke(cli.app, words, prog_name="leakscope")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    expected = CODE.search(command)
    assert result.exit_code == (int(expected[1]) if expected else 0), result.output
    return result.stdout


def write(code: str) -> None:
    """The file that a block is."""
    name = FILE.match(code)[1]
    Path(name).write_text(code, encoding="utf-8")
    sys.modules.pop(Path(name).stem, None)  # another page may have had one of the same name
    importlib.invalidate_caches()


def same(shown: str, told: str) -> bool:
    """Whether this was printed; ``...`` stands for anything."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(shown, told, flags)


def follow(page: str, printed: Callable[[], str], *, flower: bool) -> None:
    """Do what a page shows, from its first block to its last, in the folder we are in."""
    names, told = {"__name__": "page"}, ""
    for language, code in fences(page):
        if "flwr" in code and not flower:
            continue
        if language in ("python", "toml") and FILE.match(code):
            write(code)
        elif language == "python":
            exec(compile(code, page, "exec"), names)
            told = printed()
        elif language == "bash":
            told = "".join(run(command) for command in commands(code))
        elif language == "text":
            assert same(code, told), f"{page} shows\n{code}\nand what is printed is\n{told}"
        else:
            pytest.fail(f"{page} has a block of {language!r}: nothing runs it")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in; cells are run one after the other, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # as a script there has it
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return tmp_path


def flower() -> bool:
    """Whether Flower is here; it is imported once, with the warnings that are its own."""
    if importlib.util.find_spec("flwr") is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import leakscope.integrations.flower  # noqa: F401
    return True


def test_the_site_has_the_pages_it_needs_and_no_page_is_out_of_its_menu():
    menu = set(re.findall(r": (\S+\.md)$", (ROOT / "properdocs.yml").read_text(encoding="utf-8"), re.M))
    assert menu == {str(Path(page).relative_to("docs")) for page in PAGES}
    assert menu >= NEEDED


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_and_prints_what_it_shows(page, here, capsys):
    if any("flwr" in code for _, code in fences(page)) and not flower():
        follow(page, lambda: capsys.readouterr().out, flower=False)
        pytest.skip('the blocks about Flower were left out; run: pip install "leakscope[flower]"')
    follow(page, lambda: capsys.readouterr().out, flower=True)


def test_a_page_that_shows_what_is_not_printed_is_caught(here, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md shows"):
        follow("page.md", lambda: capsys.readouterr().out, flower=True)
    (tmp_path / "page.md").write_text("```bash\nleakscope report nowhere\n```\n")
    with pytest.raises(Exception, match="nowhere"):
        follow("page.md", lambda: capsys.readouterr().out, flower=True)


def hook(name: str):
    """A part of the site's builder, which finds the others beside it."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with patch.object(sys, "path", [str(DOCS), *sys.path]):
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables():
    """The hook that fills the papers' pages."""
    return hook("tables")


@pytest.mark.parametrize("number", published.documents())
def test_a_papers_page_gets_its_tables_and_values_from_what_was_measured(number, tables):
    text = (DOCS / "papers" / f"{number}.md").read_text(encoding="utf-8")
    assert {mark[0] for mark in tables.TABLE.findall(text)} == {number}
    assert {mark[0] for mark in tables.VALUE.findall(text)} <= {number}
    made = tables.on_page_markdown(hook("pictures").on_page_markdown(text, page=None), page=None)
    assert "<!-- table" not in made
    assert "{{" not in made
    assert "<!--" not in made
    rows = [
        tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in made.splitlines() if "| " in line
    ]
    told = {
        (row[1], row[3])
        for row in rows
        if len(row) == len(tables.HEADER) and row[1] not in ("measure", "---")
    }
    known = {
        (tables.spoken(measure), tables.interval(value.value, value.low, value.high))
        for block in measured.load(number).values()
        for measure, value in block.measures.items()
    }
    assert told
    assert told <= known
    printed = [one for one in coverage.fates() if one.printed.paper == number]
    assert made.count("<tr><td>") == len(printed)  # every printed number is on its paper's page


def test_every_page_has_a_picture():
    marks = ("![", "<!-- picture ", "<!-- flow: ")
    bare = [page for page in PAGES if not any(mark in (ROOT / page).read_text() for mark in marks)]
    assert bare == []


def test_a_flow_is_drawn_of_boxes_and_what_passes_between_them():
    flows = hook("flows")
    made = flows.on_page_markdown("a <!-- flow: A: <b> -> one\ntwo -> !B: d --> z", page=None)
    assert made == (
        'a <div class="flow"><div class="box"><b>A</b><br>&lt;b&gt;</div><div class="arrow"><span>one two'
        '</span></div><div class="foe"><b>B</b><br>d</div></div> z'
    )
    with pytest.raises(ValueError, match="begins and ends with a box"):
        flows.draw("A: b -> c")


def test_prose_has_numbers_and_measures_in_few_words(tables):
    assert tables.spoken("Cosine plr_at_1%") == "cosine: true over false alarms at 1%"
    assert [tables.digits(x) for x in (0.12345, 1.0, 1.2345, 12.345, 123.45)] == [
        "0.123",
        "1.000",
        "1.23",
        "12.3",
        "123",
    ]
    for measure in {name for number in published.documents() for name in published_measures(number)}:
        assert "_" not in tables.spoken(measure), measure


def published_measures(number: str) -> set[str]:
    return {measure for cell in published.cells(number).values() for measure in cell.published}


def test_a_value_that_was_not_measured_cannot_stand_on_a_page(tables):
    assert re.fullmatch(r"[\d.]+ \([\d.]+ to [\d.]+\)", tables.filled("{{ 000 attribute-adult: auroc }}"))
    for mark in (
        "{{ 000 attribute-adult: luck }}",
        "<!-- table 000 fig99 -->",
        "<!-- table 000 fig2: luck -->",
        "<!-- picture 000 fig2: luck -->",
        "{{ count 000 luck }}",
    ):
        with pytest.raises(DataError):
            tables.filled(mark)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("properdocs", reason='ProperDocs is not installed; run: pip install "leakscope[dev]"')
    command = [
        sys.executable,
        "-m",
        "properdocs",
        "build",
        "--strict",
        "--quiet",
        "-d",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0.99" in (tmp_path / "site" / "papers" / "000.html").read_text(encoding="utf-8")
    assert not list((tmp_path / "site").glob("*.py"))


def test_the_example_of_the_readme_runs_and_finds_the_leak(capsys):
    code, *_ = blocks("README.md")
    names: dict = {}
    exec(code, names)
    assert names["ls"].advantage(names["transcript"]).low > 0.5
    assert "AUROC" in capsys.readouterr().out
    assert len([line for line in code.splitlines() if line.strip()]) <= 16


@pytest.fixture(scope="module")
def federated(tmp_path_factory) -> tuple[Path, dict, str]:
    """The federation of the page for Python: the folder of its recording, its names and what it prints."""
    names: dict = {}
    folder = tmp_path_factory.mktemp("readme")
    with chdir(folder), redirect_stdout(StringIO()) as printed:
        exec(blocks("docs/from-python.md")[0], names)
    return folder, names, printed.getvalue()


def test_the_federation_of_the_readme_runs_and_finds_members(federated):
    _, names, printed = federated
    assert names["ls"].auroc(names["found"]).low > 0.6
    assert "PLR at 5% FPR" in printed


@pytest.mark.slow
def test_the_layers_of_the_readme_run_and_the_first_tells_most(capsys):
    *_, code, _ = blocks("docs/from-python.md")
    exec(code, {})
    told = {line.split()[0]: float(line.split()[2]) for line in capsys.readouterr().out.splitlines()}
    assert list(told) == ["0", "2", "4"]
    assert max(told, key=told.get) == "0"
    assert told["0"] > 0.5


@pytest.mark.slow
def test_the_guard_of_the_readme_hides_the_secret_from_one_draw_and_less_from_sixteen(capsys):
    *_, code = blocks("docs/from-python.md")
    names: dict = {}
    exec(code, names)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    expected = [["Network", "1"], ["Fisher", "1"], ["Network", "16"], ["Fisher", "16"]]
    assert [line[:2] for line in lines] == expected
    assert all(float(line[2]) < 0.75 for line in lines[:2])


def test_no_block_of_python_in_the_readme_is_left_out():
    assert len(blocks("README.md")) == 1  # it has a test of its own above
    assert len(blocks("docs/from-python.md")) == 3  # so have these
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


SIZES = {  # of the README's commands in a test
    "audit": "--rounds 1 --trials 60 --rehearsals 120",
    "tune": "--rounds 1 --trials 60 --rehearsals 60 --halvings 1",
    "localise": "--rounds 1 --trials 60 --rehearsals 60",
}
PRUNED = "--defense Pruning:rate=0.99"  # docs/first-audit.md runs it


def smaller(command: str) -> str:
    words = shlex.split(command.replace(PRUNED, ""), comments=True)
    sizes = "" if "--recording" in words else SIZES.get(words[1], "")
    return f"{shlex.join(words)} {sizes}"


def parsed(command: str) -> None:
    """Refuse a command whose options do not exist; nothing is run."""
    _, name, *words = shlex.split(command, comments=True)
    typer.main.get_command(cli.app).commands[name].make_context(name, words)


def options(command: str) -> set[str]:
    """The program, the command and the options that are given to it."""
    words = shlex.split(command, comments=True)
    return {*words[:2], *(word for word in words if word.startswith("-"))}


def on_a_page(command: str) -> bool:
    """Whether a page of the site gives the same command with the same options or more."""
    given = [
        c for page in PAGES for language, code in fences(page) if language == "bash" for c in commands(code)
    ]
    return any(options(command) <= options(other) for other in given)


def prepared(names: dict) -> None:
    """What the README's reader has: a table, and candidates for the recording of its federation."""
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal(60, 10):.1f},{rng.choice(['f', 'm'])},{rng.integers(2)}" for _ in range(600)]
    Path("patients.csv").write_text("\n".join(["age,gender,mortality", *rows]) + "\n")
    members, others = names["clients"][0], names["others"]
    client = ["0"] * len(members) + ["nobody"] * len(others)
    x, y = (np.concatenate([getattr(members, a), getattr(others, a)]) for a in ("x", "y"))
    np.savez("candidates.npz", x=x, y=y, client=client)


@pytest.mark.slow
def test_every_command_of_the_readme_runs_here_or_on_a_page(federated, here, monkeypatch):
    folder, names, _ = federated
    monkeypatch.chdir(folder)
    prepared(names)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "leakscope audit adult" in makefile
    assert on_a_page("leakscope audit adult")
    for language, code in fences("README.md"):
        if language == "toml":
            write(code)
        for command in commands(code.replace(".venv/bin/", "")) if language == "sh" else ():
            _, name, *rest = shlex.split(command, comments=True)
            if command.startswith("make"):
                assert f"\n{name}:" in makefile, command
            elif name in ("guard", "encode"):
                assert on_a_page(command)
            elif rest[0] == "celeba":
                parsed(command)  # its files do not ship
            elif name == "gate":
                run(f"{command.partition('#')[0]}# exit code 1")  # sixty trials are enough to see a leak
            else:
                run(smaller(command))


def test_the_attack_of_the_contributing_page_finds_everything_in_plain(parts):
    (code,) = blocks("CONTRIBUTING.md")
    names: dict = {"__name__": "example"}
    exec(code, names)
    game = Inference(parts[0], "group", batch=4)
    knowledge = Knowledge(game.on(parts[2]), Plain(2), 200, game.chances)
    transcript = play(game, Plain(2), names["NearestMean"](), knowledge, trials=100, rng=seeded(0))
    assert success_rate(transcript).value == 1.0


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES])
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert ((ROOT / page).parent / target).exists(), target
