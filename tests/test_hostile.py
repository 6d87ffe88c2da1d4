"""Words and code that somebody else chose: no name becomes markup or moves the cursor, no code runs untrusted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import tomli_w
import torch
from builders import KINDS, Page, cell, fail, measure
from fuzzing import works_or_says_why

from leakscope.cli.terminal import print_table
from leakscope.core import files
from leakscope.core.errors import DataError, PlanError, printable
from leakscope.data import synthetic
from leakscope.models import weights
from leakscope.report import comparison, overview
from leakscope.report import page as report
from leakscope.report.report import Report
from leakscope.results import gate as gating
from leakscope.results import store
from leakscope.results.compare import compare
from leakscope.results.result import Result
from leakscope.run import engines, plan, progress

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer takes names that click 8.5 is giving up
    from leakscope.cli import terminal

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)' x='",
    "</style><svg onload=alert(1)>",
    "</title></svg><iframe src=//evil.example>",
    "{{ 7 * 7 }}{% for x in y %}${x}",
    "javascript:alert(1)",
    "<!-- --!> ]]> <?xml ?> &lt;b&gt; &#60;",
    "\u202egnp.exe\u2066 \u05d0\u05d1",
    "a\nb\r\nc\td",
    "\x1b[31mred\x07\x00",
    "\x1b]0;title\x07",
    "x" * 10_000,
)
WORDS = {"group", "synthetic", "label", "early", "late", "adult", "sex", "income", "Female", "Male"}
KEYS = WORDS - {"label"}  # which is a field of ours too


def rename(node: Any, name: str) -> Any:
    """The same document with every word that comes from somebody's data replaced."""
    if isinstance(node, dict):
        return {key if key not in KEYS else name: rename(value, name) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [rename(item, f"{name}{i if i else ''}") for i, item in enumerate(node)]
    return name if node in WORDS and isinstance(node, str) else node


def named(result: Result[Any], name: str) -> Result[Any]:
    """A result as it would be on disk if somebody's words had been others, read as any other."""
    table = rename(result.table, name)
    table["cell"] |= {"id": name, "note": name}
    return store.parse(table, where="a result")


def checked(page: str, like: str) -> None:
    """Nothing is marked up that is not in the page of tame words, and nothing is fetched or run."""
    found, tame = Page(page), Page(like)
    kinds, known = (
        {(tag, name) for tag, attrs in one.seen for name in ("", *attrs)} for one in (found, tame)
    )
    assert kinds <= known
    assert found.declared == tame.declared
    for name, value in ((name, value or "") for _, attrs in found.seen for name, value in attrs.items()):
        if name in ("href", "src", "action", "xlink:href", "formaction"):
            assert re.match(r"#|data:image/png;base64,|[\w.-]+/report\.html$", value), value
        if name == "style":
            assert "url(" not in value
    assert found.scripts == tame.scripts


def results(kind: str) -> list[Result[Any]]:
    """Real ones, of which the second kind has failed."""
    if kind == "failed":
        lost = {"name": "npz", "path": "group", "secrets": ["group"]}
        return [engines.run_task(cell("game", data=lost), 0, trusted=(), spare=1).result, measure("game")]
    return [measure(kind), measure(kind, seed=1)] if kind == "game" else [measure(kind)]


@pytest.mark.parametrize("kind", [*KINDS, "failed"])
def test_no_word_of_the_data_becomes_markup_in_a_report(kind):
    found = results(kind)
    tame = report.render(found, plan='name = "Audit"', title="Audit")
    for name in HOSTILE:
        hostile = [named(result, name) for result in found]
        assert hostile != found
        checked(report.render(hostile, plan=f"name = {json.dumps(name)}", title=name), tame)


@pytest.mark.parametrize("kind", KINDS)
def test_no_error_of_a_cell_becomes_markup_in_a_report(kind):
    tame = report.render([fail(measure(kind))], plan="", title="Audit")
    for name in HOSTILE:
        wrong = fail(measure(kind), f"no {name}")
        checked(report.render([wrong], plan="", title="Audit"), tame)


def pages(folder: Path, name: str) -> list[str]:
    """Where runs are judged, compared and listed, each with a word of that name."""
    found, other = (named(measure("game", seed=seed), name) for seed in (0, 1))
    appetite = gating.Appetite(limit=({"secret": name, "measure": "advantage", "at_most": 0.1},))
    verdict = gating.judge(appetite, [found])
    both = compare([found], [other], names=(name, name + "2"))
    lines = [*gating.as_text(verdict), *comparison.text(both), *Report((found,), "").lines]
    assert all(printable(line).isprintable() for line in lines)
    store.save(folder / "run", found)
    document = {"name": name, "cell": [json.loads(found.cell.model_dump_json(exclude_none=True))]}
    files.write(folder / "run" / "plan.toml", tomli_w.dumps(document))
    report.write(folder / "run")
    overview.write([folder / "run"], folder / "overview.html")
    listed = (folder / "overview.html").read_text(encoding="utf-8")
    return [report.render([found], plan="", title=name, verdict=verdict), comparison.render(both), listed]


def test_no_word_becomes_markup_where_runs_are_judged_compared_or_listed(tmp_path):
    tame = pages(tmp_path / "tame", "sex")
    for i, name in enumerate(HOSTILE):
        for page, like in zip(pages(tmp_path / str(i), name), tame, strict=True):
            checked(page, like)


def table(path, names: list[str], values: tuple[str, str]) -> None:
    """Four hundred people whose columns and values are called so; all cells are quoted."""
    rng = np.random.default_rng(0)
    rows = [names] + [
        [f"{age:.1f}", values[secret], "yes" if label else "no"]
        for age, secret, label in zip(
            rng.normal(60, 10, 400), rng.integers(0, 2, 400), rng.integers(0, 2, 400), strict=True
        )
    ]
    text = "\n".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows)
    path.write_text(text, encoding="utf-8", newline="")


def shown(said) -> str:
    """What a terminal was given, which holds lines of characters that print."""
    text = said.out + said.err
    assert all(line.isprintable() for line in text.split("\n")), ascii(text)
    assert "Traceback" not in text
    return text


@pytest.mark.slow
def test_an_audit_of_hostile_names_and_values_is_a_report_and_plain_lines(leakscope, tmp_path):
    label, secret = "mark\x1b[31m\u202e</style>", '"><img src=x onerror=alert(1)> {{ 7 * 7 }}'
    file = "<b>t\x1b[2J.csv"
    table(tmp_path / file, ["age\nin years", secret, label], ("<script>f</script>", "m\x07"))
    table(tmp_path / "tame.csv", ["age", "gender", "mark"], ("f", "m"))
    quick = ["--trials", "60", "--rehearsals", "120", "--rounds", "1", "--jobs", "1"]
    for name, *roles in (file, label, secret), ("tame.csv", "mark", "gender"):
        words = ("audit", name, "--label", roles[0], "--secret", roles[1], *quick, "-o", roles[1][:1])
        done = leakscope(*words, cwd=tmp_path)
        assert done.code == 0, done.err
        assert "Report:" in shown(done)
    page, tame = ((tmp_path / out / "report.html").read_text(encoding="utf-8") for out in '"g')
    checked(page, tame)
    assert "&lt;script&gt;f&lt;/script&gt;" in page
    again = leakscope("run", '"', cwd=tmp_path)
    assert again.code == 0
    shown(again)


def test_a_table_of_names_is_printed_as_they_are(capsys):
    names = ["[red]", "[/red]", ":smile:", "a\x1b[2J"]
    print_table(names, [names])
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == row.split() == ["[red]", "[/red]", ":smile:", r"a\x1b[2J"]


REFUSED = (
    "audit t.csv --label wrong\x1b[31m --secret b",
    "audit t.csv --label a\nb --secret b",
    "audit cut.csv.gz --label a --secret b",
    "audit latin.csv --label a --secret b",
    "audit \x1b[31m.csv --label a --secret b",
    "audit adult --defense os.system",
    "audit adult --defense Pruning:rate=[[[[",
    "audit adult --defense Noise:std=nan",
    "audit adult --model builtins.eval",
    "audit adult --\u202eoption",
    "run broken.toml",
    "run deep.toml",
    "run os.toml",
    "report empty",
    "report nowhere\x07",
    "report damaged",
    "gate damaged appetite.toml",
    "gate empty broken.toml",
    "recording empty",
    "recording damaged --check",
    "encode nowhere t.csv",
)


@pytest.mark.parametrize("words", REFUSED, ids=ascii)
def test_every_command_refuses_in_one_line_with_exit_code_2_and_leaves_nothing(leakscope, tmp_path, words):
    (tmp_path / "t.csv").write_text("a,b,c\n1,x,2\n0,y,3\n")
    (tmp_path / "cut.csv.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    (tmp_path / "latin.csv").write_bytes("a,b,é\n1,2,3\n".encode("latin-1"))
    (tmp_path / "broken.toml").write_text("[[cell]\n\x1b[31m")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5_000)
    (tmp_path / "os.toml").write_text('[[cell]]\ndata = {name = "adult"}\ngame = {name = "os.system"}\n')
    (tmp_path / "appetite.toml").write_text('[[limit]]\nsecret = "x"\nmeasure = "auroc"\nat_most = 0.5\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged" / "cells").mkdir(parents=True)
    (tmp_path / "damaged" / "cells" / "a.json").write_text('{"key": "a", "seed"')
    (tmp_path / "damaged" / "plan.toml").write_text("[[cell]]\n")
    (tmp_path / "damaged" / "recording.json").write_text("{")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    done = leakscope(*words.split(" "), cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert shown(done).startswith("leakscope: ")
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_the_lines_of_a_sweep_and_the_cells_of_a_table_print(capsys):
    with progress.bar() as bar:
        progress.say(bar, "a cell called \x1b[31m\u202e\nbad [bold]")
    terminal.print_table(["name"], [["\x1b]0;t\x07 [red]x[/red]"]])
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in (out + err).split("\n"))


# trusted modules

MODULE = """
import os
import subprocess
from os import system
from pathlib import Path
from torch import nn
from torch.nn import Linear

(Path(__file__).parent / f"{__name__}.imported").touch()


class Net(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.layer = Linear(inputs, classes)

    def forward(self, x):
        return self.layer(x)


run = os.system
"""
PLAN = """
seeds = [0, 1]
[[cell]]
data = {{name = "synthetic", records = 400}}
game = {{name = "Inference", secret = "group", batch = 4}}
attack = {{name = "Posterior", head = {{name = "RandomForest", trees = 5}}}}
model = {{name = "{}"}}
rounds = 1
trials = 20
rehearsals = 20
train = 150
public = 100
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """Two modules that tell by a file whether they were imported, one of them to be trusted."""
    for name in ("mynets_trusted", "evil_module"):
        (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("mynets_trusted", "evil_module"):
        sys.modules.pop(name, None)


def imported(folder) -> set[str]:
    return {path.stem for path in folder.glob("*.imported")}


OUTSIDE = (
    "os.system", "subprocess.Popen", "builtins.eval", "builtins.__import__", "evil_module.Net", "evil_module", "evil_module.a.b",
    "mynets_trustedx.Net", "mynets.Net", ".Net", "..Net", "evil_module.", ".", "mynets_trusted", "os.path.join",
    "leakscope.results.store.write", "mynets_trusted/../evil_module.Net", "evil_module.Net\x00", "Evil_module .Net",
)  # fmt: skip
WITHIN = (
    "mynets_trusted.os", "mynets_trusted.os.system", "mynets_trusted.system", "mynets_trusted.run", "mynets_trusted.subprocess.Popen",
    "mynets_trusted.Linear", "mynets_trusted.nn.Linear", "mynets_trusted.Path", "mynets_trusted.__class__", "mynets_trusted.__init__",
    "mynets_trusted.__builtins__", "mynets_trusted.__loader__", "mynets_trusted.__dict__", "mynets_trusted.Net.__init__",
    "mynets_trusted.Net.__subclasses__", "mynets_trusted.__getattribute__", "mynets_trusted.", "mynets_trusted..Net",
    "mynets_trusted.absent", "mynets_trusted.__doc__",
)  # fmt: skip
SPOTS = ("game", "attack", "model", "defense")


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("trusted", [(), ("mynets_trusted",)], ids=["nothing trusted", "another trusted"])
def test_a_name_outside_what_is_trusted_is_refused_before_anything_is_imported(nets, name, trusted):
    before = set(sys.modules)
    cell = {"data": {"name": "synthetic"}, "game": {"name": "Inference", "secret": "group", "batch": 4}}
    for part in (
        *({spot: {"name": name}} for spot in SPOTS),
        {"attack": {"name": "Posterior", "head": {"name": name}}},
        {"defense": {"name": "Chain", "defenses": [{"name": name}]}},
    ):
        document = {"cell": [cell | part]}
        assert isinstance(
            works_or_says_why(partial(plan.from_document, document, trusted=trusted)), PlanError
        )
    assert imported(nets) == set()
    assert not {"evil_module", "mynets_trusted"} & (set(sys.modules) - before)


@pytest.mark.parametrize("name", WITHIN)
def test_what_a_trusted_module_has_from_elsewhere_is_refused(nets, name):
    said = works_or_says_why(lambda: plan.parse(PLAN.format(name), trusted=["mynets_trusted"]))
    assert isinstance(said, PlanError)
    assert "evil_module" not in imported(nets)


@pytest.mark.parametrize(
    "content", ["def broken(:", "import absent_module", "from os import absent", "x = 1 / 'a'"], ids=range(4)
)
def test_a_trusted_module_that_cannot_be_imported_is_told_in_one_sentence(nets, content):
    (nets / "mynets_trusted.py").write_text(content)
    assert works_or_says_why(
        lambda: plan.parse(PLAN.format("mynets_trusted.Net"), trusted=["mynets_trusted"])
    )


@pytest.mark.parametrize("trusted", [[""], ["."], ["*"], ["os.system"], ["mynets"]])
def test_trust_in_something_else_opens_nothing(nets, trusted):
    for name in ("evil_module.Net", ".Net", "os.system.x", "mynets_trusted.Net"):
        assert works_or_says_why(lambda name=name: plan.parse(PLAN.format(name), trusted=trusted)) is not None
    assert imported(nets) == set()


@pytest.mark.slow
def test_a_trusted_class_is_used_in_workers_too_and_an_untrusted_one_never(leakscope, nets, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN.format("mynets_trusted.Net"))
    refused = leakscope("run", "plan.toml", "-o", "out", "--trust", "evil", cwd=tmp_path)
    assert refused.code == 2
    assert "--trust mynets_trusted" in shown(refused)
    assert imported(tmp_path) == set()
    assert not (tmp_path / "out").exists()
    command = [sys.executable, "-m", "leakscope.cli", "run", "plan.toml", "-o", "out", "--jobs", "2"]
    subprocess.run([*command, "--trust", "mynets_trusted"], cwd=tmp_path, check=True, timeout=300)
    assert [one.made.model.parameters for one in store.results(tmp_path / "out")] == [22, 22]
    assert imported(tmp_path) == {"mynets_trusted"}


class Evil:
    """What leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def forge(state: Any, path: Path, change: Any) -> None:
    """A file of torch with the bytes of its records changed."""
    torch.save(state, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, change(name, content))


WEIGHTS: dict[str, Any] = {
    "code": lambda path, tmp: torch.save({"w": Evil(tmp / "ran")}, path),
    "code in the old format": lambda path, tmp: torch.save(
        {"w": Evil(tmp / "ran")}, path, _use_new_zipfile_serialization=False
    ),
    "a whole module": lambda path, tmp: torch.save(torch.nn.Linear(2, 2), path),
    "a checkpoint": lambda path, tmp: torch.save({"epoch": 3, "state": {"w": torch.zeros(2)}}, path),
    "nothing": lambda path, tmp: torch.save({}, path),
    "no bytes": lambda path, tmp: path.write_bytes(b""),
    "noise": lambda path, tmp: path.write_bytes(np.random.default_rng(0).bytes(5_000)),
    "a long header": lambda path, tmp: path.write_bytes((2**62).to_bytes(8, "little") + b"{}"),
    "a bomb": lambda path, tmp: forge({"w": torch.zeros(2)}, path, lambda name, _: b"0" * 3_000_000),
    "fewer numbers than it says": lambda path, tmp: forge(
        {"w": torch.zeros(1_000)},
        path,
        lambda name, content: content[:8] if name.endswith("data/0") else content,
    ),
    "a pickle cut short": lambda path, tmp: forge(
        {"w": torch.zeros(9)}, path, lambda name, content: content[:20] if name.endswith(".pkl") else content
    ),
    "sparse": lambda path, tmp: torch.save({"w": torch.eye(3).to_sparse()}, path),
    "a folder": lambda path, tmp: path.mkdir(),
    "a pipe": lambda path, tmp: os.mkfifo(path),
    "too large": lambda path, tmp: safetensors.torch.save_file({"w": torch.zeros(600_000)}, path),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_of_somebody_else_run_no_code_and_take_no_more_room_than_they_have(
    tmp_path, monkeypatch, kind
):
    monkeypatch.setattr(weights, "MOST", 2_000_000)
    WEIGHTS[kind](tmp_path / "net.pt", tmp_path)
    with pytest.raises(DataError, match=r"^weights .*net\.pt' cannot be (read|used): .*(;|\.)"):
        weights.read(tmp_path / "net.pt")
    assert not (tmp_path / "ran").exists()


def test_a_tensor_that_is_stretched_over_nothing_is_refused_before_it_is_looked_at(tmp_path):
    torch.save({"weight": torch.zeros(1).expand(10**12), "bias": torch.zeros(2)}, tmp_path / "net.pt")
    with pytest.raises(PlanError, match="weight is 1000000000000 in the file and 2 x 2 in the model"):
        weights.fill(torch.nn.Linear(2, 2), weights.read(tmp_path / "net.pt"), "net.pt", synthetic(10))
