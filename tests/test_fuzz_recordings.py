"""Recordings and encoders from anywhere: they are read, or refused in one sentence; nothing is written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from builders import net, record
from fuzzing import broken, files, fuzz, junk, nudged, scratched, works_or_says_why
from hypothesis import strategies as st

from leakscope import Inf2Guard, Perturbation, load_encoder, seeded
from leakscope.data import synthetic
from leakscope.guards.encoder import Encoder
from leakscope.models.encoders import ImageEncoder, TableEncoder, described, specimen
from leakscope.training.recording import Recorder, Recording
from leakscope.training.recording.index import hash_of, sha256

DTYPES = (
    "F32", "F64", "F16", "BF16", "I64", "U8", "BOOL", "C64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "U64",
    "F32 ", "", "O", "f32",
)  # fmt: skip


def audited(folder: Path) -> None:
    """Everything that is ever read of a recording."""
    found = Recording(folder)
    found.describe()
    found.check(net())
    for r in found.rounds:
        found.aggregate(r)
        for client in found.clients_in(r):
            update = found.update(r, client)
            assert all(tensor.isfinite().all() for tensor in update.values())
            _ = found.samples(r, client), found.rate(r, client), found.steps(r, client)
    found.complete()


def safetensors(header: object, body: bytes, *, size: int | None = None) -> bytes:
    """A file in the safetensors format whose header may say anything."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + body


def test_a_broken_index_is_read_or_refused_in_one_sentence(tmp_path):
    run = tmp_path / "run"
    record(run, rounds=2)
    audited(run)
    whole = json.loads((run / "recording.json").read_text())

    def check(case):
        index, signed = case
        if signed:  # as one who knows the format would break it
            model = index.get("model") if isinstance(index, dict) else None
            if isinstance(model, dict) and isinstance(model.get("layers"), list):
                try:
                    model["hash"] = hash_of(dict(model["layers"]))
                except (TypeError, ValueError):
                    return
        (run / "recording.json").write_text(json.dumps(index), encoding="utf-8", errors="surrogatepass")
        before = files(tmp_path)
        works_or_says_why(lambda: audited(run))
        works_or_says_why(lambda: Recording(run).describe())
        assert files(tmp_path) == before

    fuzz("indexes of recordings", st.tuples(broken(whole) | nudged(whole), st.booleans()), check)


def test_a_broken_index_is_continued_or_refused_and_left_as_it_was(tmp_path):
    run = tmp_path / "run"
    record(run, rounds=1)
    content = (run / "recording.json").read_bytes()

    def check(index):
        (run / "recording.json").write_bytes(index)
        works_or_says_why(lambda: audited(run))
        refused = works_or_says_why(lambda: Recorder(run, net(), model_name="net").global_model(1, net(1)))
        if refused:
            assert (run / "recording.json").read_bytes() == index
        assert not [name for name in files(run) if name.startswith(".") and name != ".lock"]
        (run / "round-000001-global.safetensors").unlink(missing_ok=True)

    fuzz("recordings that go on", scratched(content), check)


def test_a_scratched_journal_is_read_or_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("leakscope.training.recording.writer.SHORT", 3)
    run = tmp_path / "run"
    record(run, rounds=2)
    journal = run / "recording.jsonl"
    whole = journal.read_bytes()
    assert whole.count(b"\n") >= 2

    def check(content):
        journal.write_bytes(content)
        before = files(tmp_path)
        works_or_says_why(lambda: audited(run))
        works_or_says_why(lambda: Recording(run).describe())
        assert files(tmp_path) == before

    fuzz("journals of recordings", scratched(whole), check)


def test_a_scratched_file_is_read_or_refused_in_one_sentence(tmp_path):
    run = tmp_path / "run"
    record(run, rounds=1)
    name = "round-000000-client-bob.safetensors"
    whole, sent = (run / name).read_bytes(), Recording(run).uploaded(0, "bob")

    def check(content):
        (run / name).write_bytes(content)
        if refused := works_or_says_why(lambda: audited(run)):
            assert name in str(refused)
        else:  # a blank that pads the header
            assert all(torch.equal(sent[key], p) for key, p in Recording(run).uploaded(0, "bob").items())

    fuzz("files of recordings", scratched(whole), check)


@st.composite
def headers(draw: st.DrawFn) -> tuple[dict, dict]:
    """A safetensors header and the layers that an index could say it has."""
    count = draw(st.integers(1, 3))
    layers, entries, at = {}, {}, 0
    for i in range(count):
        shape = draw(st.lists(st.sampled_from((0, 1, 2, 3)), max_size=3))
        size = 4 * int(torch.tensor(shape).prod()) if shape else 4
        dtype = draw(st.sampled_from(("F32", *DTYPES)))
        name = draw(st.sampled_from((f"l{i}", "a.b", "../up", "", "__metadata__ ", "é")))
        layers[name] = shape
        start = draw(st.sampled_from((at, at, at, 0, at + 1, 2**62)))
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
        at += size
    said = " ".join(hashlib.sha256(str(i).encode()).hexdigest() for i in range(len(layers)))
    header = {"__metadata__": {"sha256": said}, **entries}
    return (draw(broken(header)) if draw(st.booleans()) else header), layers


def test_a_hostile_safetensors_header_is_refused_in_one_sentence(tmp_path):
    run = tmp_path / "run"
    record(run, rounds=1, clients=("bob",))
    index = json.loads((run / "recording.json").read_text())

    def check(case):
        header, layers = case
        said = header.get("__metadata__") if isinstance(header, dict) else None
        said = said.get("sha256") if isinstance(said, dict) else ""
        index["model"] |= {"layers": [[*item] for item in layers.items()], "hash": hash_of(layers)}
        for entry in (index["rounds"]["0"], index["rounds"]["0"]["updates"]["bob"]):
            entry["digest"] = sha256(said if isinstance(said, str) and said.isprintable() else "")
            try:
                content = safetensors(header, bytes(200))
            except UnicodeEncodeError:
                return
            (run / entry["file"]).write_bytes(content)
        (run / "recording.json").write_text(json.dumps(index))
        assert works_or_says_why(lambda: Recording(run).complete()) is not None

    fuzz("headers of safetensors", headers(), check)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        safetensors(b"{}", b"", size=2**63),
        safetensors(b"{}", b"", size=100_000_001),
        safetensors(b"[" * 50_000, b""),
        safetensors(b'{"a":' * 5_000, b""),
        safetensors(b'{"a": 1, "a": 2}', b""),
        safetensors(b"\xff\xfe", b""),
    ],
    ids=range(8),
)
def test_a_file_that_is_no_safetensors_is_refused_in_one_sentence(tmp_path, content):
    record(tmp_path / "run", rounds=1)
    (tmp_path / "run" / "round-000000-global.safetensors").write_bytes(content)
    assert works_or_says_why(lambda: audited(tmp_path / "run")) is not None


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    record(tmp_path / "run", rounds=1)
    name = "round-000000-global.safetensors"
    (tmp_path / "run" / name).rename(tmp_path / "outside.safetensors")
    (tmp_path / "run" / name).symlink_to(tmp_path / "outside.safetensors")
    said = works_or_says_why(lambda: audited(tmp_path / "run"))
    assert "leads out of the folder" in str(said)
    shutil.copy(tmp_path / "outside.safetensors", tmp_path / "run" / "copy.safetensors")
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / name).symlink_to("copy.safetensors")
    audited(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    audited(tmp_path / "link")


@pytest.mark.parametrize("name", ["recording.json", "round-000000-global.safetensors"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "nothing", "itself"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, name, kind):
    record(tmp_path / "run", rounds=1)
    file = tmp_path / "run" / name
    file.unlink()
    match kind:
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "nothing":
            file.symlink_to("absent")
        case "itself":
            file.symlink_to(name)
    assert works_or_says_why(lambda: audited(tmp_path / "run")) is not None


def saved(folder: Path) -> list[Path]:
    """Encoders of tables and of pictures, with a head and with learned noise."""
    noise = Perturbation("learned", 0.5, torch.zeros(3), torch.ones(3))
    data = synthetic(60, 4)
    guard = Inf2Guard(column="group", encoder=TableEncoder((5, 3)), epochs=1)
    trained = guard(data, seeded(0)).encoder
    table = Encoder(trained.network, trained.architecture, noise, True, trained.head, trained.about)
    picture = ImageEncoder(2)
    network = picture(specimen((1, 8, 8), 2))
    image = Encoder(network, described(picture), about={"shape": [1, 8, 8], "classes": 2})
    return [table.save(folder / "table"), image.save(folder / "image")]


def test_a_broken_encoder_is_read_or_refused_in_one_sentence(tmp_path):
    whole = {}
    for folder in saved(tmp_path):
        load_encoder(folder)(torch.zeros(2, *load_encoder(folder).about["shape"]), key=0)
        whole[folder] = (
            json.loads((folder / "encoder.json").read_text()),
            (folder / "encoder.safetensors").read_bytes(),
        )

    def check(case):
        folder, table, content = case
        if isinstance(table, dict) and "digest" in table:
            table["digest"] = hashlib.sha256(content).hexdigest()[:16]
        (folder / "encoder.json").write_text(json.dumps(table), encoding="utf-8", errors="surrogatepass")
        (folder / "encoder.safetensors").write_bytes(content)

        def used():
            found = load_encoder(folder)
            x = torch.zeros(2, *found.about["shape"])
            _ = found(x, key=0), found.logits(x, key=0) if found.head is not None else None

        works_or_says_why(used)

    cases = [
        st.tuples(st.just(folder), table, content)
        for folder, (json_, tensors) in whole.items()
        for table, content in (
            (broken(json_) | nudged(json_), st.just(tensors)),
            (st.just(json_).map(dict), scratched(tensors)),
        )
    ]
    fuzz("encoders", st.one_of(cases), check)


@pytest.mark.parametrize("value", [junk.map(repr), st.text()], ids=["junk", "text"])
def test_foreign_text_is_no_encoder(tmp_path, value):
    folder = saved(tmp_path)[0]

    def check(text):
        (folder / "encoder.json").write_text(text, encoding="utf-8", errors="surrogatepass")
        assert works_or_says_why(lambda: load_encoder(folder)) is not None

    fuzz("texts for encoders", value, check)
