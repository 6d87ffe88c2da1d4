"""Attacks by whoever sends a plan, a recording, results, an encoder or a table, and by who reads a report:
nothing runs, nothing is written outside the results, nothing hangs, and no record is given away."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from builders import measure, refuses
from fuzzing import works_or_says_why
from safetensors.torch import save as save_tensors
from torch import nn

from leakscope.audits.asked import source
from leakscope.audits.inference.audit import describe_secret, set_stage
from leakscope.audits.membership.recorded import _lines
from leakscope.core import files, fingerprints, toml
from leakscope.core.errors import DataError, LeakscopeError, PlanError, StoreError
from leakscope.data import tabled
from leakscope.guards.saved import load_encoder
from leakscope.report import page as report
from leakscope.results import gate as gating
from leakscope.results import store
from leakscope.results.cell import shown, words
from leakscope.run import experiment, plan, running, sweep
from leakscope.training.recording import Recorder, Recording

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer takes names that click 8.5 is giving up
    from leakscope.cli import main, terminal

CELL = """
[[cell]]
data = {name = "synthetic", records = 400}
game = {name = "Inference", secret = "group", batch = 4}
attack = {name = "Posterior", head = {name = "RandomForest", trees = 5}}
rounds = 1
trials = 20
rehearsals = 20
train = 150
public = 100
"""


@pytest.mark.slow
def test_no_file_beside_a_plan_is_run(tmp_path):
    """Workers are started by the name of a module, which Python looks for in the current folder first."""
    bait, entry = tmp_path / "bait", tmp_path / "bin" / "leakscope"
    bait.mkdir()
    entry.parent.mkdir()
    entry.write_text("from leakscope.cli import main\nmain()\n")
    for name in ("joblib", "sklearn", "torch", "numpy", "leakscope"):
        (bait / f"{name}.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    (bait / "plan.toml").write_text("seeds = [0, 1]\n" + CELL)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, str(entry), "run", "plan.toml", "--jobs", "2"]
    done = subprocess.run(command, cwd=bait, capture_output=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert not (bait / "ran").exists()


# what a plan may write


RECORDING = '{name = "RecordingAudit", recording = "run", attacks = [{name = "Cosine"}], records = %s}'
GUARD = '{name = "GuardAudit", guard = {name = "Inf2Guard", column = "group"}, save = %s}'


@pytest.mark.parametrize("game", [RECORDING, GUARD], ids=["scores", "encoder"])
@pytest.mark.parametrize("path", ['"/tmp/elsewhere"', '"../up"', '"plain"'])
def test_a_plan_names_no_path_to_write(game, path):
    text = f'[[cell]]\ndata = {{name = "synthetic"}}\ngame = {game}\n'
    plan.parse(text % "true")
    refuses(PlanError, r"must be true or false, got .*; .*results folder", plan.parse, text % path)


def test_an_encoder_is_kept_with_the_results_and_the_command_puts_it_under_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoder = {"name": "TableEncoder", "widths": [4]}
    guard = {"name": "Inf2Guard", "column": "group", "epochs": 1, "encoder": encoder}
    game = {"name": "GuardAudit", "guard": guard, "baselines": False, "save": True}
    cell = {"data": {"name": "synthetic", "records": 600}, "game": game, "trials": 60, "rehearsals": 60}
    document = {"name": "Guard", "cell": [cell | {"train": 200, "public": 200}]}
    report = running.run_document(document, tmp_path / "out", jobs=1, quiet=True)
    terminal.copy_encoders(report, ["encoder-0.5"])
    (kept,) = (tmp_path / "out" / "files").iterdir()
    assert {file.stat().st_mode & 0o777 for file in kept.iterdir()} == {0o600}
    own, named = load_encoder(kept), load_encoder(tmp_path / "out" / "encoder-0.5")
    x = torch.zeros(3, *own.about["shape"])
    assert torch.equal(own(x, key=1), named(x, key=1))
    names = {"cells", "encoder-0.5", "files", "plan.toml", "report.html", "results.csv", "results.json"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


# whom trust covers


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with the user's own module and a planted one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n\n\ndef net(inputs, classes):\n    import planted_part\n"
        "    return nn.Linear(inputs, classes)\n\n\nclass Net(nn.Linear):\n    pass\n"
    )
    (tmp_path / "planted_part.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    yield tmp_path
    for name in ("own_nets", "planted_part", "own_nets.deep"):
        sys.modules.pop(name, None)


def modelled(name: str, **arguments) -> str:
    given = "".join(f", {key} = {value}" for key, value in arguments.items())
    return CELL + f'model = {{name = "{name}"{given}}}\n'


def test_trust_in_a_module_lets_no_other_file_of_its_folder_be_found(here):
    path = sys.path.copy()
    found = plan.parse(modelled("own_nets.net"), trusted=["own_nets"])
    assert sys.path == path
    refuses(PlanError, "planted_part", sweep.check, found, trusted=["own_nets"])
    assert not (here / "ran").exists()
    sweep.check(found, trusted=["own_nets", "planted_part"])
    assert (here / "ran").exists()


def test_trust_given_in_another_folder_is_not_given_in_this_one(here, monkeypatch):
    plan.parse(modelled("own_nets.net"), trusted=["own_nets", "planted_part"])
    sys.modules.pop("own_nets")
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    (here / "other" / "own_nets.py").write_text((here / "own_nets.py").read_text())
    found = plan.parse(modelled("own_nets.net"), trusted=["own_nets"])
    assert sys.modules["own_nets"].__file__ == str(here / "other" / "own_nets.py")
    refuses(PlanError, "planted_part", sweep.check, found, trusted=["own_nets"])
    assert not list(here.rglob("ran"))


def test_a_trusted_module_of_this_folder_never_stands_before_an_installed_one(here):
    (here / "sklearn.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    (here / "colorsys.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    with pytest.raises(PlanError):
        plan.parse(modelled("colorsys.Net"), trusted=["colorsys", "sklearn"])
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    "name",
    ["torch.hub.load", "torch.load", "torch.nn.functional.linear", "torch.jit.load",
     "torch.distributed.elastic.multiprocessing.subprocess_handler.SubprocessHandler"],
)  # fmt: skip
def test_trust_in_a_large_package_reaches_none_of_its_functions_and_parts(name):
    with pytest.raises(PlanError):
        plan.parse(modelled(name), trusted=["torch"])


def test_the_hint_names_the_module_itself_and_not_the_package_around_it():
    refuses(PlanError, r"--trust torch\.hub\.$", plan.parse, modelled("torch.hub.load"))
    for other in ("torc", "torch", "torch.nn.modules", "torch.nn.Linear"):
        refuses(PlanError, r"--trust torch\.nn\.$", plan.parse, modelled("torch.nn.Linear"), trusted=[other])
    plan.parse(modelled("torch.nn.Linear", in_features=10, out_features=2), trusted=["torch.nn"])


# what a result tells


def patients(path, *, rare: int = 7, n: int = 900) -> None:
    """A table with a value that few patients have."""
    rng = np.random.default_rng(0)
    ward = np.where(np.arange(n) < rare, "HIV_JaneDoe", np.where(rng.random(n) < 0.5, "a", "b"))
    rows = [f"{age:.3f},{word},{label}" for age, word, label in zip(
        rng.normal(size=n), ward, rng.integers(0, 2, n), strict=True)]  # fmt: skip
    path.write_text("age,ward,outcome\n" + "\n".join(rows) + "\n")


def patient_plan(path, *, seeds: str = "[0]", batch: int = 2, public: int = 300) -> str:
    """A plan that keeps the value, which is otherwise left out before any game."""
    data = f'{{name = "csv", path = "{path}", label = "outcome", secrets = ["ward"], keep = ["ward"]}}'
    text = CELL.replace('{name = "synthetic", records = 400}', data)
    text = text.replace('secret = "group", batch = 4', f'secret = "ward", batch = {batch}')
    return f"seeds = {seeds}\n" + text.replace("rehearsals = 20", "rehearsals = 60").replace(
        "public = 100", f"public = {public}"
    ).replace("train = 150", "train = 300")


def test_a_stored_error_quotes_no_value_and_counts_no_few(tmp_path):
    patients(tmp_path / "t.csv")
    text = patient_plan(tmp_path / "t.csv", batch=16)
    steps = []
    sweep.run(plan.parse(text), tmp_path / "out", text=text, jobs=1, progress=steps.append)
    report.write(tmp_path / "out")
    assert "'HIV_JaneDoe' has " in steps[0].said  # at the terminal of whoever has the records
    for file in (tmp_path / "out").rglob("*"):
        if file.is_file():
            assert "HIV_JaneDoe" not in file.read_text()
            own = ("plan.toml", f"{steps[0].result.key}.json")
            assert str(tmp_path) not in file.read_text() or file.name in own
    (stored,) = store.results(tmp_path / "out")
    assert stored.error.startswith("a value of 'ward' has fewer than 2 x batch = 32 records in this split")


def test_what_data_alone_shows_is_checked_for_every_seed(tmp_path):
    patients(tmp_path / "t.csv", rare=14)
    found = {}
    for seed in range(12):
        one = plan.parse(patient_plan(tmp_path / "t.csv", seeds=f"[{seed}]"))
        found[seed] = works_or_says_why(lambda one=one: sweep.check(one))
    good, bad = (next(s for s, why in found.items() if bool(why) == wrong) for wrong in (False, True))
    with pytest.raises(PlanError, match="HIV_JaneDoe"):
        sweep.check(plan.parse(patient_plan(tmp_path / "t.csv", seeds=f"[{good}, {bad}]")))


def test_every_error_has_a_public_sentence_that_says_no_more_than_its_kind():
    secret = "ward = 'HIV_JaneDoe' has 1 record in /home/me"
    for kind in (DataError, StoreError, LeakscopeError):
        assert "Jane" not in kind(secret).public
        assert "/home" not in kind(secret).public
        assert kind(secret, public="few").public == "few"
        again = pickle.loads(pickle.dumps(kind(secret, public="few")))
        assert (str(again), again.public) == (secret, "few")
    assert PlanError("unknown game 'x'.").public == "unknown game 'x'."


def test_a_value_of_few_records_is_not_named_in_results(tmp_path):
    patients(tmp_path / "t.csv", rare=4)
    table = {"name": "csv", "path": str(tmp_path / "t.csv"), "label": "outcome", "secrets": ["ward"]}
    records = tabled(table | {"keep": ["ward"]})
    assert records.told_names("ward") == ("rare value 1", "a", "b")
    assert records.told_names("ward", records) == ("HIV_JaneDoe", "a", "b")


def test_a_value_that_is_left_out_is_neither_named_nor_counted_in_what_is_stored(tmp_path):
    patients(tmp_path / "t.csv", rare=4)
    text = patient_plan(tmp_path / "t.csv").replace(', keep = ["ward"]', "")
    (result,) = sweep.run(plan.parse(text), tmp_path / "out", text=text, jobs=1)
    report.write(tmp_path / "out")
    assert not result.error
    assert result.found.secret.values == ("a", "b")
    (told,) = (fate.reason for fate in result.made.records.fates if fate.column == "ward")
    assert "fewer than 5 records of 1 rare value were left out" in told
    assert not any("HIV_JaneDoe" in file.read_text() for file in (tmp_path / "out").rglob("*.*"))


def test_odds_that_would_count_fewer_than_five_are_told_as_those_of_five(tmp_path):
    patients(tmp_path / "t.csv", rare=14)
    one = plan.parse(patient_plan(tmp_path / "t.csv", batch=1)).cell[0]
    few = []
    for seed in range(4):
        stage = set_stage(experiment.enter(one, seed))
        counts = torch.bincount(stage.parts.train.secret("ward")).tolist()
        told = describe_secret(stage).chances
        assert min(told) * sum(counts) >= min(5, max(counts)) - 1e-9
        few.append(min(counts))
    assert min(few) < 5


def test_fingerprints_cannot_be_made_again_without_the_key_and_still_tell_a_change(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKSCOPE_STATE", str(tmp_path / "state"))
    patients(tmp_path / "t.csv", rare=200)
    plain = hashlib.sha256((tmp_path / "t.csv").read_bytes()).hexdigest()
    table = source(str(tmp_path / "t.csv"), label="outcome", secrets=["ward"])
    assert table["sha256"] not in plain
    assert plain not in table["sha256"]
    key = tmp_path / "state" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    tabled(table)
    tabled(table | {"sha256": plain})  # of a plan from before there was a key
    monkeypatch.setenv("LEAKSCOPE_STATE", str(tmp_path / "elsewhere"))
    refuses(DataError, "or another user or machine wrote the plan", tabled, table)
    monkeypatch.setenv("LEAKSCOPE_STATE", str(tmp_path / "state"))
    with (tmp_path / "t.csv").open("a") as file:
        file.write("1,a,1\n")
    refuses(DataError, "has changed since the plan was written", tabled, table)


def dated(result, digest):
    """The result with another fingerprint of its records."""
    records = result.made.records.model_copy(update={"digest": digest})
    return result.model_copy(update={"made": result.made.model_copy(update={"records": records})})


def test_results_hold_keyed_fingerprints_and_those_from_before_go_on(tmp_path):
    text = CELL
    made = plan.parse(text)
    tried = sweep.check(made)
    (result,) = sweep.run(made, tmp_path / "out", text=text, jobs=1, tried=tried)
    plain = tabled(made.cell[0].data).digest
    assert plain not in result.model_dump_json()
    sweep.run(made, tmp_path / "out", text=text, jobs=1, tried=tried)
    store.save(tmp_path / "out", dated(result, plain))
    steps = []
    sweep.run(made, tmp_path / "out", text=text, jobs=1, tried=tried, progress=steps.append)
    assert steps == []
    store.save(tmp_path / "out", dated(result, "0" * 16))
    with pytest.raises(StoreError, match="other records"):
        sweep.run(made, tmp_path / "out", text=text, jobs=1, tried=tried)


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 5_000])
def test_a_key_that_is_none_is_told_in_one_sentence(tmp_path, monkeypatch, content):
    monkeypatch.setenv("LEAKSCOPE_STATE", str(tmp_path))
    (tmp_path / "key").write_bytes(content)
    refuses(StoreError, "LEAKSCOPE_STATE", fingerprints.keyed, "a")


def test_one_key_is_made_however_many_ask_first(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKSCOPE_STATE", str(tmp_path / "state"))
    with ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(fingerprints.keyed, ["a"] * 64))) == 1
    assert [file.name for file in (tmp_path / "state").iterdir()] == ["key"]


def test_a_page_and_its_numbers_show_no_path_and_no_fingerprint(tmp_path):
    folder = tmp_path / "very_private_place"
    folder.mkdir()
    patients(folder / "t.csv", rare=200)
    table = source(str(folder / "t.csv"), label="outcome", secrets=["ward"])
    text = "seeds = [0]\n" + patient_plan(folder / "t.csv").partition("\n")[2].replace(
        'name = "csv"', f'name = "csv", sha256 = "{table["sha256"]}"'
    )
    (result,) = sweep.run(plan.parse(text), tmp_path / "out", text=text, jobs=1)
    assert not result.error
    report.write(tmp_path / "out")
    for name in ("report.html", "results.csv", "results.json"):
        shown = (tmp_path / "out" / name).read_text()
        assert "t.csv" in shown
        for private in ("very_private_place", str(tmp_path), table["sha256"], result.made.records.digest):
            assert private not in shown, name


def test_what_is_shown_of_a_table_has_names_for_paths():
    table = {
        "data": {"name": "csv", "path": "some/where/t.csv", "sha256": "0", "secrets": ["a/b"]},
        "game": {
            "recording": "/home/me/run",
            "digest": "1",
            "preprocessing": "2",
            "parts": [{"x": "/etc/passwd"}],
        },
        "note": "C:\\Users\\me\\t.csv",
        "rounds": 3,
    }
    assert shown(table) == {
        "data": {"name": "csv", "path": "t.csv", "secrets": ["a/b"]},
        "game": {"recording": "run", "parts": [{"x": "passwd"}]},
        "note": "t.csv",
        "rounds": 3,
    }
    assert "home" not in words(table)


# files


@pytest.fixture
def strict():
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path) -> int:
    return path.stat().st_mode & 0o777


def test_the_umask_is_respected_and_what_is_about_persons_is_for_the_user_alone(tmp_path, strict):
    files.write(tmp_path / "a", "x")
    assert mode(tmp_path / "a") == 0o600
    os.umask(0o027)
    files.write(tmp_path / "b", "x")
    assert mode(tmp_path / "b") == 0o640
    files.write(tmp_path / "c", "x", private=True)
    assert mode(tmp_path / "c") == 0o600
    model = nn.Linear(2, 2)
    recorder = Recorder(tmp_path / "run", model, model_name="net")
    recorder.global_model(0, model)
    assert {mode(file) for file in (tmp_path / "run").iterdir()} == {0o600}
    result = measure("canary")
    store.save(tmp_path / "out", result, {"scores.csv": b"x"})
    assert mode(tmp_path / "out" / "files" / result.key / "scores.csv") == 0o600


def test_a_linked_lock_is_not_followed_and_nothing_is_emptied(tmp_path):
    (tmp_path / "target").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(StoreError):
        Recorder(tmp_path / "run", nn.Linear(2, 2), model_name="net")
    assert (tmp_path / "target").read_text() == "mine"
    (tmp_path / "run" / ".lock").unlink()
    os.link(tmp_path / "target", tmp_path / "run" / ".lock")
    Recorder(tmp_path / "run", nn.Linear(2, 2), model_name="net")
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.parametrize("name", ["cells", "files", "plan.toml"])
def test_a_linked_part_of_a_results_folder_lets_nothing_out(tmp_path, name):
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "secret.toml").write_text("x = 1\n")
    (tmp_path / "out" / name).symlink_to(tmp_path / ("secret.toml" if "." in name else "outside"))
    for act in (
        lambda: store.save(tmp_path / "out", measure("canary"), {"scores.csv": b"x"}),
        lambda: store.claim(tmp_path / "out", "x", "y"),
        lambda: store.plan(tmp_path / "out"),
    ):
        works_or_says_why(act)
    assert not list((tmp_path / "outside").iterdir())
    assert (tmp_path / "secret.toml").read_text() == "x = 1\n"
    if name == "plan.toml":
        refuses(StoreError, "link", store.plan, tmp_path / "out")


@pytest.mark.parametrize("name", ["../k", "a/b", "..", "", "/etc/k"])
def test_no_name_leads_out_of_a_folder(tmp_path, name):
    refuses(StoreError, "leads out", files.inside, tmp_path, "cells", name)


@pytest.mark.parametrize("pipe", ["t.csv", "t.npz", "plan.toml", "out/cells/0.json", "out/plan.toml", "e/encoder.json",
                                  "e/encoder.safetensors", "run/recording.json", "appetite.toml"])  # fmt: skip
def test_nothing_waits_for_a_pipe(tmp_path, pipe):
    file = tmp_path / pipe
    file.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "e").mkdir(exist_ok=True)
    if pipe == "e/encoder.safetensors":
        (tmp_path / "e" / "encoder.json").write_text('{"format": 1}')
    os.mkfifo(file)
    reads = {
        "t.csv": lambda: tabled({"name": "csv", "path": str(file), "label": "a", "secrets": ["b"]}),
        "t.npz": lambda: tabled({"name": "npz", "path": str(file), "secrets": ["b"]}),
        "plan.toml": lambda: plan.read(file),
        "out/cells/0.json": lambda: store.results(tmp_path / "out"),
        "out/plan.toml": lambda: store.claim(tmp_path / "out", "x", "y"),
        "e/encoder.json": lambda: load_encoder(tmp_path / "e"),
        "e/encoder.safetensors": lambda: load_encoder(tmp_path / "e"),
        "run/recording.json": lambda: Recording(tmp_path / "run"),
        "appetite.toml": lambda: gating.read(file),
    }
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(works_or_says_why, reads[pipe])
        try:
            assert isinstance(waiting.result(20), LeakscopeError)
        finally:
            os.close(os.open(file, os.O_RDWR))  # whoever waits is let go


def test_results_written_after_their_folder_was_taken_away_have_their_plan(tmp_path):
    text = "seeds = [0, 1]\n" + CELL

    def gone(step):
        if step.seed == 0:
            shutil.rmtree(tmp_path / "out")

    sweep.run(plan.parse(text), tmp_path / "out", text=text, jobs=1, progress=gone)
    assert store.plan(tmp_path / "out").endswith(text)
    assert len(store.results(tmp_path / "out")) == 1
    assert not sweep.run(plan.parse(text), tmp_path / "out", text=text, jobs=1)[0].error


def test_the_scores_of_persons_are_no_formula_in_a_spreadsheet():
    rows = iter([(3, "ab", "=HYPERLINK(1)", "Cosine", -0.5, 0.25, 1)])
    assert _lines(rows).splitlines()[0] == "3,ab,'=HYPERLINK(1),Cosine,-0.5,0.25,1"


# bombs


def refused(document: str) -> str:
    return str(works_or_says_why(lambda: plan.parse(document)))


DOTTED = ".".join(["a"] * 50_000)
MANY = CELL.replace("trials = 20", "trials = 10_000_000")
BEYOND = {
    f"{DOTTED} = 1\n" + CELL: "a key of more than 32 parts",
    f"[{DOTTED}]\n" + CELL: "a key of more than 32 parts",
    CELL + "note = " + "[" * 40 + "]" * 40: "tables deep",
    CELL + "#" * (1 << 22): "more than 4,194,304 characters",
    CELL.replace("rounds = 1", f"rounds = {10**9}"): "rounds should be less than or equal to 100000",
    CELL.replace("trials = 20", f"trials = {10**12}"): "trials should be less than or equal",
    "seeds = [" + "0," * 20_000 + "]\n" + CELL: "seeds must have at most 1,000 entries",
    f"seeds = {list(range(600))}\n" + CELL * 200: "at most 100,000 runs",
    MANY.replace("batch = 4", "batch = 4_000"): "draw at most 1,000,000,000 records",
    CELL
    + 'model = {name = "MLP", hidden = ['
    + "1," * 200_000
    + "]}\n": "MLP.hidden must be at most 1000 widths",
}


@pytest.mark.parametrize("document", BEYOND, ids=range(len(BEYOND)))
def test_a_plan_beyond_all_bounds_is_refused_before_anything_is_made(document):
    assert BEYOND[document] in refused(document)


def test_a_long_word_takes_no_time_that_grows_with_its_square():
    assert toml.parsed(f'a = "{"x" * 1_000_000}"') == {"a": "x" * 1_000_000}
    assert "TOML" in refused("x" * 4_000_000)


def csv_refused(path) -> str:
    table = {"name": "csv", "path": str(path), "label": "a", "secrets": ["b"]}
    return str(works_or_says_why(lambda: tabled(table)))


def test_a_table_beyond_all_bounds_is_refused_before_it_fills_the_memory(tmp_path):
    with gzip.open(tmp_path / "line.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"a,b\n1,x\n")
        for _ in range(40):
            file.write(b"0" * (1 << 20))
    assert "lines of at most 16,777,216 bytes" in csv_refused(tmp_path / "line.csv.gz")
    (tmp_path / "wide.csv").write_text(",".join(map(str, range(300_000))) + "\n")
    assert "at most 10,000 columns, and its first line has 300,000" in csv_refused(tmp_path / "wide.csv")
    names = [*map(str, range(9_000)), "a", "b"]
    (tmp_path / "fine.csv").write_text(",".join(names) + "\n" + "\n".join(
        ",".join(["1"] * 9_000 + [str(i % 2), "xy"[i % 3 % 2]]) for i in range(12)) + "\n")  # fmt: skip
    assert csv_refused(tmp_path / "fine.csv") == "None"


def test_an_encoder_of_too_many_layers_is_refused(tmp_path):
    about = {"shape": [4], "classes": 2}
    for architecture in (
        {"name": "TableEncoder", "widths": [1] * 200_000},
        {"name": "TableEncoder", "widths": [4], "head": [1] * 200_000},
    ):
        content = save_tensors({"x": torch.zeros(1)})
        table = {"format": 2, "architecture": architecture, "perturbation": {"kind": "none", "scale": 1},
                 "normed": False, "about": about, "digest": hashlib.sha256(content).hexdigest()[:16]}  # fmt: skip
        (tmp_path / "encoder.safetensors").write_bytes(content)
        (tmp_path / "encoder.json").write_text(json.dumps(table))
        assert "at most 1000 layers, and it has 200,000" in str(
            works_or_says_why(lambda: load_encoder(tmp_path))
        )


def test_an_array_whose_header_is_no_header_is_told(tmp_path):
    held = io.BytesIO()
    np.save(held, np.zeros((3, 2), dtype=np.float32))
    raw = held.getvalue()
    for header in (b"(" * 100, b"{'descr': " + b"[" * 90, b"lambda: 1"):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("x.npy", raw[:10] + header.ljust(len(raw[10:128]), b" ") + raw[128:])
            archive.writestr("y.npy", raw)
        table = {"name": "npz", "path": str(tmp_path / "a.npz"), "secrets": []}
        assert "cannot be read" in str(works_or_says_why(lambda table=table: tabled(table)))


# models of the user's own

NETS = """
import torch
from safetensors.torch import save as save_tensors
from torch import nn


class Net(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.layer = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.layer(x)


class Pair(Net):
    def forward(self, x):
        return self.layer(x), x


class Complex(Net):
    def forward(self, x):
        return self.layer(x).to(torch.complex64)


class Integers(Net):
    def forward(self, x):
        return self.layer(x).long()


class Flat(Net):
    def forward(self, x):
        return self.layer(x).sum(1)


class Empty(Net):
    def __init__(self, inputs, classes):
        nn.Module.__init__(self)

    def forward(self, x):
        return x[:, :2]


class One(Net):
    def __init__(self, inputs, classes):
        nn.Module.__init__(self)
        self.layer = nn.Linear(inputs, 1)


class Raises(Net):
    def forward(self, x):
        raise KeyError("a record: HIV_JaneDoe")


class Late(Net):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        if type(self).calls > 3:
            raise ZeroDivisionError("a record: HIV_JaneDoe")
        return self.layer(x)


class Unbuilt(Net):
    def __init__(self, inputs, classes):
        raise LookupError("a record: HIV_JaneDoe")
"""


@pytest.mark.parametrize(
    "name", ["Pair", "Complex", "Integers", "Flat", "Empty", "One", "Raises", "Late", "Unbuilt"]
)
def test_a_model_that_cannot_be_used_is_a_cells_error_without_its_own_words(here, name):
    (here / "odd_nets.py").write_text(NETS)
    rows = [f"{i * 0.37 % 1:.2f},{i * 0.73 % 2:.2f},{'uv'[i % 2]},{'xyz'[i // 2 % 3]}" for i in range(400)]
    (here / "t.csv").write_text("a,b,group,outcome\n" + "\n".join(rows) + "\n")  # one logit is no third class
    cell = CELL.replace(
        'name = "synthetic", records = 400',
        f'name = "csv", path = "{here / "t.csv"}", label = "outcome", secrets = ["group"]',
    )
    try:
        text = cell + f'model = {{name = "odd_nets.{name}"}}\n' + cell
        made = plan.parse(text, trusted=["odd_nets"])
        steps = []
        results = sweep.run(
            made, here / "out", text=text, jobs=1, trusted=["odd_nets"], progress=steps.append
        )
    finally:
        sys.modules.pop("odd_nets", None)
    assert [bool(result.error) for result in results] == [True, False]
    (stored,) = (one for one in store.results(here / "out") if one.error)
    assert f"odd_nets.{name}" in stored.error
    assert "HIV_JaneDoe" not in stored.model_dump_json()
    said = next(step.said for step in steps if step.result.error)
    assert ("HIV_JaneDoe" in said) == (name in ("Raises", "Late", "Unbuilt"))


def test_words_that_a_terminal_has_no_letters_for_are_written_as_escapes(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["leakscope", "--version"])
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit):
        main()
    terminal.print_table(["measure"], [["1–2 ≤ ε"]])
    stream.flush()
    assert b"1\\u20132 \\u2264 \\u03b5" in stream.buffer.getvalue()


# Ray on a machine that others use too

SESSION = """
import os, subprocess, sys
from pathlib import Path
from leakscope.run import engines

ray = engines._imported(None)
with engines._connected(ray, None, cpus=1):
    folder = Path(ray._private.worker._global_node.get_temp_dir_path()).parent
    assert folder.stat().st_mode & 0o777 == 0o700, oct(folder.stat().st_mode)
    found = ray.get(ray.remote(num_cpus=1)(lambda: [sys.path, Path.cwd().name]).remote())
    assert os.getcwd() not in found[0], found
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    code = (
        "import sys; from ray._raylet import GcsClient; "
        "print(len(GcsClient(address=sys.argv[1]).internal_kv_keys(b'', None, timeout=10)), 'keys')"
    )
    address = ray.get_runtime_context().gcs_address
    own = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True)
    assert "keys" in own.stdout, own.stderr
    other = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True, env=stranger)
    assert "keys" not in other.stdout, other.stdout
assert not folder.exists(), list(folder.rglob("*"))
print("held")
"""


@pytest.mark.slow
def test_ray_started_here_answers_nobody_else_and_leaves_nothing(tmp_path):
    pytest.importorskip("ray")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.stdout.endswith("held\n"), done.stderr
