"""The command line as a person meets it."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import warnings
from importlib.metadata import version

import pytest

from leakscope import audits, load, store, sweep, tuning
from leakscope.plan import from_document, parse

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer takes names that click 8.5 is giving up
    from typer.testing import CliRunner

    from leakscope import cli, terminal


def leakscope(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leakscope.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


def table(path, rows=900, name="mark"):
    """A hospital's table: age, ward, gender, and whether the patient died."""
    import numpy as np

    rng = np.random.default_rng(0)
    gender = rng.choice(["f", "m"], rows)
    age = rng.normal(60, 10, rows) + 6 * (gender == "m")
    died = rng.random(rows) < 1 / (1 + np.exp(-(age - 60) / 10))
    ward = rng.choice(["A", "B", "C"], rows)
    lines = [f"age,ward,gender,{name}"]
    lines += [
        f"{a:.1f},{w},{g},{'yes' if d else 'no'}" for a, w, g, d in zip(age, ward, gender, died, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


COMMANDS = {"audit": "DATA", "tune": "DATA", "run": "PLAN", "report": "FOLDER", "recording": "FOLDER"}
COMMANDS |= {"papers": "PAPER", "list": ""}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_what_each_command_does_and_takes(command):
    shown = CliRunner().invoke(cli.app, [command, "--help"], prog_name="leakscope")
    assert shown.exit_code == 0
    assert f"Usage: leakscope {command}" in shown.stdout
    assert len(shown.stdout) > 150
    if COMMANDS[command]:
        assert f"{COMMANDS[command]} is " in " ".join(shown.stdout.split())
    assert f"  {command} " in CliRunner().invoke(cli.app, ["--help"]).stdout


def test_every_option_says_what_it_is_for():
    for command in COMMANDS:
        shown = CliRunner().invoke(cli.app, [command, "--help"]).stdout
        for line in shown.split("Options:\n")[1].splitlines():
            assert not line.startswith("  -") or "  " in line.strip(), line
        assert "/ --no-" not in shown


def test_help_needs_no_torch():
    code = (
        "import sys; from leakscope.cli import app; app(['--help'], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.returncode == 0
    assert "leakscope audit adult" in shown.stdout


def test_the_version_is_that_of_the_package():
    assert leakscope("--version").stdout == f"leakscope {version('leakscope')}\n"


def test_list_names_every_part():
    shown = leakscope("list").stdout
    for name in ("Inference", "Posterior", "RandomForest", "MaxPool", "Defense", "MLP", "auroc", "adult"):
        assert f"  {name} " in shown


QUICK = ["--trials", "60", "--rehearsals", "80", "--rounds", "1", "--batch", "8", "--jobs", "1"]


@pytest.mark.slow
def test_a_table_of_ones_own_becomes_a_report_and_can_be_repeated(tmp_path):
    table(tmp_path / "patients.csv")
    shown = leakscope("audit", "patients.csv", "--label", "mark", "--secret", "gender", *QUICK, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "audit-patients" / "report.html").read_text()
    assert "gender" in page
    cells = sorted((tmp_path / "audit-patients" / "cells").iterdir())
    assert len(cells) == 3
    again = leakscope("run", "audit-patients/plan.toml", "-o", "again", "--jobs", "1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert sorted(p.name for p in (tmp_path / "again" / "cells").iterdir()) == [p.name for p in cells]
    (tmp_path / "audit-patients" / "report.html").unlink()
    assert leakscope("report", "audit-patients", cwd=tmp_path).returncode == 0
    assert (tmp_path / "audit-patients" / "report.html").read_text() == page
    table(tmp_path / "patients.csv", rows=901)
    changed = leakscope("run", "audit-patients/plan.toml", "-o", "third", cwd=tmp_path)
    assert changed.returncode == 2
    assert "has changed since the plan was written" in changed.stderr


@pytest.mark.slow
def test_a_hostile_column_name_stays_text(tmp_path):
    name = "<script>alert(1)</script>"
    table(tmp_path / "t.csv", name=name)
    shown = leakscope("audit", "t.csv", "--label", name, "--secret", "gender", *QUICK, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "audit-t" / "report.html").read_text()
    assert name not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.slow
def test_ones_own_model_is_used_when_its_module_is_trusted(tmp_path):
    table(tmp_path / "t.csv")
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\n\ndef net(data):\n    return nn.Sequential(nn.Linear(data.x.shape[1], 5), nn.Tanh(), nn.Linear(5, data.classes))\n"
    )
    base = ["audit", "t.csv", "--label", "mark", "--secret", "gender", *QUICK, "--model", "nets.net"]
    refused = leakscope(*base, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--trust nets" in refused.stderr
    assert not (tmp_path / "audit-t").exists()
    shown = leakscope(*base, "--trust", "nets", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr


def complaints(tmp_path):
    """Every mistake at the command line, and a word that must be in the answer."""
    good = table(tmp_path / "good.csv")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("age,ward,gender,mark\n")
    (tmp_path / "broken.csv.gz").write_bytes(gzip.compress(good.read_bytes())[:500])
    (tmp_path / "nan.csv").write_text(good.read_text().replace("\n", "\n,A,f,no\n", 1))
    (tmp_path / "typo.toml").write_text('[[cell]]\ndata = {name = "adult"}\ngame = {name = "Inferense"}\n')
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    roles = ["--label", "mark", "--secret", "gender"]
    return [
        (["audit", "nothing.csv", *roles], "nothing.csv does not exist"),
        (["audit", "nothing"], "'nothing'"),
        (["audit", "adlut"], "did you mean 'adult'"),
        (["tune", "notes.txt"], "must end in .csv, .csv.gz or .npz"),
        (["audit", "adult", "--secret", "sexx"], "did you mean 'sex'?); it has 'sex', 'race'"),
        (["audit", "adult", "--known", "aeg"], "did you mean 'age'?); it has 'age', 'workclass'"),
        (["audit", "adult", "--drop", "agee"], "did you mean 'age'"),
        (["audit", "adult", "--user", "person"], "no private column 'person'; it has 'sex'"),
        (["audit", "adult", "--label", "sex"], "the label of adult is 'income'"),
        (["audit", "good.csv", "--label", "marc", "--secret", "gender"], "did you mean 'mark'"),
        (["audit", "good.csv", *roles, "--known", "wart"], "did you mean 'ward'?); it has 'age', 'ward'"),
        (["audit", "good.csv", *roles, "--known", "gender"], "must not contain the secret"),
        (["audit", "good.csv"], "--label"),
        (["audit", "good.csv", "--label", "mark", "--secret", "gendre"], "did you mean 'gender'"),
        (["audit", "good.csv", "--label", "age", "--secret", "gender"], "label 'age'"),
        (["audit", "empty.csv", *roles], "it is empty"),
        (["audit", "header.csv", *roles], "none"),
        (["audit", "broken.csv.gz", *roles], "not a whole gzip file"),
        (["audit", "nan.csv", *roles], "'age' of numbers must be finite"),
        (["audit", "good.csv", *roles, "--batch", "400"], "lower the batch size"),
        (["audit", "good.csv", *roles, "--batch", "0"], "0 is not in the range"),
        (["audit", "good.csv", *roles, "--output", "taken"], "holds other files"),
        (["audit", "good.csv", *roles, "--output", "good.csv"], "'good.csv' cannot be used"),
        (["audit", "good.csv", *roles, "--output", "good.csv/sub"], "Not a directory"),
        (["audit", "good.csv", *roles, "--output", "/proc/x"], "cannot write '/proc/x/plan.toml'"),
        (["tune", "good.csv", *roles, "--output", "good.csv"], "'good.csv' cannot be used"),
        (["run", "typo.toml"], "did you mean 'Inference'"),
        (["run", "missing.toml"], "does not exist"),
        (["report", "taken"], "no plan.toml"),
        (["papers", "999"], "unknown paper '999'"),
        (["papers", "000", "--only", "fig99"], "unknown figure 'fig99'"),
        (["audits"], "No such command 'audits'"),
    ]


def test_every_mistake_is_one_sentence_and_exit_code_2_and_writes_nothing(tmp_path, monkeypatch, capsys):
    cases = complaints(tmp_path)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for arguments, words in cases:
        monkeypatch.setattr(sys, "argv", ["leakscope", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert ended.value.code == 2, (arguments, shown.err)
        assert words in shown.err, (arguments, shown.err)
        assert shown.err.startswith("leakscope: ")
        assert len(shown.err.splitlines()) == 1, shown.err
        assert shown.out == ""
    assert before == sorted(p.name for p in tmp_path.rglob("*"))


def test_a_mistake_ends_the_process_with_code_2(tmp_path):
    shown = leakscope("audit", "nothing", cwd=tmp_path)
    assert shown.returncode == 2
    assert "Traceback" not in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(tmp_path):
    shown = leakscope("--debug", "audit", "nothing.csv", "--label", "a", "--secret", "b", cwd=tmp_path)
    assert "Traceback" in shown.stderr


PLAN = """
seeds = [0, 1, 2]
[[cell]]
id = "property"
data = {name = "synthetic", records = 600, shift = 1.0}
game = {name = "Inference", secret = "group", batch = 4}
attack = {name = "Posterior", head = {name = "RandomForest", trees = 3}}
model = {name = "Linear"}
rounds = 1
trials = 30
rehearsals = 30
"""


def test_resumed_work_says_how_many_cells_were_kept(tmp_path, capsys):
    plan, folder = parse(PLAN), tmp_path / "out"
    terminal.swept(plan, PLAN, folder, jobs=1, trust=[])
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"  property, seed {i}" for i in range(3)]
    (folder / "cells" / f"{plan.cell[0].key(1)}.json").unlink()
    terminal.swept(plan, PLAN, folder, jobs=1, trust=[])
    kept, again = capsys.readouterr().err.splitlines()
    assert kept == "  2 of 3 cells kept from before"
    assert again == lines[1]


def test_the_search_tells_of_each_setting_as_soon_as_it_is_measured(tmp_path, capsys, monkeypatch):
    """Where the output is no terminal, too: a line each, before the next setting is begun."""
    families = [family for family in tuning.FAMILIES if family.name in ("Pruning", "Sign")]
    search, played = tuning.search, sweep.run_cell
    told = []

    def watched(cell, seed, *rest):
        told.append(capsys.readouterr().err)
        return played(cell, seed, *rest)

    monkeypatch.setattr(sweep, "run_cell", watched)
    monkeypatch.setattr(tuning, "search", lambda *a, **k: search(*a, families=families, **k))
    options = {"secret": "group", "batch": 4, "rounds": 1, "trials": 30, "rehearsals": 30}
    document = audits.requested("synthetic", label=None, **options)
    risk = tuning.Risk(0.99, 1.0)
    terminal.tuned(document, risk, tmp_path / "out", halvings=1, jobs=1, trust=[])
    starts = ["", "  no defense: advantage", "  Pruning rate 0.9998: advantage", "  Sign: advantage"]
    assert [line.startswith(start) for line, start in zip(told, starts, strict=False)] == [True] * 4
    assert all(line.count("\n") == 1 for line in told[1:4])
    assert len(store.results(tmp_path / "out")) == len(told)


def test_side_knowledge_that_does_not_reach_a_game_is_noted():
    data = load("adult")
    for known, words in (["age"], ["Distribution"]), ([], []):
        plan = from_document(audits.document(data, {"name": "adult"}, secret="sex", known=known))
        found = list(terminal.notes(plan, []))
        assert [
            f"--known does not reach {word}:" in note for word, note in zip(words, found, strict=True)
        ] == [True] * len(words)


def test_the_line_about_a_cell_of_dp_sgd_has_its_epsilon():
    result = {"estimates": {"success": {"value": 0.5}}, "guessing": 0.5}
    assert terminal.headline(result) == "right in 50.0% of trials, guessing 50.0%"
    promise = {"delta": 1e-5, "step": 5.3, "run": 12.341}
    assert terminal.headline(result | {"guarantee": promise}).endswith(
        "by its own accounting (12.4, 1e-5)-DP"
    )


@pytest.mark.slow
def test_with_a_user_the_report_says_that_people_were_split(tmp_path):
    lines = table(tmp_path / "t.csv").read_text().splitlines()
    lines = [f"{'patient' if i == 0 else f'p{i // 10}'},{line}" for i, line in enumerate(lines)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    roles = ["--label", "mark", "--secret", "gender", "--user", "patient", "--known", "age"]
    shown = leakscope("audit", "t.csv", *roles, *QUICK, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "audit-t" / "report.html").read_text()
    assert "so are the people in them (patient)" in page
    assert "<em>t.csv</em>" in page
    assert "--known does not reach Distribution and UserInference" in shown.stdout


def test_the_python_call_gives_the_same_page():
    import leakscope as library

    report = library.audit(
        load("synthetic", records=1_500, shift=1.0),
        secret="group",
        trials=60,
        rehearsals=80,
        rounds=1,
        batch=8,
    )
    assert "group" in report.html()
    assert len(report.results) == 2
