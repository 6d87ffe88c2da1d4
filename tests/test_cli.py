"""The command line as a person meets it."""

from __future__ import annotations

import csv
import gzip
import importlib
import inspect
import itertools
import json
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pandas as pd
import pytest
import torch
from builders import Named, cell, refuses
from guard_cells import people

import leakscope as library
from leakscope import MLP, Dataset, Local, Recorder, from_csv, load, seeded
from leakscope.core.errors import ArgumentError, DataError, LeakscopeError
from leakscope.data import tabled
from leakscope.models import build
from leakscope.report.report import Report, read_report
from leakscope.results import store
from leakscope.results.kind import headline
from leakscope.run import api, engines, progress, search, sweep, tuning
from leakscope.run.plan import parse
from leakscope.training import federate

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer takes names that click 8.5 is giving up
    import typer
    from typer.testing import CliRunner

    from leakscope import cli
    from leakscope.cli import terminal


def process(*arguments: str, cwd) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "leakscope.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


def table(path, rows=900):
    """A hospital's table: age, ward, gender, and whether the patient died."""
    rng = np.random.default_rng(0)
    gender = rng.choice(["f", "m"], rows)
    age = rng.normal(60, 10, rows) + 6 * (gender == "m")
    died = rng.random(rows) < 1 / (1 + np.exp(-(age - 60) / 10))
    ward = rng.choice(["A", "B", "C"], rows)
    lines = ["age,ward,gender,mark"]
    lines += [
        f"{a:.1f},{w},{g},{'yes' if d else 'no'}" for a, w, g, d in zip(age, ward, gender, died, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


COMMANDS = {"audit": "DATA", "tune": "DATA", "run": "PLAN", "report": "FOLDER", "recording": "FOLDER"}
COMMANDS |= {"papers": "PAPER", "list": "", "localise": "DATA", "guard": "DATA", "encode": "DATA"}
COMMANDS |= {"gate": "FOLDER", "compare": "", "summary": "", "dossier": ""}


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
        lines = [*shown.split("Options:\n")[1].splitlines(), ""]
        for line, below in itertools.pairwise(lines):  # a long option has its words below it
            said = "  " in line.strip() or below.startswith(" " * 8)
            assert not line.startswith("  -") or said, line
        assert "/ --no-" not in shown


def test_the_version_is_that_of_the_package(leakscope):
    assert leakscope("--version").out == f"leakscope {version('leakscope')}\n"


def test_list_names_every_part(leakscope):
    shown = leakscope("list").out
    for name in ("Inference", "Posterior", "RandomForest", "MaxPool", "Defense", "MLP", "auroc", "adult"):
        assert f"  {name} " in shown


QUICK = ["--trials", "60", "--rehearsals", "80", "--rounds", "1", "--batch", "8", "--jobs", "1"]


@pytest.mark.slow
def test_a_table_of_ones_own_becomes_a_report_and_can_be_repeated(leakscope, tmp_path):
    table(tmp_path / "patients.csv")
    shown = leakscope("audit", "patients.csv", "--label", "mark", "--secret", "gender", *QUICK, cwd=tmp_path)
    assert shown.code == 0, shown.err
    page = (tmp_path / "audit-patients" / "report.html").read_text()
    assert "gender" in page
    cells = sorted((tmp_path / "audit-patients" / "cells").iterdir())
    # three games, the first of them under a defense, which records can be read, and who was trained on
    assert len(cells) == 6
    again = leakscope("run", "audit-patients/plan.toml", "-o", "again", "--jobs", "1", cwd=tmp_path)
    assert again.code == 0, again.err
    assert sorted(p.name for p in (tmp_path / "again" / "cells").iterdir()) == [p.name for p in cells]
    (tmp_path / "audit-patients" / "report.html").unlink()
    assert leakscope("report", "audit-patients", cwd=tmp_path).code == 0
    assert (tmp_path / "audit-patients" / "report.html").read_text() == page
    table(tmp_path / "patients.csv", rows=901)
    changed = leakscope("run", "audit-patients/plan.toml", "-o", "third", cwd=tmp_path)
    assert changed.code == 2
    assert "has changed since the plan was written" in changed.err


@pytest.mark.slow
def test_ones_own_model_is_used_when_its_module_is_trusted(leakscope, tmp_path):
    table(tmp_path / "t.csv")
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\n\ndef net(data):\n    return nn.Sequential(nn.Linear(data.x.shape[1], 5), nn.Tanh(), nn.Linear(5, data.classes))\n"
    )
    base = ["audit", "t.csv", "--label", "mark", "--secret", "gender", *QUICK, "--model", "nets.net"]
    refused = leakscope(*base, cwd=tmp_path)
    assert refused.code == 2
    assert "--trust nets" in refused.err
    assert not (tmp_path / "audit-t").exists()
    shown = leakscope(*base, "--trust", "nets", "--defense", "none", cwd=tmp_path)
    assert shown.code == 0, shown.err


def complaints(tmp_path):
    """Every mistake at the command line, and a word that must be in the answer."""
    good = table(tmp_path / "good.csv")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("age,ward,gender,mark\n")
    (tmp_path / "broken.csv.gz").write_bytes(gzip.compress(good.read_bytes())[:500])
    (tmp_path / "inf.csv").write_text(good.read_text().replace("\n", "\ninf,A,f,no\n", 1))
    named = [
        f"{line},{'name' if i == 0 else f'n{i}'}" for i, line in enumerate(good.read_text().splitlines())
    ]
    (tmp_path / "named.csv").write_text("\n".join(named) + "\n")
    (tmp_path / "typo.toml").write_text('[[cell]]\ndata = {name = "adult"}\ngame = {name = "Inferense"}\n')
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    roles = ["--label", "mark", "--secret", "gender"]
    return [
        (["audit", "nothing.csv", *roles], "nothing.csv does not exist"),
        (["audit", "nothing"], "'nothing'"),
        (["audit", "adlut"], "did you mean 'adult'"),
        (["tune", "notes.doc"], "must end in .csv, .tsv, .txt, .gz, .parquet"),
        (["audit", "adult", "--secret", "sexx"], "did you mean 'sex'?); it has 'sex', 'race'"),
        (["audit", "adult", "--known", "aeg"], "did you mean 'age'?); it has 'age', 'workclass'"),
        (["audit", "adult", "--drop", "agee"], "did you mean 'age'"),
        (["audit", "adult", "--user", "person"], "no private column 'person'; it has 'sex'"),
        (["audit", "adult", "--label", "sex"], "the label of adult is 'income'"),
        (["audit", "good.csv", "--label", "marc", "--secret", "gender"], "did you mean 'mark'"),
        (["audit", "good.csv", *roles, "--known", "wart"], "did you mean 'ward'?); it has 'age', 'ward'"),
        (["audit", "good.csv", *roles, "--known", "gender"], "must not contain the secret"),
        (["audit", "good.csv"], "which the --secret; it has 'age', 'ward', 'gender', 'mark'."),
        (["audit", "taken"], "'taken' is a folder; a file of your own must end in .csv"),
        (["audit", "typo.toml"], "'typo.toml' is a file of a kind that is not read; a file of your own must"),
        (["tune", "adult", "--max-advantage", "2"], "--max-advantage must be in [0, 1), got 2.0"),
        (["audit", "good.csv", "--label", "mark", "--secret", "gendre"], "did you mean 'gender'"),
        (["audit", "named.csv", "--label", "name", "--secret", "gender"], "label 'name'"),
        (
            ["audit", "named.csv", "--label", "mark", "--secret", "name"],
            "secret 'name' must have at most 200",
        ),
        (["audit", "empty.csv", *roles], "it is empty"),
        (["audit", "header.csv", *roles], "none"),
        (["audit", "broken.csv.gz", *roles], "not a whole gzip file"),
        (["audit", "inf.csv", "--label", "age", "--secret", "gender"], "label 'age' must be finite"),
        (["audit", "inf.csv", "--label", "mark", "--secret", "age"], "secret 'age' must be finite"),
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
        (["papers", "000", "--only", "fig99"], "unknown figure or cell 'fig99'"),
        (["audits"], "No such command 'audits'"),
    ]


def test_every_mistake_is_one_sentence_and_exit_code_2_and_writes_nothing(leakscope, tmp_path):
    cases = complaints(tmp_path)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    for arguments, words in cases:
        shown = leakscope(*arguments, cwd=tmp_path)
        assert shown.code == 2, (arguments, shown.err)
        assert words in shown.err, (arguments, shown.err)
        assert shown.err.startswith("leakscope: ")
        assert len(shown.err.splitlines()) == 1, shown.err
        assert shown.out == ""
    assert before == sorted(p.name for p in tmp_path.rglob("*"))


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    """A table with sites and people, and files that are no weights of its model."""
    folder = tmp_path_factory.mktemp("hospital")
    frame = pd.read_csv(table(folder / "t.csv", rows=360))
    rows = np.arange(len(frame))
    frame = frame.assign(site=np.take([*"xyz"], rows % 3), patient=rows // 6, same="s")
    frame.to_csv(folder / "t.csv", index=False)
    torch.save(torch.nn.Linear(3, 2).state_dict(), folder / "other.pt")
    torch.save(torch.nn.Linear(3, 2), folder / "pickle.pt")
    return folder


ROLES = ["--label", "mark", "--secret", "gender"]
OF_AGE = ["--label", "mark", "--secret", "age"]
NAMES = "it has 'age', 'ward', 'gender', 'mark', 'site', 'patient', 'same'."
REFUSALS = {  # what is typed: what names the argument, the value and the way out
    "bins of no column": ([*ROLES, "--bins", "aeg=5"], ("'aeg' (did you mean 'age'?)", NAMES)),
    "bins of an input": ([*ROLES, "--bins", "age=5"], ("--bins is for the label", "leave --bins age out")),
    "bins of words": ([*ROLES, "--bins", "gender=2"], ("--bins is for numbers", "leave --bins gender out")),
    "one bin": ([*OF_AGE, "--bins", "age=1"], ("--bins of secret 'age' must be 2 to 20", "got 1; give")),
    "edges that fall": ([*OF_AGE, "--bins", "age=70,50"], ("edges that grow, got [70.0, 50.0]; give",)),
    "bins that are no number": ([*OF_AGE, "--bins", "age=many"], ("--bins must be", "got 'age=many'")),
    "a range of nobody": ([*OF_AGE, "--bins", "age=50,900"], ("'900 or more' has none; change its edges",)),
    "an unknown kind": ([*ROLES, "--as", "age=numeric"], ("--as age must be one of number", "got 'numeric'")),
    "no kind": ([*ROLES, "--as", "age"], ("--as must be a column with what it is", "got 'age'; it can be")),
    "a kind of no column": ([*ROLES, "--as", "aeg=number"], ("'aeg' (did you mean 'age'?)", NAMES)),
    "a kind that it is not": ([*ROLES, "--as", "ward=number"], ("no numbers; leave --as ward=number out",)),
    "drop of no column": ([*ROLES, "--drop", "wart"], ("'wart' (did you mean 'ward'?)", NAMES)),
    "keep of no column": ([*ROLES, "--keep", "wart"], ("'wart' (did you mean 'ward'?)", NAMES)),
    "an unknown person": ([*ROLES, "--person", "patent"], ("'patent' (did you mean 'patient'?)", NAMES)),
    "an unknown site": ([*ROLES, "--site", "sites"], ("'sites' (did you mean 'site'?)", NAMES)),
    "one site": ([*ROLES, "--site", "same"], ("site 'same' must have at least 2 values", "choose another")),
    "sites of few": ([*ROLES, "--site", "patient"], ("at least 40 different records", "or join them")),
    "people as sites": ([*ROLES, "--site", "site", "--user", "patient"], ("--site and --user", "--person")),
    "people of two sites": (
        [*ROLES, "--site", "site", "--person", "patient"],
        ("at one site", "leave --per"),
    ),
    "weights of no model": ([*ROLES, "--weights", "other.pt"], ("--weights needs --model", "'other.pt'")),
    "other weights": (
        [*ROLES, "--model", "MLP", "--weights", "other.pt"],
        ("weights 'other.pt' do not fit", "give the model as it was trained"),
    ),
    "a pickle": (
        [*ROLES, "--model", "MLP", "--weights", "pickle.pt"],
        ("weights 'pickle.pt' cannot be used", "whose code would be run", "save them with safetensors"),
    ),
    "no label": (["--secret", "gender"], ("which column is the --label",)),
    "an unknown label": (["--label", "marc", "--secret", "gender"], ("'marc' (did you mean 'mark'?)", NAMES)),
    "too many public": ([*ROLES, "--public", "5000"], ("5000 public records of 360", "ask for another")),
    "too many private": ([*ROLES, "--train", "5000"], ("5000 training records", "ask for fewer")),
    "none and a defense": ([*ROLES, "--defense", "none", "--defense", "Sign"], ("must stand alone", "leave")),
    "several": (
        ["--label", "marc", "--secret", "gender", "--drop", "wart", "--as", "age=x", "--bins", "ward=3"],
        (
            "for 3 reasons: (1)",
            "'marc' (did you",
            "'wart' (did you",
            "got 'x'",
            "(3) --bins is for the label",
        ),
    ),
}


@pytest.mark.parametrize("typed", REFUSALS)
def test_what_a_table_cannot_give_is_refused_in_one_sentence(leakscope, hospital, typed):
    before = {path: path.read_bytes() for path in hospital.rglob("*")}
    options, words = REFUSALS[typed]
    shown = leakscope("audit", "t.csv", *options, "--jobs", "1", cwd=hospital)
    assert (shown.code, shown.out) == (2, ""), shown.err
    assert shown.err.startswith("leakscope: ")
    assert len(shown.err.splitlines()) == 1
    assert not [part for part in words if part not in shown.err], shown.err
    assert {path: path.read_bytes() for path in hospital.rglob("*")} == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--keep", "age"], "--keep must go with a file of your own, and heart is a known dataset"),
        (["--as", "age=number", "--keep", "x"], "--keep and --as must go with a file of your own"),
        (["--bins", "aeg=3"], "did you mean 'age'"),
        (["--bins", "sex=3"], "leave --bins sex out"),
        (["--site", "sit"], "did you mean 'site'"),
        (["--person", "who"], "heart has no private column 'who'; it has 'sex', 'site'."),
    ],
)
def test_what_a_known_dataset_cannot_give_is_refused_too(leakscope, tmp_path, options, words):
    shown = leakscope("audit", "heart", *options, "--jobs", "1", cwd=tmp_path)
    assert (shown.code, shown.out) == (2, ""), shown.err
    assert words in shown.err, shown.err
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """Two clients of digits, recorded, and candidates of theirs and of nobody's as arrays and as a table."""
    folder = tmp_path_factory.mktemp("deployed")
    data = load("digits").distinct()
    data = data.take(torch.randperm(len(data), generator=seeded(0, "digits"))[:500])
    data = replace(data, x=data.x.flatten(1))
    members = [data.take(torch.arange(60)), data.take(torch.arange(60, 120))]
    client = np.array(["anna"] * 60 + ["ben"] * 60 + ["nobody"] * 380)
    model = build(MLP((24,)), data, seeded(0, "model"))
    recorder = Named(Recorder(folder / "run", model, model_name="mlp of two sites"), ("anna", "ben"))
    rng, local = seeded(0, "training"), Local(0.2, batch=10)
    federate(model, members, rounds=3, rng=rng, local=local, recorder=recorder)
    np.savez(folder / "c.npz", x=data.x.numpy(), y=data.y.numpy(), client=client)
    table = pd.DataFrame(data.x.numpy()).add_prefix("p").assign(digit=data.y.numpy(), site=client, ward="w")
    table.to_csv(folder / "c.csv", index=False)
    return folder


BASE = ["audit", "c.npz", "--recording", "run", "--client", "client", "--label", "y"]
RUN = [*BASE, "--model", "MLP"]


def test_a_recording_is_audited_and_the_plan_repeats_it(leakscope, deployed, tmp_path, monkeypatch):
    monkeypatch.chdir(deployed)
    outputs = ["-o", tmp_path / "out", "--records", tmp_path / "who.csv", "--jobs", "1"]
    code, out, err = leakscope(*RUN, *outputs)
    assert code == 0, err
    assert "FedMIA finds" in err
    assert "Layer sizes [24] come from the recording. The activation is taken to be relu." in out
    assert (
        "needs 684 judged records of nobody for each client, and there were 114; give 2280 candidates" in out
    )
    assert "test at 1% was left out" not in out  # 30% of 380 set its threshold
    page = (tmp_path / "out" / "report.html").read_text()
    assert "watched: anna, ben" in page
    assert "Who was trained on" in page
    with (tmp_path / "who.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 * (120 + 2 * 114)
    keys = {row["hash"] for row in rows}
    assert not [key for key in keys if key in page]
    kept = (tmp_path / "who.csv").read_bytes()
    code, _, err = leakscope(*RUN, *outputs)
    assert code == 0
    assert "1 of 1 cells kept" in err
    code, _, err = leakscope("run", tmp_path / "out" / "plan.toml", "-o", tmp_path / "again", "--jobs", "1")
    assert code == 0, err
    first, again = (store.results(tmp_path / name)[0].found for name in ("out", "again"))
    assert first == again
    assert (tmp_path / "who.csv").read_bytes() == kept


def test_a_table_of_candidates_is_taken_as_it_is_and_its_clients_are_no_input(
    leakscope, deployed, tmp_path, monkeypatch
):
    monkeypatch.chdir(deployed)
    roles = ["--client", "site", "--label", "digit", "--drop", "ward", "--model", "MLP:hidden=[24]"]
    command = ["audit", "c.csv", "--recording", "run", *roles, "-o", tmp_path / "out", "--jobs", "1"]
    code, out, err = leakscope(*command, "--seen", "broadcast")
    assert code == 0, err
    assert "Widths" not in out
    plan = parse((tmp_path / "out" / "plan.toml").read_text())
    records, arrays = tabled(plan.cell[0].data), np.load(deployed / "c.npz")
    assert list(records.private) == ["site"]
    assert records.x.shape == (500, 64)
    np.testing.assert_allclose(records.x.numpy(), arrays["x"], rtol=1e-6)
    assert records.y.tolist() == arrays["y"].tolist()
    found = store.results(tmp_path / "out")[0].found
    assert (found.seen, found.centred) == ("broadcast", False)


@pytest.mark.parametrize(
    ("middle", "left_out"),
    [
        ("LayerNorm(8)", False),
        ("Sequential(nn.Unflatten(1, (8, 1)), nn.Conv1d(8, 8, 1), nn.Flatten())", True),
    ],
)
def test_a_model_is_whitened_on_the_layers_that_can_be(middle, left_out, leakscope, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "normed_nets.py").write_text(
        "from torch import nn\n\n\ndef net(inputs, classes):\n"
        f"    return nn.Sequential(nn.Linear(inputs, 8), nn.{middle}, nn.Tanh(), nn.Linear(8, classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data = load("digits").distinct()
    data = replace(data, x=data.x.flatten(1)).take(torch.arange(200))
    sys.modules.pop("normed_nets", None)
    importlib.invalidate_caches()
    model = importlib.import_module("normed_nets").net(64, 10)
    recorder = Recorder(tmp_path / "run", model, model_name="normed")
    local = Local(0.1, batch=20)
    federate(model, [data.take(torch.arange(40))], rounds=1, rng=seeded(0), local=local, recorder=recorder)
    client = np.where(np.arange(200) < 40, 0, 1)
    np.savez(tmp_path / "c.npz", x=data.x.numpy(), y=data.y.numpy(), client=client)
    code, out, err = leakscope(*BASE, "--model", "normed_nets.net", "--jobs", "1")
    assert (code, "--trust normed_nets" in err) == (2, True)
    command = [*BASE, "--model", "normed_nets.net", "--trust", "normed_nets", "--jobs", "1"]
    code, out, err = leakscope(*command)
    assert code == 0, err
    note = "Whitened attacks are left out: normed_nets.net has layers that cannot be whitened"
    assert (f"Note: {note}" in out) == left_out
    assert "its threshold needs 99 records of nobody, and there were 48; give 330 candidates" in out
    attacks = store.results(tmp_path / "audit-c")[0].found.attacks
    sharp = [] if left_out else ["Whitened(by_class=True)"]
    assert [attempt.name for attempt in attacks] == [*sharp, "Cosine", "Loss", "FedLoss"]
    assert (note in (tmp_path / "audit-c" / "report.html").read_text()) == left_out


def bad_recordings(folder):
    """Recordings and candidates that cannot be audited, beside good ones."""
    arrays = dict(np.load(folder / "c.npz"))
    (folder / "empty").mkdir()
    for name in ("cut", "hole", "nan"):
        shutil.copytree(folder / "run", folder / name)
    uploaded = folder / "cut" / "round-000001-client-anna.safetensors"
    uploaded.write_bytes(uploaded.read_bytes()[:300])
    index = json.loads((folder / "hole" / "recording.json").read_text())
    del index["rounds"]["1"]
    (folder / "hole" / "recording.json").write_text(json.dumps(index))
    model = build(MLP((24,)), Dataset(torch.zeros(1, 64), torch.tensor([9]), {}), seeded(0))
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in model.named_parameters()}
    Recorder(folder / "nan", model, model_name="mlp of two sites").update(3, "anna", broken, samples=1)
    nine, few = arrays["y"] < 9, np.r_[0:130]
    changes = {
        "narrow": arrays | {"x": arrays["x"][:, :40]},
        "nine": {name: array[nine] for name, array in arrays.items()},
        "few": {name: array[few] for name, array in arrays.items()},
        "strange": arrays | {"client": np.where(arrays["client"] == "nobody", "x", "carl")},
    }
    for name, changed in changes.items():
        np.savez(folder / f"{name}.npz", **changed)
    (folder / "fixed_nets.py").write_text(
        "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))\n"
    )


def run(name="run", data="c.npz", **changes):
    roles = {"client": "client", "label": "y", "model": "MLP"} | changes
    return [
        "audit",
        data,
        "--recording",
        name,
        *(word for key, value in roles.items() if value for word in (f"--{key}", value)),
    ]


MISTAKES = [
    (run("nothing"), "holds no recording.json"),
    (run("empty"), "holds no recording.json"),
    (run("cut"), "not a complete safetensors file"),
    (run(data="adult"), "must be a file of candidates that ends in .csv, .tsv, .txt, .gz, .parquet"),
    (run(data="nothing.npz"), "nothing.npz does not exist"),
    (run(client=None), "--recording needs --client beside it"),
    (run(label=None), "--recording needs --label beside it"),
    (run(model=None), "needs --model beside it; the recording calls its model 'mlp of two sites'"),
    (run(client="clent"), "did you mean 'client'"),
    (run(client="y"), "--label and --client must name two columns, got 'y' for both"),
    (run(data="narrow.npz"), "records of 40 inputs, and layer '0.weight' of the recording takes 64"),
    (run(data="nine.npz"), "layer '2.weight' is (10, 24) in the recording and (9, 24) in the model"),
    ([*run(data="nine.npz", model="fixed_nets.net"), "--trust", "fixed_nets"], "9 values of label 'y', and the model tells 10 classes"),
    (run(data="strange.npz"), "names no client of the recording: it has 'carl', 'x', the recording has 'anna'"),
    (run(data="few.npz"), "10 candidates belong to no client of the recording, and an audit needs at least 20"),
    (run(model="Linear"), "does not fit the model: layer '1.weight' is absent in the recording"),
    (run(model="MLP:hidden=[25]"), "layer '0.weight' is (24, 64) in the recording and (25, 64) in the model"),
    (run(model="MLP:hidden"), "--model must be a name, or a name with settings"),
    (run(model="nets.Net"), "say so with --trust nets"),
    ([*run(), "--seen", "all"], "'all' is not one of 'uploads', 'sum', 'broadcast'"),
    ([*run(), "--rounds", "9"], "has no round 9; it has: 0, 1, 2, 3"),
    ([*run(), "--rounds", "5-1"], "--rounds must be rounds of the recording, such as 1-5,8, got '5-1'"),
    ([*run(), "--clients", "anna,bert"], "has no client 'bert'; its clients are 'anna', 'ben'"),
    ([*run(), "--rename", "fc=2"], "rename must give layers of the recording new names"),
    ([*run(), "--differences"], "The uploads are parameters, and are said to be differences"),
    (["audit", "adult", "--rounds", "1-5"], "--rounds must be at least 1, got '1-5'"),
    ([*run(), "--keep", "sex"], "--keep is for a model that is trained here"),
    ([*run(), "--secret", "sex"], "has no array 'sex'"),
    ([*run(), "--batch", "8"], "--batch with --recording needs --ask property"),
    ([*run(), "--secret", "sex", "--secret", "age"], "--secret must be one column with --recording"),
    ([*run(), "--drop", "x"], "--drop is for the columns of a table"),
    ([*run(), "--records", "c.npz"], "--records would overwrite 'c.npz'"),
    ([*run(), "--records", "no/who.csv"], "--records must be a file in a folder that exists"),
    ([*run(), "--records", "who.csv", "--seeds", "2"], "--records lists one audit, got --seeds 2"),
    (["audit", "adult", "--client", "sex"], "--client is for the audit of a recording"),
    (["audit", "adult", "--centred"], "--centred is for the audit of a recording"),
]  # fmt: skip


def test_every_mistake_about_a_recording_is_one_sentence_and_writes_nothing(
    leakscope, deployed, tmp_path, monkeypatch
):
    shutil.copytree(deployed, tmp_path / "here")
    bad_recordings(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for arguments, words in MISTAKES:
        code, out, err = leakscope(*arguments)
        assert (code, out) == (2, ""), (arguments, err)
        assert words in err, (arguments, err)
        assert err.startswith("leakscope: ")
        assert len(err.splitlines()) == 1, err
    assert before == sorted(path.name for path in tmp_path.rglob("*"))


def test_a_recording_that_has_gone_on_is_audited_anew(leakscope, deployed, tmp_path, monkeypatch):
    shutil.copytree(deployed, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    command = [*RUN, "--trials", "40", "--jobs", "1"]
    code, _, err = leakscope(*command)
    assert code == 0, err
    model = build(MLP((24,)), Dataset(torch.zeros(1, 64), torch.tensor([9]), {}), seeded(0))
    recorder = Recorder(tmp_path / "here" / "run", model, model_name="mlp of two sites")
    for name in ("anna", "ben"):
        recorder.update(3, name, model, samples=60)
    code, _, err = leakscope(*command)
    assert (code, "holds the results of another plan" in err) == (2, True)
    code, _, err = leakscope("run", "audit-c", "-o", "again", "--jobs", "1")
    assert (code, "has changed since the plan was written" in err) == (2, True)


def test_a_mistake_ends_the_process_with_code_2(tmp_path):
    shown = process("audit", "nothing", cwd=tmp_path)
    assert shown.returncode == 2
    assert "Traceback" not in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(leakscope, tmp_path):
    with pytest.raises(DataError, match=r"nothing\.csv"):
        leakscope("--debug", "audit", "nothing.csv", "--label", "a", "--secret", "b", cwd=tmp_path)


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
    progress.run_plan(plan, PLAN, folder, jobs=1)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"  property, seed {i}" for i in range(3)]
    (folder / "cells" / f"{plan.cell[0].key(1)}.json").unlink()
    progress.run_plan(plan, PLAN, folder, jobs=1)
    kept, again = capsys.readouterr().err.splitlines()
    assert kept == "  2 of 3 cells kept from before"
    assert again == lines[1]
    progress.run_plan(plan, PLAN, folder, jobs=1, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_the_search_tells_of_each_setting_as_soon_as_it_is_measured(leakscope, tmp_path, capsys, monkeypatch):
    """Where the output is no terminal, too: a line each, before the next setting is begun. It ends with the
    answer, which the page and a later report have too."""
    families = [family for family in tuning.FAMILIES if family.name in ("Pruning", "Sign")]
    try_all, played = tuning.search, sweep.run_cell
    told = []

    def watched(cell, seed, *rest):
        told.append(capsys.readouterr().err)
        return played(cell, seed, *rest)

    monkeypatch.setattr(sweep, "run_cell", watched)
    monkeypatch.setattr(tuning, "search", lambda *a, **k: try_all(*a, **k | {"families": families}))
    options = ["--batch", 4, "--rounds", 1, "--trials", 30, "--rehearsals", 30, "--halvings", 1]
    risk = ["--max-advantage", 0.99, "--max-loss", 1]
    shown = leakscope("tune", "synthetic", *options, *risk, "--jobs", 1, "-o", tmp_path / "out")
    assert shown.code == 0, shown.err
    starts = ["Game: property inference", "no defense: advantage", "Pruning(rate=0.9998): advantage"]
    starts.append("Sign(): advantage")
    assert [line.startswith(f"  {start}") for line, start in zip(told[:4], starts, strict=True)] == [True] * 4
    assert "at most" in told[1].splitlines()[1]  # how long it takes, once one setting has been measured
    confirmed = store.results(tmp_path / "out" / search.CONFIRMED)
    assert len(store.results(tmp_path / "out")) + len(confirmed) == len(told)
    _, chosen, second, *_, audit, where = shown.out.splitlines()
    assert audit.startswith("Audit: leakscope audit synthetic --defense ")
    assert chosen.startswith("The cheapest is ")
    assert second.startswith("On a second victim")
    assert where == f"Report: {tmp_path / 'out' / 'report.html'}"
    assert chosen in read_report(tmp_path / "out").lines
    assert "The cheapest is" in (tmp_path / "out" / "report.html").read_text()


def test_records_in_memory_cannot_be_searched():
    for records in (load("digits"), pd.DataFrame({"a": [1]})):
        refuses(ArgumentError, "records in memory", api.tune, records)


@pytest.mark.parametrize(
    ("defense", "words"),
    [
        ({"name": "Sign"}, "of trials, guessing"),
        ({"name": "DPSGD", "clip": 1.0, "noise": 1.0}, "epsilon of what was shown"),
        ({"name": "FlowerFixedClipping", "noise": 1.0}, "no epsilon holds against"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_the_line_about_a_cell_names_an_epsilon_only_where_one_holds(defense, words):
    result = engines.run_task(cell("game", defense=defense), 0, trusted=(), spare=1).result
    assert words in headline(result)
    assert ("of what was shown" in headline(result)) == (defense["name"] == "DPSGD")


def test_no_scores_are_copied_of_a_recording_whose_audit_failed(tmp_path):
    failed = engines.run_task(
        cell("game", data={"name": "npz", "path": "no.npz", "secrets": ["group"]}), 0, trusted=(), spare=1
    )
    report = Report((failed.result,), PLAN, tmp_path)
    terminal.copy_scores(report, tmp_path / "who.csv")
    assert not (tmp_path / "who.csv").exists()
    refuses(LeakscopeError, "1 of 1 cells failed", terminal.tell, report)


@pytest.mark.slow
def test_with_a_user_the_report_says_that_people_were_split(leakscope, tmp_path):
    lines = table(tmp_path / "t.csv").read_text().splitlines()
    lines = [f"{'patient' if i == 0 else f'p{i // 10}'},{line}" for i, line in enumerate(lines)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    roles = ["--label", "mark", "--secret", "gender", "--user", "patient", "--known", "age"]
    shown = leakscope("audit", "t.csv", *roles, *QUICK, cwd=tmp_path)
    assert shown.code == 0, shown.err
    page = (tmp_path / "audit-t" / "report.html").read_text()
    assert "so are the people in them (patient)" in page
    assert "<em>t.csv</em>" in page
    assert "--known does not apply to Distribution and UserInference" in shown.out


@pytest.mark.parametrize("name", ["audit", "localise", "guard", "tune"])
def test_a_function_has_the_options_of_its_command_with_the_same_defaults(name):
    function = getattr(library, name)
    command = typer.main.get_command(cli.app).commands[name]
    defaults = {option.name: option.default for option in command.params}
    for argument, parameter in inspect.signature(function).parameters.items():
        if argument == "quiet":  # a command is not
            continue
        default = defaults[argument]
        if argument != "lams":  # of which the command's help says what it is
            assert (parameter.default or None) == (default or None), argument


def test_a_dataset_a_table_in_memory_and_a_file_give_the_same_numbers(tmp_path):
    frame = pd.read_csv(table(tmp_path / "t.csv"))
    options = {"trials": 30, "rehearsals": 30, "rounds": 1, "batch": 4, "quiet": True}
    roles = {"label": "mark", "secret": "gender", "drop": ["ward"]}
    records = from_csv(tmp_path / "t.csv", label="mark", secrets=["gender"], drop=["ward"])
    reports = [
        library.audit(frame, **roles, **options),
        library.audit(records, secret="gender", **options),
        library.audit(tmp_path / "t.csv", **roles, **options, jobs=1),
    ]
    numbers = [[(one.measure, one.value, one.low) for one in report.numbers] for report in reports]
    assert len(numbers[0]) > 10
    assert numbers[0] == numbers[1] == numbers[2]
    place = reports[0].save(tmp_path / "kept")
    assert place.read_text() == reports[0].html()
    assert "gender" in str(reports[0])


def test_records_in_memory_are_told_of_cell_by_cell_and_their_encoders_are_kept(tmp_path, capsys):
    sizes = {"train": 200, "public": 200, "trials": 40, "rehearsals": 40, "epochs": 1}
    report = library.guard(people(600), secret="u", lams=[0.5], **sizes, output=tmp_path / "out")
    assert [line.count(", seed 0: ") for line in capsys.readouterr().err.splitlines()] == [1]
    terminal.copy_encoders(report, ["encoder-0.5"])
    encoder = library.load_encoder(tmp_path / "out" / "encoder-0.5")
    assert len(encoder(people(600).x[:3], rng=seeded(0))) == 3
    assert (tmp_path / "out" / "report.html").exists()


def test_modules_keep_the_names_that_they_had_at_first():
    for name in ("flower", "rng", "errors", "guarding", "epsilon", "published", "measures.shuffled"):
        module = importlib.import_module(f"leakscope.{name}")
        assert vars(module)["__name__"] in sys.modules
    assert importlib.import_module("leakscope.errors").LeakscopeError is LeakscopeError
    assert importlib.import_module("leakscope.rng").seeded is seeded
    assert library.guarding.GuardAudit is library.GuardAudit


def test_an_option_of_one_value_that_is_given_twice_is_refused_and_one_of_many_is_not(leakscope, tmp_path):
    for twice in (["--label", "sex", "--label", "race"], ["--trials=60", "--trials", "70"]):
        done = leakscope("audit", "adult", *twice, cwd=tmp_path)
        assert done.code == 2
        assert "takes one value, and you gave it 2 times" in done.err
    done = leakscope("audit", "adult", "--drop", "age", "--drop", "nosuch", cwd=tmp_path)
    assert "nosuch" in done.err


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ("Forest", "unknown attack 'Forest'"),
        ("Prototype", "attack Prototype must play the game that is asked, property inference"),
        ("Joint:components=0", "Joint.components must be at least 1"),
        ("Joint:depth=3", "Joint has no argument 'depth'"),
        ("Joint:3", "--attack must be a name, or a name with settings"),
    ],
)
def test_an_attack_that_cannot_be_played_is_refused_before_anything_is_trained(
    leakscope, tmp_path, attack, words
):
    said = leakscope("audit", "synthetic", "--attack", attack, "--output", tmp_path / "out", cwd=tmp_path)
    assert said.code == 2
    assert words in said.err
    assert not list(tmp_path.glob("out/cells/*"))
