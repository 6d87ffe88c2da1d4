"""An encoder in production: tables as they are, exported programs, scikit-learn, files that grow, bad input."""

from __future__ import annotations

import dataclasses
import pickle
import resource
import sqlite3
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from builders import refuses
from guard_cells import GUARD, NOISE, cell, people
from released import dataset, deployed, patients
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

from leakscope import GuardedEncoder, Key, Perturbation, encode, export, load_encoder
from leakscope.audits.guards.kind import KIND
from leakscope.core import files
from leakscope.core.errors import ArgumentError, DataError, MissingExtra
from leakscope.guards.keys import rehearsed_key
from leakscope.results.kind import World

KEY = rehearsed_key(0)
FRAME = patients()


@pytest.fixture
def folder(tmp_path):
    """An encoder, a key and the patients' table, as files."""
    deployed(FRAME).save(tmp_path / "encoder")
    Key.new(tmp_path / "key")
    FRAME.to_csv(tmp_path / "patients.csv", index=False)
    return tmp_path


def release(folder, data="patients.csv", output="r.csv", **options):
    given = {"key": folder / "key", "person": "patient", **options}
    return encode(folder / data, folder / "encoder", folder / output, **given)


# Tables as they are


def test_a_loaded_encoder_takes_a_table_and_scales_it_as_it_was_trained(tmp_path):
    encoder = deployed(FRAME, scale=0.1)
    loaded = load_encoder(encoder.save(tmp_path))
    prepared = encoder.preparation.apply(dataset(FRAME))
    expected = torch.nn.functional.layer_norm(encoder.network(prepared.x), (4,))
    assert torch.allclose(loaded.clean(loaded.read(FRAME)), expected, atol=1e-6)
    shuffled = FRAME.sample(frac=1, axis=1, random_state=0).assign(extra="ignored")
    assert torch.equal(loaded(shuffled, key=KEY), encoder(FRAME, key=KEY))
    assert torch.equal(loaded(loaded.read(FRAME), key=KEY), encoder(FRAME, key=KEY))
    unscaled = encoder.network(loaded.read(FRAME))
    assert not torch.allclose(loaded.clean(loaded.read(FRAME)), unscaled, atol=0.1)
    assert set(dict(loaded.named_buffers())) == {"shift", "scale", "step"}
    refuses(DataError, "has no column 'pulse'", loaded, FRAME.drop(columns="pulse"), key=KEY)


def test_the_head_of_a_saved_guard_is_worth_from_records_as_they_are_what_the_audit_measured(tmp_path):
    """Unscaled records raised no error, and the task was lost."""
    wide = dataclasses.replace(people(), x=50 * people().x + 700)
    asked = cell(GUARD | NOISE | {"epochs": 20, "lam": 0.1}, save=True)
    keep = {"keep": lambda name, content: files.write(tmp_path / name, content)}
    (judged,) = KIND.run(World(asked, 0, wide, **keep)).found.judged
    encoder = load_encoder(tmp_path)
    right = encoder.logits(wide.x, key=KEY).argmax(1) == wide.y
    unscaled = dataclasses.replace(encoder, preparation=None).logits(wide.x, key=0).argmax(1) == wide.y
    assert float(right.float().mean()) == pytest.approx(judged.utility.own.main.value, abs=0.04)
    assert float(right.float().mean()) > 0.8
    assert float(unscaled.float().mean()) < 0.7


def test_an_unknown_category_is_other(tmp_path):
    encoder = deployed(FRAME)
    new = FRAME.head(30).assign(diagnosis=["plague", *FRAME["diagnosis"][1:30]])
    column = next(c for c in encoder.preparation.columns if c.name == "diagnosis")
    assert encoder.read(new)[0, column.start : column.stop].tolist() == [0, 0, 0]
    another = FRAME.assign(diagnosis=FRAME["diagnosis"] + "?")
    refuses(
        DataError, "'diagnosis' holds no value that is known in 400 rows: .* another table", encoder, another
    )


# Programs


@pytest.mark.parametrize("kind", ["gaussian", "uniform", "none"])
def test_an_exported_program_says_the_same_to_a_millionth(tmp_path, kind):
    encoder = deployed(FRAME, scale=0.5)
    encoder.perturbation = Perturbation(kind, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.load(export(encoder, tmp_path / "encoder.pt2"))
    run = program.module()
    for some in (FRAME, FRAME.head(3)):
        x = encoder.read(some)
        draws = encoder.draws(x, KEY, list(some["patient"]))
        expected = encoder(x, key=KEY, people=list(some["patient"]))
        assert float((run(x, draws) - expected).abs().max()) <= 1e-6
    refuses(ArgumentError, "must end in .pt2 or .onnx", export, encoder, tmp_path / "encoder.bin")
    assert [file.name for file in tmp_path.iterdir()] == ["encoder.pt2"]


def test_onnx_says_the_same_to_a_millionth_or_which_extra_it_needs(tmp_path):
    encoder = deployed(FRAME, scale=0.5)
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        refuses(MissingExtra, r"leakscope\[onnx\]", export, encoder, tmp_path / "encoder.onnx")
        assert not list(tmp_path.iterdir())
        return
    runtime = pytest.importorskip("onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = export(encoder, tmp_path / "encoder.onnx")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    x = encoder.read(FRAME)
    draws = encoder.draws(x, KEY)
    given = dict(zip((one.name for one in session.get_inputs()), (x.numpy(), draws.numpy()), strict=True))
    (found,) = session.run(None, given)
    # Both compute in float64 and differ by some 1e-12 before the grid: less than one number in 10^9 may cross
    # a border of it, and these are 1,600.
    assert float(np.abs(found - encoder(x, draws).numpy()).max()) <= 1e-6


# scikit-learn


def test_it_is_an_estimator_like_others(tmp_path):
    Key.new(tmp_path / "key")
    checks = check_estimator(GuardedEncoder(key=str(tmp_path / "key"), epochs=1), on_fail=None, on_skip=None)
    bad = [one["check_name"] for one in checks if one["status"] not in ("passed", "skipped")]
    assert not bad
    assert sum(one["status"] == "passed" for one in checks) > 40


def test_it_guards_a_table_and_its_pickle_has_no_key(tmp_path):
    made = Key.new(tmp_path / "key")
    settings = {"key": str(tmp_path / "key"), "person": "patient", "ledger": str(tmp_path / "ledger")}
    guard = GuardedEncoder("sex", epochs=2, **settings)
    table, y = FRAME.drop(columns="died"), FRAME["died"]
    r = guard.fit(table, y).transform(table)
    assert r.shape == (400, 8)
    assert guard.encoder_.about["loss"] == "ridge"  # as leakscope guard has it
    assert np.array_equal(clone(guard).fit(table, y).transform(table), r)
    assert "sex" not in {column.name for column in guard.encoder_.preparation.columns}
    assert "patient" not in {column.name for column in guard.encoder_.preparation.columns}
    content = pickle.dumps(guard)
    assert made.secret not in content
    assert made.secret.hex().encode() not in content
    again = pickle.loads(content)
    assert np.array_equal(again.transform(table), r)
    LogisticRegression().fit(r, y)
    refuses(ArgumentError, "at most 1 different", guard.transform, table.assign(age=table["age"] + 30))
    refuses(ArgumentError, "must be the file of a key", GuardedEncoder(epochs=1).fit(r, y).transform, r)
    refuses(ArgumentError, "secret must be a column of X", GuardedEncoder("race").fit, table, y)
    refuses(ArgumentError, "must be columns of a DataFrame", GuardedEncoder("sex").fit, r, y)


def test_what_it_saves_counts_people_and_not_their_records():
    """One patient has twenty records with a diagnosis of nobody else, and an age that no one reaches."""
    first = FRAME.index < 20
    table = FRAME.drop(columns="died").assign(patient=np.where(first, "P00000", FRAME["patient"]))
    table = table.assign(diagnosis=table["diagnosis"].mask(first, "kuru"), age=table["age"].mask(first, 999))
    preparation = (
        GuardedEncoder("sex", person="patient", epochs=1).fit(table, FRAME["died"]).encoder_.preparation
    )
    columns = {column.name: column for column in preparation.columns}
    assert "kuru" not in columns["diagnosis"].values
    assert not {"patient", "sex"} & columns.keys()
    assert preparation.shift[columns["age"].start] < 95
    assert preparation.scale[columns["age"].start] < 40
    alone = GuardedEncoder("sex", epochs=1).fit(table.drop(columns="patient"), FRAME["died"])
    kept = {column.name: column for column in alone.encoder_.preparation.columns}
    assert (
        "kuru" in kept["diagnosis"].values
    )  # where nobody says whose they are, twenty records are twenty people


# Files


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_records_are_encoded_piece_by_piece_with_their_ids_and_appended(folder, ending, monkeypatch):
    monkeypatch.setattr("leakscope.data.delimited.CHUNK", 1_000)  # pieces of about a hundred rows
    read = {"csv": pd.read_csv, "parquet": pd.read_parquet}[ending]
    halves = FRAME.iloc[:250], FRAME.iloc[250:]
    for i, half in enumerate(halves):
        half.to_parquet(folder / f"{i}.parquet")
        options = {"label": "died", "labels": True, "append": i == 1}
        done = release(folder, f"{i}.parquet", f"r.{ending}", **options)
        assert (done.count, done.new) == (len(half), len(half))
    found = read(folder / f"r.{ending}")
    assert list(found["patient"]) == list(FRAME["patient"])
    assert [str(mark) for mark in found["died"]] == [str(mark) for mark in FRAME["died"]]
    encoder = load_encoder(folder / "encoder")
    expected = encoder(FRAME, key=Key.read(folder / "key"), people=list(FRAME["patient"]))
    assert np.array_equal(found[[f"r{i}" for i in range(4)]].to_numpy(dtype=np.float32), expected.numpy())
    again = release(folder, output=f"again.{ending}")
    assert (again.count, again.new) == (400, 0)
    before = (folder / f"r.{ending}").read_bytes()
    words = f"r.{ending} has 6 columns .* appended has 5"
    refuses(DataError, words, release, folder, output=f"r.{ending}", append=True)
    assert (folder / f"r.{ending}").read_bytes() == before
    assert not [file.name for file in folder.iterdir() if file.name.startswith(".")]


def test_memory_is_bounded_however_long_the_table(folder):
    """Twenty-five times the rows take a few pieces of memory more, and not all of them."""
    row = (folder / "patients.csv").read_text().splitlines()
    with (folder / "long.csv").open("w") as file:
        file.write(row[0] + "\n")
        for copy in range(25):
            file.writelines(f"{copy}-{line}\n" for line in row[1:])
    release(folder, output="warm.csv")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert release(folder, "long.csv", "long-r.csv").count == 10_000
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 60  # MB; the text is 15


# Bad input: one sentence, and nothing written


def refused_with_nothing_written(folder, error, words, **options):
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    refuses(error, words, release, folder, **options)
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


def test_what_cannot_be_released_is_refused_and_nothing_is_written(folder):
    FRAME.assign(patient=FRAME["patient"].where(FRAME.index != 7)).to_csv(folder / "nobody.csv", index=False)
    dataclasses.replace(deployed(FRAME), preparation=None).save(folder / "bare")
    refuses(
        DataError,
        "saved without how its records are prepared",
        encode,
        folder / "patients.csv",
        folder / "bare",
        folder / "r.csv",
        key=folder / "key",
    )
    FRAME.drop(columns="ward").to_csv(folder / "other.csv", index=False)
    FRAME.assign(age="old").to_csv(folder / "words.csv", index=False)
    (folder / "short").write_text("00ff")
    (folder / "short").chmod(0o600)
    for error, words, options in (
        (DataError, "must have an id .* record 8 has none", {"data": "nobody.csv"}),
        (DataError, "has no column 'ward'", {"data": "other.csv"}),
        (DataError, "'age' must hold a number in every row", {"data": "words.csv"}),
        (ArgumentError, "at least 128 bits, got 16", {"key": folder / "short"}),
        (ArgumentError, "got the number 7", {"key": "7"}),
        (ArgumentError, "adds noise and needs the file of a key", {"key": None}),
        (DataError, "has no column 'nr'", {"person": "nr"}),
        (ArgumentError, "must end in .csv, .parquet, .pq, .npz", {"output": "r.txt"}),
        (ArgumentError, "--labels needs the --label", {"labels": True}),
        (ArgumentError, "most must be at least 1", {"most": 0}),
    ):
        refused_with_nothing_written(folder, error, words, **options)
    release(folder)
    older = FRAME.assign(age=FRAME["age"] + 30)
    older.to_csv(folder / "older.csv", index=False)
    words = r"at most 1 different releases of a person, and 3\d\d would"
    refused_with_nothing_written(folder, ArgumentError, words, data="older.csv", output="two.csv")
    refused_with_nothing_written(
        folder, ArgumentError, "knows people by their ids", person=None, output="n.csv"
    )
    warned = release(folder, "older.csv", "two.csv", beyond="warn")
    assert warned.beyond == warned.new > 350
    book = sqlite3.connect(folder / "key.ledger")
    assert book.execute("SELECT count(*) FROM releases").fetchone()[0] == 400 + warned.new
    book.close()


def test_the_command_line_says_what_became_of_unknown_categories_and_refuses_by_code_2(folder, leakscope):
    done = leakscope("key", "new", "hospital.key", cwd=folder)
    assert (done.code, done.out) == (0, "Key: hospital.key\n")
    again = leakscope("key", "new", "hospital.key", cwd=folder)
    assert again.code == 2
    assert "exists, and releases under it" in again.err
    new = FRAME.assign(diagnosis=["plague", *FRAME["diagnosis"][1:]])
    new.to_csv(folder / "new.csv", index=False)
    asked = ["encode", "new.csv", "encoder", "--person", "patient", "-o", "r.csv"]
    bare = leakscope(*asked, "--key", "7", cwd=folder)
    assert bare.code == 2
    assert "got the number 7" in bare.err
    assert not (folder / "r.csv").exists()
    done = leakscope(*asked, "--key", "hospital.key", cwd=folder)
    assert done.code == 0
    assert "400 representations: r.csv" in done.out
    assert 'does not know count as "other": diagnosis 2' in done.err  # plague, and a rare one
    assert "no ledger counts" not in done.err
    silent = dataclasses.replace(deployed(FRAME), perturbation=Perturbation("none"))
    silent.save(folder / "silent")
    asked = ["encode", "new.csv", "silent", "--person", "patient", "-o", "s.csv"]
    assert "no ledger counts these releases" in leakscope(*asked, cwd=folder).err
