"""The command line as a person meets it."""

from __future__ import annotations

import gzip
import subprocess
import sys

import pytest

from leakscope import load


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


@pytest.mark.parametrize("command", [[], ["audit"], ["run"], ["report"], ["list"], ["papers"]])
def test_help_tells_what_each_command_does(command):
    shown = leakscope(*command, "--help")
    assert shown.returncode == 0
    assert "Usage: leakscope" in shown.stdout
    assert len(shown.stdout) > 150


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
        (["run", "typo.toml"], "did you mean 'Inference'"),
        (["run", "missing.toml"], "does not exist"),
        (["report", "taken"], "no plan.toml"),
        (["papers", "999"], "unknown paper '999'"),
        (["papers", "000", "--only", "fig99"], "unknown figure 'fig99'"),
        (["audits"], "No such command 'audits'"),
    ]


def test_every_mistake_is_one_sentence_and_exit_code_2_and_writes_nothing(tmp_path):
    cases = complaints(tmp_path)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    for arguments, words in cases:
        shown = leakscope(*arguments, cwd=tmp_path)
        assert shown.returncode == 2, (arguments, shown.stderr)
        assert words in shown.stderr, (arguments, shown.stderr)
        assert "Traceback" not in shown.stderr
        assert len(shown.stderr.strip().splitlines()) == 1, shown.stderr
    assert before == sorted(p.name for p in tmp_path.rglob("*"))


def test_debug_shows_the_traceback(tmp_path):
    shown = leakscope("--debug", "audit", "nothing.csv", "--label", "a", "--secret", "b", cwd=tmp_path)
    assert "Traceback" in shown.stderr


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
