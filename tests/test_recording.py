"""Recordings: what crossed the wire, exactly, at any moment, or one sentence that says why not."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from builders import net, params, record, refuses, same
from safetensors.torch import load_file, save_file
from torch import nn

from leakscope.core import files
from leakscope.core.errors import ArgumentError, DataError, LeakscopeError, StoreError
from leakscope.core.rng import seeded
from leakscope.training.recording import Recorder, Recording
from leakscope.training.recording.index import digest_index, hash_of


@pytest.fixture
def run(tmp_path) -> Path:
    record(tmp_path / "run")
    return tmp_path / "run"


def edit(folder: Path, change) -> None:
    index = json.loads((folder / "recording.json").read_text())
    change(index)
    (folder / "recording.json").write_text(json.dumps(index))


def refused(call, *words: str) -> None:
    """One sentence that holds these words."""
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    for word in words:
        assert word in message, message


# what is written is what is read


def test_a_recording_gives_back_exactly_what_was_recorded(tmp_path):
    found = record(tmp_path / "run")
    assert found.rounds == (0, 1)
    assert found.clients == found.clients_in(1) == ("alice", "bob")
    assert same(found.global_model(1), params(100))
    assert same(found.uploaded(1, "bob"), params(102))
    assert same(found.update(1, "bob"), {n: p - params(102)[n] for n, p in params(100).items()})
    assert (found.samples(1, "bob"), found.rate(1, "bob"), found.steps(1, "bob")) == (20, 0.1, 1)
    assert next(iter(found.layers.items())) == ("0.weight", (4, 3))
    assert found.model_name == "net"
    found.complete()
    found.check(net(5))
    assert eval(repr(found), {"Recording": Recording, "PosixPath": Path}) == found


def test_an_update_over_the_rate_is_the_gradient_of_one_sgd_step(tmp_path):
    model, x, y = net(1).double(), torch.randn(8, 3, generator=seeded(2)).double(), torch.arange(8) % 2
    recorder = Recorder(tmp_path / "run", model, model_name="net", rate=0.05, local_steps=1)
    recorder.global_model(0, model)
    nn.functional.cross_entropy(model(x), y).backward()
    gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    recorder.update(0, 3, model, samples=8)
    found = Recording(tmp_path / "run")
    for name, gamma in found.update(0, 3).items():
        torch.testing.assert_close(gamma / found.rate(0, 3), gradient[name].float(), rtol=1e-6, atol=1e-9)


def test_three_lines_in_a_plain_loop_record_a_federation(tmp_path):
    server, shards = net(), [torch.randn(5, 3, generator=seeded(i)) for i in range(3)]
    recorder = Recorder(tmp_path / "run", server, model_name="net", rate=0.1)
    for r in range(2):
        recorder.global_model(r, server)
        for client, x in enumerate(shards):
            local = net()
            local.load_state_dict(server.state_dict())
            local(x).square().mean().backward()
            torch.optim.SGD(local.parameters(), lr=0.1).step()
            recorder.update(r, client, local, samples=len(x))
        mean = Recording(tmp_path / "run").aggregate(r)
        server.load_state_dict({name: p - mean[name] for name, p in server.state_dict().items()})
    found = Recording(tmp_path / "run")
    found.complete()
    assert found.clients == ("0", "1", "2")
    assert found.steps(1, 2) is None
    after = {n: p - found.aggregate(0)[n] for n, p in found.global_model(0).items()}
    assert same(after, found.global_model(1))


@pytest.mark.parametrize("weighted", [True, False])
def test_an_aggregate_is_the_mean_update(tmp_path, weighted):
    found = record(tmp_path / "run", clients=("a", "b", "c"))
    for clients, weights in ((None, (1, 2, 3)), (("c", "a"), (1, 0, 3))):
        weights = torch.tensor(weights if weighted else [float(w > 0) for w in weights]).double()
        mean = found.aggregate(1, clients, weighted=weighted)
        for name in mean:
            each = torch.stack(
                [params(100)[name].double() - params(101 + i)[name].double() for i in range(3)]
            )
            hand = torch.einsum("c,c...->...", weights / weights.sum(), each)
            torch.testing.assert_close(mean[name], hand.float(), rtol=1e-6, atol=1e-8)
    assert same(found.aggregate(1, ["b"], weighted=weighted), found.update(1, "b"))


def test_only_the_layers_that_are_asked_for_are_read(run):
    file = run / "round-000001-client-bob.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1  # in whichever layer is stored last
    file.write_bytes(raw)
    found, read = Recording(run), []
    for name in found.layers:
        try:
            assert same(found.update(1, "bob", only=[name]), {name: params(100)[name] - params(102)[name]})
            read.append(name)
        except DataError as error:
            assert f"layer {name!r} is not what was written" in str(error)
    assert len(read) == len(found.layers) - 1
    refuses(ArgumentError, "only must be layers", found.global_model, 0, only=["head"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_kept_on_disk_and_read_as_float32(tmp_path, dtype):
    recorder = Recorder(tmp_path / "run", net(), model_name="net")
    recorder.global_model(0, params(0))
    sent = {name: p.to(dtype) if "weight" in name else p for name, p in params(1).items()}
    recorder.update(0, 0, sent, samples=1)
    stored = load_file(tmp_path / "run" / "round-000000-client-0.safetensors")
    assert all(
        torch.equal(stored[name], sent[name]) and stored[name].dtype == sent[name].dtype for name in sent
    )
    found = Recording(tmp_path / "run")
    assert same(found.uploaded(0, 0), {name: p.float() for name, p in sent.items()})
    difference = {name: (p.double() - sent[name].double()).float() for name, p in params(0).items()}
    assert same(found.update(0, 0), difference)


def test_odd_tensors_are_recorded_as_they_are(tmp_path):
    flat = torch.arange(12.0)
    odd = {"views": flat[:6].view(2, 3), "turned": flat[6:].view(2, 3).T, "one": torch.tensor(2.0)}
    odd |= {"none": torch.zeros(0, 3), "again": odd["views"], "grad": torch.ones(2, requires_grad=True)}
    recorder = Recorder(tmp_path / "run", odd, model_name="odd")
    recorder.global_model(0, odd)
    assert same(Recording(tmp_path / "run").global_model(0), odd)


def test_buffers_of_the_model_are_left_out(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    recorder = Recorder(tmp_path / "run", model, model_name="normed")
    recorder.global_model(0, model.state_dict())
    assert list(Recording(tmp_path / "run").layers) == [name for name, _ in model.named_parameters()]


def test_a_description_says_what_is_there_and_what_is_missing(run):
    recorder = Recorder(run, net(), model_name="net", clients=["carol"])
    recorder.global_model(4, params(9))
    recorder.update(4, "dave", params(8), samples=7, rate=0.5)
    words = Recording(run).describe()
    for part in (
        "written by leakscope",
        "Model 'net'",
        "26 parameters. Layers: 4: 0.weight (4, 3), 0.bias (4)",
        "Clients: 4: alice, bob, carol, dave",
        "Rounds: 3: 0 to 4; updates in each: 1 to 2",
        "Samples per update: 7 to 20. Learning rate: 0.1 to 0.5. Local steps: 1.",
        "Missing rounds: 2, 3.",
    ):
        assert part in words, words
    Recorder(run.parent / "new", net(), model_name="net")
    assert "none yet" in Recording(run.parent / "new").describe()


# while it grows, and when its writer dies


def test_a_recording_is_whole_after_every_call(tmp_path):
    recorder = Recorder(tmp_path / "run", net(), model_name="net")
    for r in range(3):
        recorder.global_model(r, params(r))
        before = Recording(tmp_path / "run")
        assert before.clients_in(r) == ()
        recorder.update(r, "a", params(50 + r), samples=1)
        assert before.clients_in(r) == ()  # what was opened does not change
        Recording(tmp_path / "run").complete()
        assert Recording(tmp_path / "run").rounds == tuple(range(r + 1))
    assert sorted(p.name for p in (tmp_path / "run").iterdir() if p.name.startswith(".")) == [".lock"]


WRITER = """
import sys, os, time, random, signal, torch
from leakscope.training.recording import Recorder, Recording
torch.set_num_threads(1)
folder = sys.argv[1]
def params(seed): return {"w": torch.full((64, 64), float(seed)), "b": torch.full((64,), float(seed))}
def write(rounds):
    recorder = Recorder(folder, params(0), model_name="flat", rate=0.1)
    start = max(Recording(folder).rounds, default=0)
    for r in range(start, start + rounds):
        recorder.global_model(r, params(r))
        for client in range(3):
            recorder.update(r, client, params(r + client + 1), samples=1)
def check():
    found = Recording(folder)
    for r in found.rounds:
        for client in found.clients_in(r):
            assert all((g == -int(client) - 1).all() for g in found.update(r, client).values())
    return found
"""


def test_a_recording_can_be_read_while_another_process_writes_it(tmp_path):
    folder, sizes = tmp_path / "run", set()
    script = textwrap.dedent(WRITER) + "write(25)"
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], env=quiet()) as writer:
        while writer.poll() is None:
            time.sleep(0.005)
            if (folder / "recording.json").exists():
                found = Recording(folder)
                if found.rounds:
                    r = found.rounds[-1]
                    assert (found.global_model(r)["b"] == r).all()
                    for client in found.clients_in(r):
                        assert (found.update(r, client)["w"] == -int(client) - 1).all()
                sizes.add(len(found.rounds))
    assert writer.returncode == 0
    Recording(folder).complete()
    assert len(sizes) > 2


def test_a_writer_killed_at_any_moment_leaves_a_recording_that_can_be_continued(tmp_path):
    script = textwrap.dedent(WRITER) + textwrap.dedent("""
    draw, grown = random.Random(0), [0]
    for _ in range(5):
        child = os.fork()
        if child == 0:
            write(10_000)
        time.sleep(draw.uniform(0.2, 0.8))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if os.path.exists(os.path.join(folder, "recording.json")):
            grown.append(len(check().rounds))
    write(2)
    check().complete()
    assert grown == sorted(grown) and grown[-1] > 0, grown
    left = [name for name in os.listdir(folder) if name.startswith(".") and name != ".lock"]
    assert not left, left
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        env=quiet(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def quiet() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def test_a_full_disk_is_one_sentence_and_leaves_the_recording_as_it_was(run, monkeypatch):
    recorder, before = Recorder(run, net(), model_name="net"), sorted(run.iterdir())

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        refuses(StoreError, "No space left on device", recorder.global_model, 2, params(0))
    assert sorted(run.iterdir()) == before
    Recording(run).complete()
    recorder.global_model(2, params(0))
    assert Recording(run).rounds == (0, 1, 2)


def test_a_file_the_index_does_not_name_is_ignored_and_replaced(run):
    orphan = run / "round-000002-global.safetensors"
    orphan.write_bytes(b"half a file")
    (run / ".round-000002-global.safetensors.tmp").write_bytes(b"half")
    assert Recording(run).rounds == (0, 1)
    recorder = Recorder(run, net(), model_name="net")
    assert not (run / ".round-000002-global.safetensors.tmp").exists()
    recorder.global_model(2, params(7))
    assert same(Recording(run).global_model(2), params(7))


def test_threads_and_two_recorders_lose_nothing(tmp_path):
    recorders = [Recorder(tmp_path / "run", net(), model_name="net") for _ in range(2)]
    recorders[0].global_model(0, params(0))
    work = [
        threading.Thread(target=recorders[i % 2].update, args=(0, i, params(i)), kwargs={"samples": 1})
        for i in range(8)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert sorted(Recording(tmp_path / "run").clients_in(0)) == [str(i) for i in range(8)]
    Recording(tmp_path / "run").complete()


def test_the_same_call_again_changes_nothing_and_another_is_refused(run):
    written = (run / "recording.json").read_text()
    recorder = Recorder(run, net(), model_name="net", rate=0.1, local_steps=1)
    recorder.global_model(1, params(100))
    recorder.update(1, "bob", params(102), samples=20)
    assert (run / "recording.json").read_text() == written
    refused(lambda: recorder.global_model(1, params(3)), "round-000001-global", "recorded already")
    refused(lambda: recorder.update(1, "bob", params(3), samples=20), "client-bob", "recorded already")
    refused(lambda: recorder.update(1, "bob", params(102), samples=21), "client-bob", "recorded already")
    Recording(run).complete()


# long recordings have a journal beside the index


def many(folder: Path, uploads: int, *, start: int = 0) -> Recorder:
    recorder = Recorder(folder, net(), model_name="net")
    recorder.global_model(0, params(0))
    for i in range(start, uploads):
        recorder.update(0, f"c{i}", params(i % 5), samples=1 + i)
    return recorder


def state(folder: Path) -> tuple:
    """All that is read of it but its tensors."""
    found = Recording(folder)
    return found.clients, [(r, [(c, found.samples(r, c)) for c in found.clients_in(r)]) for r in found.rounds]


def test_the_whole_index_is_written_ever_more_rarely_and_the_journal_says_the_rest(tmp_path, monkeypatch):
    wholes, write = [], files.write

    def count(path, content, **how):
        wholes.extend([len(content)] if path.name == "recording.json" else [])
        write(path, content, **how)

    monkeypatch.setattr(files, "write", count)
    many(tmp_path / "run", 420)
    assert len(wholes) < 110  # 100 while it is short, then 200 and 400 files
    assert (tmp_path / "run" / "recording.jsonl").exists()
    expected = tuple(f"c{i}" for i in range(420))
    assert state(tmp_path / "run") == (expected, [(0, [(c, 1 + i) for i, c in enumerate(expected)])])
    Recording(tmp_path / "run").complete()


def test_a_journal_that_was_cut_short_or_outlived_its_index_is_continued(tmp_path):
    run, journal = tmp_path / "run", tmp_path / "run" / "recording.jsonl"
    many(run, 150)
    text = journal.read_bytes()
    assert 40 < text.count(b"\n") < 60
    journal.write_bytes(text[:-9])  # killed while it wrote the last line
    assert len(state(run)[0]) == 149
    before = digest_index(run)
    many(run, 151, start=149)
    assert journal.read_bytes().count(b"\n") == 1  # who continues writes the whole index first
    assert len(state(run)[0]) == 151
    assert digest_index(run) != before
    Recorder(run, net(), model_name="net")
    assert not journal.read_bytes()
    journal.write_bytes(text)  # killed after the index was written, before the journal was emptied
    assert len(state(run)[0]) == 151
    many(run, 152, start=151)
    assert len(state(run)[0]) == 152
    Recording(run).complete()


def test_a_journal_that_does_not_fit_is_refused(tmp_path):
    run, journal = tmp_path / "run", tmp_path / "run" / "recording.jsonl"
    many(run, 150)
    (*kept, last) = journal.read_text().splitlines(keepends=True)
    entry = json.loads(last)["update"]
    for line in (
        {"round": 7, "client": "new", "update": entry},
        {"round": 0, "client": "c1", "update": entry},
        {"round": 0, "client": 3, "update": entry},
        {"round": 0, "client": "new", "update": entry | {"file": "../out.safetensors"}},
        {"round": 0, "client": "new", "update": 3},
        {"round": 0, "sum": {"clients": [["a"]]}},
        {"round": "0"},
        [1],
    ):
        journal.write_text("".join([*kept, json.dumps(line) + "\n"]))
        refused(lambda: Recording(run), "recording.jsonl", "damaged")
    journal.write_bytes(b"\xff\n")
    refused(lambda: Recording(run), "recording.jsonl", "damaged")
    journal.write_text("".join(kept))
    edit(run, lambda index: index.update(version=1))
    refused(lambda: Recording(run), "recording.jsonl", "has no journal")
    edit(run, lambda index: index.update(version=2))
    assert len(state(run)[0]) == 149
    journal.unlink()
    refused(lambda: Recording(run), "recording.jsonl", "is missing")
    journal.symlink_to("/dev/null")
    refused(lambda: Recording(run), "leads out of the folder")


# what is refused, and in which words


def test_another_model_in_the_same_folder_is_refused(run):
    refused(lambda: Recorder(run, net(hidden=5), model_name="net"), "another model", "hash")
    refused(lambda: Recorder(run, net(), model_name="mlp"), "'net'", "'mlp'")
    (run.parent / "notes").mkdir()
    (run.parent / "notes" / "todo.txt").write_text("")
    refused(lambda: Recorder(run.parent / "notes", net(), model_name="net"), "'todo.txt'", "empty")


def test_parameters_that_do_not_fit_the_model_are_refused_when_they_are_recorded(run):
    recorder = Recorder(run, net(), model_name="net")
    wide = dict(net(hidden=5).named_parameters())
    refused(lambda: recorder.global_model(2, wide), "round 2", "'0.weight'", "(5, 3)", "(4, 3)")
    short = {name: p for name, p in params(0).items() if name != "2.bias"}
    first = Recorder(run.parent / "first", net(), model_name="net")
    refused(lambda: first.global_model(0, short), "'2.bias' is absent in what was given", "must be whole")
    refused(lambda: recorder.global_model(2, params(0) | {"extra": torch.ones(1)}), "'extra'", "absent")
    refused(lambda: recorder.update(5, "a", params(0), samples=1), "round 5 has no global model yet")
    with pytest.raises(ArgumentError, match="floating point"):
        recorder.global_model(2, {name: p.long() for name, p in params(0).items()})
    assert Recording(run).rounds == (0, 1)


def test_a_recording_is_checked_against_a_model(run):
    found = Recording(run)
    refused(
        lambda: found.check(net(hidden=6)), "'0.weight' is (4, 3) in the recording and (6, 3) in the model"
    )
    refused(
        lambda: found.check(nn.Sequential(nn.Linear(3, 4))), "'2.weight' is (2, 4)", "absent in the model"
    )
    more = nn.Sequential(*net(), nn.Linear(2, 2))
    refused(lambda: found.check(more), "'3.weight' is absent in the recording and (2, 2) in the model")


def test_what_is_not_there_is_refused_by_name(run, tmp_path):
    found = Recording(run)
    refused(lambda: found.global_model(7), "no round 7", "it has: 0, 1")
    refused(lambda: found.update(1, "eve"), "no update of client 'eve' in round 1", "alice, bob")
    refused(lambda: Recording(tmp_path), "holds no recording.json")
    refused(lambda: Recording(tmp_path / "nowhere"), "nowhere", "holds no recording.json")
    refused(lambda: Recording(run / "recording.json"), "holds no recording.json")
    (run / "round-000001-client-bob.safetensors").unlink()
    refused(lambda: found.update(1, "bob"), "round-000001-client-bob.safetensors", "it is missing")
    refused(found.complete, "round-000001-client-bob.safetensors", "it is missing")
    refuses(ArgumentError, "different clients", found.aggregate, 0, ["bob", "bob"])
    refuses(ArgumentError, "collection", found.aggregate, 0, "bob")


def test_missing_rounds_are_named(run):
    recorder = Recorder(run, net(), model_name="net")
    recorder.global_model(5, params(1))
    refused(Recording(run).complete, "round 2, 3, 4 is missing")
    for r in (2, 3, 4):
        recorder.global_model(r, params(r))
    refused(Recording(run).complete, "round 2, 3, 4 has no update")
    refused(lambda: Recording(run).aggregate(2), "no update to aggregate in round 2")
    for r in (2, 3, 4):
        recorder.update(r, "bob", params(r), samples=1)
    Recording(run).complete()  # round 5 is the final model
    Recorder(run.parent / "new", net(), model_name="net")
    refused(Recording(run.parent / "new").complete, "no round yet")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_an_upload_that_is_not_finite_is_kept_and_refused_by_file_and_layer(run, value):
    recorder = Recorder(run, net(), model_name="net")
    broken = {name: p.double() for name, p in params(3).items()}
    broken["2.weight"][1, 2] = value
    recorder.global_model(2, params(0))
    recorder.update(2, "bob", broken, samples=1)
    recorder.update(2, "alice", params(4), samples=1)
    found = Recording(run)
    for call in (found.complete, lambda: found.update(2, "bob"), lambda: found.aggregate(2)):
        refused(call, "round-000002-client-bob.safetensors", "'2.weight'", "not finite")
    found.update(2, "alice")
    found.update(2, "bob", only=["0.weight"])


def test_a_file_of_another_recording_is_refused(run, tmp_path):
    record(tmp_path / "other", clients=("bob", "alice"))
    name = "round-000001-client-bob.safetensors"
    (run / name).write_bytes((tmp_path / "other" / name).read_bytes())
    refused(lambda: Recording(run).update(1, "bob"), name, "not the file that the index describes")
    save_file(params(102), run / name)
    refused(lambda: Recording(run).uploaded(1, "bob"), name, "not the file that the index describes")


def test_an_index_and_a_file_that_disagree_on_shapes_are_refused(run, tmp_path):
    def swap(index):
        other = record(tmp_path / "other")._index["model"]
        index["model"] = other | {"layers": [["0.weight", [3, 4]], *other["layers"][1:]]}

    edit(run, swap)
    refused(lambda: Recording(run), "recording.json", "hash")
    edit(run, lambda index: index["model"].update(hash=hash_of(dict(index["model"]["layers"]))))
    refused(
        lambda: Recording(run).global_model(0), "round-000000-global", "(4, 3) where the index says (3, 4)"
    )


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '{"format": "flower"}', '{"a": 1}', "[" * 100_000, "\x00\xff", "NaN"],
    ids=range(10),
)
def test_foreign_json_and_another_version_are_refused(run, text):
    edit(run, lambda index: index.update(version=3))
    refused(lambda: Recording(run), "version 3", "reads 1 and 2", "use the leakscope that wrote it")
    (run / "recording.json").write_text(text, encoding="latin-1")
    refused(lambda: Recording(run), "recording.json")
    with pytest.raises(DataError):
        Recorder(run, net(), model_name="net")


@pytest.mark.parametrize(
    "name", ["../up", "/etc/x", "..", ".", "a/b", "a\\b", "a b", "Zoë", "C:", "x" * 200, "~"]
)
def test_no_client_name_leads_out_of_the_folder(tmp_path, name):
    found = record(tmp_path / "run", rounds=1, clients=(name, "plain"))
    assert found.clients_in(0) == (name, "plain")
    assert same(found.uploaded(0, name), params(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]
    assert all(p.is_file() for p in (tmp_path / "run").iterdir())
    edit(tmp_path / "run", lambda index: index["rounds"]["0"].update(file="../recording.safetensors"))
    refused(lambda: Recording(tmp_path / "run"), "round '0'")


def test_clients_whose_names_look_alike_keep_their_own_files(tmp_path):
    names = ("A", "a", "a b", "a_b", "a/b", "a.b", "x" * 60, "x" * 61)
    found = record(tmp_path / "run", rounds=1, clients=names)
    files = {p.name.lower() for p in (tmp_path / "run").glob("*client*")}
    assert len(files) == len(names)
    assert all(same(found.uploaded(0, name), params(i + 1)) for i, name in enumerate(names))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"r": -1}, "round"),
        ({"r": True}, "round"),
        ({"r": 1.0}, "round"),
        ({"r": 10**6}, "round"),
        ({"client": ""}, "client"),
        ({"client": "a\nb"}, "client"),
        ({"client": "\ud800"}, "client"),
        ({"client": None}, "client"),
        ({"client": -1}, "client"),
        ({"samples": 0}, "samples"),
        ({"samples": 2.0}, "samples"),
        ({"rate": 0.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"rate": float("inf")}, "rate"),
        ({"steps": 0}, "steps"),
    ],
    ids=str,
)
def test_arguments_that_break_a_rule_are_refused(run, change, word):
    recorder = Recorder(run, net(), model_name="net")
    arguments = {"r": 0, "client": "carol", "params": params(0), "samples": 1} | change
    refuses(ArgumentError, word, recorder.update, **arguments)
    Recording(run).complete()
    for options in (
        {"rate": -1.0},
        {"local_steps": 0},
        {"model_name": ""},
        {"clients": "abc"},
        {"writer": ""},
    ):
        with pytest.raises(ArgumentError):
            Recorder(run, net(), **{"model_name": "net", **options})
    refuses(ArgumentError, "parameters", Recorder, run, nn.ReLU(), model_name="net")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    refuses(StoreError, "choose another folder", Recorder, tmp_path / "file" / "run", net(), model_name="net")
    assert issubclass(StoreError, LeakscopeError)
