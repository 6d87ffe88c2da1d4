"""Records out of recorded uploads: those that were there, of each client or of a sum, and no word beyond that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from builders import Named, refuses

import leakscope as ls
from leakscope.audits.records.kind import KIND
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.data import from_csv
from leakscope.models import MLP, build
from leakscope.report.page import render
from leakscope.results import gate
from leakscope.results.cell import Cell
from leakscope.results.kind import World, numbers
from leakscope.results.result import Made, Result
from leakscope.training import Local, federate
from leakscope.training.recording import Recorder

SIZES, COUNTS = (9, 7, 6, 5, 12, 8), {"anna": 7, "ben": 9}
SGD = Local(0.1, batch=4, epochs=3, momentum=0.0, decay=0.0)
LIMIT = '[[limit]]\nsecret="reconstruction"\nmeasure="recovered"\nat_most=1.0'


def frame() -> pd.DataFrame:
    """Six categories and two numbers, of two clients and of nobody."""
    rng, n = ls.seeded(3, "frame"), 260
    columns = {
        f"kind{i}": [f"v{c}" for c in torch.randint(s, (n,), generator=rng)] for i, s in enumerate(SIZES)
    }
    columns |= {f"number{i}": torch.randn(n, generator=rng).round(decimals=4).tolist() for i in range(2)}
    whose = [name for name, count in COUNTS.items() for _ in range(count)]
    columns["client"] = [*whose, *["nobody"] * (n - len(whose))]
    return pd.DataFrame(columns).assign(y=torch.randint(2, (n,), generator=rng).tolist())


def candidates(path: Path) -> Dataset:
    return from_csv(path, label="y", secrets=[], user="client", keep=["*"])


def recorded(folder: Path, *, hidden=(64, 24), rounds: int = 1, local: Local = SGD) -> Path:
    """A folder with candidates.csv, and the recording of a federation in ``run``."""
    folder.mkdir(parents=True, exist_ok=True)
    frame().to_csv(folder / "candidates.csv", index=False)
    data = candidates(folder / "candidates.csv")
    model = build(MLP(hidden), data, ls.seeded(0, "net"))
    names = data.value_names("client")
    members = [data.take((data.secret("client") == names.index(name)).nonzero()[:, 0]) for name in COUNTS]
    recorder = Named(Recorder(folder / "run", model, model_name="MLP"), list(COUNTS))
    federate(model, members, rounds=rounds, rng=ls.seeded(0, "fl"), local=local, recorder=recorder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("recorded"), rounds=2)


def read(folder: Path, *, hidden=(64, 24), data: Dataset | None = None, **game) -> Result:
    """What is read out of a recording, as a result."""
    data = data or candidates(folder / "candidates.csv")
    asked = {"name": "RecordedRecords", "recording": str(folder / "run")} | game
    model = {"name": "MLP", "hidden": list(hidden)}
    cell = Cell.model_validate({"data": {"name": "candidates"}, "game": asked, "model": model, "trials": 2})
    world = World(cell, 0, data)
    KIND.check(world)
    found = KIND.run(world).found
    return Result(key="k", seed=0, cell=cell, kind="records", found=found, made=Made())


def shares(result: Result) -> dict[str, tuple[float, float]]:
    return {size.client: (size.exact.value, size.certified.value) for size in result.found.sizes}


def test_the_records_of_every_client_are_read_and_proven_and_no_limit_is_passed(folder):
    result = read(folder)
    assert shares(result) == {"anna": (1.0, 1.0), "ben": (1.0, 1.0)}
    assert [(size.records, size.rounds) for size in result.found.sizes] == [(7, 2), (9, 2)]
    assert all(size.false.value == 0 and size.selfcheck.passed for size in result.found.sizes)
    page = " ".join(render([result], plan="", title="x").split())
    assert (
        "From 2 updates of 9 records (ben), 9 of 9 were recovered exactly, every column; 9 were certified"
        in page
    )
    assert "Private data." not in page
    recovered = [number for number in numbers(result) if number.measure == "recovered"]
    assert {number.bound for number in recovered} == {"lower"}
    assert gate.judge(gate.parse(LIMIT), [result]).exit_code == 3


def test_a_sum_of_clients_hides_nothing_while_the_rank_allows(folder):
    result = read(folder, seen="sum")
    assert shares(result) == {"all clients": (1.0, 1.0)}
    assert (result.found.clients, result.found.sizes[0].records) == (2, sum(COUNTS.values()))
    assert "From 2 sums of 2 clients&#39; updates of 16 records" in render([result], plan="", title="x")


def sum_rounds(folder: Path, sets: list[tuple[str, ...]]) -> Path:
    """The recording of a federation of which only the sum of those who take part in a round is seen."""
    frame().to_csv(folder / "candidates.csv", index=False)
    data = candidates(folder / "candidates.csv")
    model, names = build(MLP((64, 24)), data, ls.seeded(0, "net")), data.value_names("client")
    recorder = Recorder(folder / "run", model, model_name="MLP", local_steps=9)
    for r, there in enumerate(sets):
        recorder.global_model(r, model)
        rows = [(data.secret("client") == names.index(name)).nonzero()[:, 0] for name in there]
        _, after = federate(model, list(map(data.take, rows)), rounds=1, rng=ls.seeded(r, "fl"), local=SGD)
        recorder.sum(r, there, after, samples=sum(map(len, rows)))
        model.load_state_dict(after)
    recorder.global_model(len(sets), model)
    return folder


def test_recorded_sums_of_different_clients_are_read_apart(tmp_path):
    """How many records are behind all of them together is not known: as many as behind one is too few."""
    sets = [("anna",), ("ben",), ("anna", "ben"), ("ben",)]
    result = read(sum_rounds(tmp_path, sets), seen="sum")
    told = {s.client: (s.records, s.known, s.clients, s.rounds) for s in result.found.sizes}
    names = [f"clients of round {r}" for r in range(3)]
    assert told == dict(zip(names, [(7, 7, 1, 1), (9, 9, 1, 2), (16, 16, 2, 1)], strict=True))
    assert shares(result) == dict.fromkeys(names, (1.0, 1.0))
    assert result.found.remarks == ()
    page = " ".join(render([result], plan="", title="x").split())
    assert "From 1 sum of 2 clients&#39; updates of 16 records (clients of round 2)" in page


def test_one_recorded_sum_is_not_called_an_update(tmp_path):
    result = read(sum_rounds(tmp_path, [("anna", "ben")]), seen="sum")
    assert (result.found.clients, shares(result)) == (2, {"all clients": (1.0, 1.0)})
    page = render([result], plan="", title="x")
    assert "From 1 sum of 2 clients&#39; updates of 16 records (all clients)" in page


def test_several_rounds_tell_what_one_does_not(tmp_path):
    """A layer of six units spans six dimensions in a round, and seven and nine records are behind it."""
    narrow = recorded(tmp_path, hidden=(6, 4), rounds=4)
    refuses(ArgumentError, "it spans at most 6, and 7 are behind it", read, narrow, hidden=(6, 4), rounds=[0])
    found = shares(read(narrow, hidden=(6, 4)))
    assert found["anna"][0] == 1.0


def test_uploads_of_adam_certify_nothing_and_pass_nothing(tmp_path):
    """The recording does not say how clients trained: the space that they leave does."""
    result = read(recorded(tmp_path, local=Local(0.01, batch=4, epochs=3, optimiser="adam", decay=0.0)))
    assert all(certified == 0 for _, certified in shares(result).values())
    assert not any(size.search.whole for size in result.found.sizes)
    page = render([result], plan="", title="x")
    assert "not found here, which does not show that it cannot be found" in page


def test_records_that_the_candidates_lack_are_not_counted_as_found_or_lost(folder, tmp_path):
    data = candidates(folder / "candidates.csv")
    result = read(folder, data=data.take(torch.arange(3, len(data))))
    anna = result.found.sizes[0]
    assert (anna.records, anna.known, anna.exact.value) == (7, 4, 1.0)
    assert (anna.false.value, anna.false.high) == (0.0, 3.0)
    assert "the candidates hold 4 of them" in " ".join(result.found.remarks)


def test_clients_said_to_hold_records_of_nobody_are_read_without_one_of_them(folder):
    """The wrong rows named as a client's: what was read is not theirs, and certificates are then false."""
    data = candidates(folder / "candidates.csv")
    whose = data.secret("client").clone()
    nobody = data.value_names("client").index("nobody")
    rows = (whose == nobody).nonzero()[:7, 0]
    names = data.value_names("client")
    whose[whose == names.index("anna")] = nobody
    whose[rows] = names.index("anna")
    result = read(folder, data=replace(data, private=dict(data.private) | {"client": whose}))
    anna = result.found.sizes[0]
    assert anna.exact.value == 0.0
    assert anna.false.value == 7.0


# The commands


def test_the_command_reads_a_recording_and_shows_a_record_only_if_asked(folder, tmp_path, leakscope):
    words = ["reconstruct", str(folder / "candidates.csv"), "--recording", str(folder / "run")]
    words += ["--client", "client", "--label", "y", "--model", "MLP", "--rounds", "0"]
    said = leakscope(*words, "--output", str(tmp_path / "plain"))
    assert said.code == 0
    assert "9 of 9 were recovered exactly" in said.out
    stored = "".join(
        path.read_text() for path in (tmp_path / "plain").rglob("*.*") if path.suffix != ".parquet"
    )
    number = f"{frame().number0[0]:.4g}"
    assert number not in stored
    shown = leakscope(*words, "--show-reconstructions", "--output", str(tmp_path / "shown"))
    assert shown.code == 0
    page = (tmp_path / "shown" / "report.html").read_text()
    assert "Private data." in page
    assert number in page
    wrong = leakscope(*words, "--batch", "8")
    assert wrong.code == 2
    assert "--batch does not go with --recording" in wrong.err
    other = leakscope("reconstruct", "heart", "--client", "client")
    assert other.code == 2
    assert "--client does not go with training that is simulated here" in other.err


def test_the_audit_of_a_recording_asks_it_too_and_says_why_where_it_does_not(folder, tmp_path):
    common = {"client": "client", "label": "y", "model": "MLP", "trials": 40, "quiet": True}
    report = ls.audit_recording(folder / "run", folder / "candidates.csv", **common)
    assert shares(next(r for r in report.results if r.kind == "records")) == {
        "anna": (1.0, 1.0),
        "ben": (1.0, 1.0),
    }
    data = candidates(folder / "candidates.csv")
    whose = np.array(data.value_names("client"))[data.secret("client").numpy()]
    np.savez(tmp_path / "arrays.npz", x=data.x.numpy(), y=data.y.numpy(), client=whose)
    report = ls.audit_recording(folder / "run", tmp_path / "arrays.npz", **common)
    assert [result.kind for result in report.results] == ["membership"]
    assert "Which records can be read out of the uploads was not asked: arrays" in report.results[0].cell.note


# Bad input


def test_what_a_recording_cannot_give_is_refused_in_one_sentence(folder, tmp_path):
    data = candidates(folder / "candidates.csv")
    bare = Dataset(data.x, data.y, dict(data.private), name="arrays", values=data.values)
    refuses(ArgumentError, "read by how the table is written", read, folder, data=bare)
    refuses(DataError, "does not fit the model: layer '0.weight'", read, folder, hidden=(32, 24))
    refuses(DataError, "has no round 9", read, folder, rounds=[9])
    narrow = recorded(tmp_path / "narrow", hidden=(4, 4))
    words = "spans at most 4, and 7 are behind it; look at more rounds"
    refuses(ArgumentError, words, read, narrow, hidden=(4, 4))
    refuses(ArgumentError, "RowSpace alone", ls.RecordedRecords, "run", attacks=(ls.Loss(),))
    refuses(ArgumentError, "uploads are read as they are", ls.RecordedRecords, "run", centred=True)
