"""What tests share: tiny cells, one of each kind of audit, and sweeps that meet with an accident."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import tomli_w
import torch
from torch import nn

from leakscope import MLP, Local, Recorder, Recording, Transcript, guessing, load, roc, seeded
from leakscope.attacks import representations
from leakscope.attacks.representations import Network
from leakscope.audits.guards import task
from leakscope.audits.inference.audit import measure as measure_transcript
from leakscope.audits.inference.found import Bounds, Guarantee, Played, Secret
from leakscope.core.dataset import Dataset
from leakscope.core.nouns import Estimate
from leakscope.core.rng import initialised
from leakscope.data import tabled
from leakscope.guards.encoder import Encoder, Perturbation
from leakscope.measures.success import proportion
from leakscope.models import build
from leakscope.results import store
from leakscope.results.cell import Cell, plan_of
from leakscope.results.result import Made, Result, revision
from leakscope.results.scores import Worth
from leakscope.run import engines
from leakscope.run.plan import from_document
from leakscope.training import federate

needs_files = pytest.mark.skipif(
    not os.environ.get("LEAKSCOPE_DATA"), reason="LEAKSCOPE_DATA names no folder of data files"
)
KINDS: dict[str, dict[str, Any]] = {
    "game": {"game": {"name": "Inference", "secret": "group", "batch": 4}},
    "share": {
        "game": {"name": "Distribution", "column": "group", "bins": 3, "batch": 6},
        "attack": {"name": "Posterior", "head": {"name": "RandomForest", "trees": 5}, "ordinal": True},
    },
    "canary": {
        "data": {"name": "adult"},
        "game": {"name": "AttributeAudit", "attribute": "sex", "delta": 1e-5, "steps": 5},
        "defense": {"name": "DPSGD", "clip": 1.0, "noise": 1.0},
    },
    "members": {
        "game": {
            "name": "MembershipAudit", "clients": 2, "size": 60, "local": {"name": "Local", "rate": 0.1},
            "attacks": [{"name": "Cosine"}],
        },
    },
    "sites": {
        "data": {"name": "heart"},
        "game": {
            "name": "SiteAudit", "site": "site", "secrets": ["sex"], "local": {"name": "Local", "rate": 0.1},
            "content": {"name": "Joint", "ordinal": True, "components": 10},
            "origin": {"name": "Joint", "components": 10},
        },
        "rounds": 1, "trials": 60, "rehearsals": 120,
    },
    "records": {
        "data": {"name": "heart"},
        "game": {"name": "RecordsAudit", "batches": [2, 6]},
        "model": {"name": "MLP", "hidden": [40, 20]}, "trials": 4, "observe": [1],
    },
    "layers": {
        "game": {
            "name": "LayerAudit", "secrets": ["group"], "batch": 4, "splits": 5, "sensitive": 2,
            "family": {"name": "Family", "folds": 2, "members": [{"name": "Posterior", "head": {"name": "Logistic"}}]},
        },
        "model": {"name": "MLP", "hidden": [4]}, "rounds": 1,
    },
    "guard": {
        "game": {
            "name": "GuardAudit", "mapped": 50, "draws": 1,
            "guard": {
                "name": "Inf2Guard", "secret": "attribute", "column": "group", "epochs": 1,
                "encoder": {"name": "TableEncoder", "widths": [8]},
            },
            "baselines": False,
        },
        "trials": 200, "rehearsals": 200, "train": 200, "public": 200,
    },
}  # fmt: skip
DEFAULTS = {
    "data": {"name": "synthetic", "records": 1200, "shift": 1.0},
    "attack": {"name": "Posterior", "head": {"name": "RandomForest", "trees": 5}},
    "rounds": 2, "trials": 40, "rehearsals": 40, "train": 500, "public": 300,
}  # fmt: skip


def cell(kind: str, **changes: Any) -> Cell:
    return from_document({"defaults": DEFAULTS, "cell": [KINDS[kind] | changes]}).cell[0]


@cache
def measure(kind: str, *, seed: int = 0) -> Result[Any]:
    """What the tiny cell of this kind finds, computed once; the values of its group have names."""
    tiny = cell(kind)
    records = tabled(tiny.data)
    if "group" in records.private:
        records = replace(records, values=dict(records.values) | {"group": ("early", "late")})
    return engines.run_task(tiny, seed, trusted=(), spare=1, records=records).result


def numbers(result: Result[Any]) -> dict[str, Any]:
    """All that was asked and found, without when it was and how long it took."""
    timed = {"made": {"date", "seconds", "defending"}, "found": {"seconds"}}
    return result.model_dump(mode="json", exclude=timed)


FORMAT1 = Path(__file__).parent / "golden" / "format1"


@cache
def golden(kind: str) -> tuple[Result[Any], ...]:
    """Real results of the first format: more parts, seeds and cells than the tiny ones, and some that failed."""
    return tuple(store.results(FORMAT1 / kind))


def refuses(error: Any, words: str, call: Callable[..., object], *args: Any, **options: Any) -> None:
    """The call is refused in one sentence with these words."""
    with pytest.raises(error, match=words) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)


# A recording of two clients, and small models with records for them


def net(seed: int = 0, hidden: int = 4) -> nn.Sequential:
    return initialised(
        lambda: nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2)), seeded(seed)
    )


def params(seed: int) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in net(seed).named_parameters()}


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def record(folder: Path, *, rounds: int = 2, clients=("alice", "bob"), **options) -> Recording:
    """A recording whose model of round r has seed 100 r, and its i-th client's 100 r + i + 1."""
    recorder = Recorder(folder, net(), **{"model_name": "net", "rate": 0.1, "local_steps": 1, **options})
    for r in range(rounds):
        recorder.global_model(r, params(100 * r))
        for i, client in enumerate(clients):
            recorder.update(r, client, params(100 * r + i + 1), samples=10 * (i + 1))
    return Recording(folder)


@dataclass
class Named:
    """A recorder that gives clients their names."""

    recorder: Recorder
    names: Sequence[str]

    def global_model(self, r, params):
        self.params = params
        self.recorder.global_model(r, params)

    def update(self, r, client, params, **facts):
        self.recorder.update(r, self.names[client], params, **facts)


def record_digits(
    folder: Path,
    names: Sequence[str],
    size: int,
    *,
    hidden: int,
    rounds: int,
    trained: int | None = None,
    by: Any = Named,
) -> Dataset:
    """Record a federation of digits, in which each client has ``size`` of them and the first ``trained``
    take part, and return all digits with the client that has each."""
    data = load("digits").distinct()
    rows = torch.randperm(len(data), generator=seeded(0, "order"))[: size * len(names)].view(-1, size)
    whose = torch.full((len(data),), len(names))
    whose[rows] = torch.arange(len(names))[:, None]
    model = build(MLP((hidden,)), data, seeded(0, "model"))
    recorder = by(Recorder(folder, model, model_name="mlp"), names)
    members = [data.take(part.sort().values) for part in rows[:trained]]
    local = Local(0.1, batch=20)
    federate(model, members, rounds=rounds, rng=seeded(0, "training"), local=local, recorder=recorder)
    values = {"client": (*names, "nobody")}
    return Dataset(data.x, data.y, {"client": whose}, name="candidates", values=values)


def ask_recording(folder: Path) -> dict[str, Any]:
    """A tiny cell of questions to a recording, which it makes in this folder."""
    candidates = record_digits(folder / "recorded", ("anna", "ben"), 60, hidden=8, rounds=2)
    whose = np.array(candidates.value_names("client"))[candidates.private["client"].numpy()]
    x, y = candidates.x.numpy(), candidates.y.numpy()
    np.savez(folder / "candidates.npz", x=x, y=y, client=whose)
    return {
        "data": {"name": "npz", "path": str(folder / "candidates.npz"), "y": "y", "secrets": ["client"]},
        "game": {"name": "QuestionAudit", "recording": str(folder / "recorded")},
        "model": {"name": "MLP", "hidden": [8]},
    }


def conv(*args, **kwargs):
    return nn.Sequential(
        nn.Conv2d(*args, **kwargs),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3, bias=False)), (6,)),
    "sequence": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(15, 3)), (3, 4)),
    "convolution": (lambda: conv(3, 6, 3, padding=1), (3, 7, 7)),
    "stride and dilation": (lambda: conv(4, 6, 3, stride=2, dilation=2, padding=2), (4, 9, 9)),
    "groups": (lambda: conv(4, 6, 3, groups=2, bias=False), (4, 6, 6)),
    "wide, few positions": (lambda: conv(12, 30, 3), (12, 4, 4)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3)), (2, 6)),
    "norms": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.Linear(8, 3)),
        (6,),
    ),
}


def problem(name: str, n: int = 11):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(n, *shape, dtype=torch.float64)
    model(x[:2])
    params = {key: value.detach() for key, value in model.named_parameters()}
    direction = {key: torch.randn_like(value) for key, value in params.items()}
    return model, params, x, torch.arange(n) % 3, direction


# People with a secret, and encoders that keep everything or nothing

QUICK = Network(hidden=(32,), draws=2, patience=3, epochs=30)


@contextmanager
def hastened() -> Iterator[None]:
    """Networks of attackers stop after two epochs: for tests of what runs, not of what is found."""
    slow = representations.converged
    brief = lambda *parts, **given: slow(*parts, **given | {"epochs": 2})  # noqa: E731
    with patch.object(representations, "converged", brief), patch.object(task, "converged", brief):
        yield


WIDTH, CLASSES = 10, 5
SURE = 0.999  # of each of many intervals


def people(n: int, seed: int, *, shift: float = 1.5) -> Dataset:
    """The secret shifts the first input, the label is the sign of the second."""
    rng = torch.Generator().manual_seed(seed)
    u = (torch.rand(n, generator=rng) < 0.4).long()
    x = torch.randn(n, WIDTH, generator=rng)
    x[:, 0] += shift * u
    values = {"u": ("no", "yes"), "label": ("a", "b")}
    return Dataset(x, (x[:, 1] > 0).long(), {"u": u}, values=values)


def identity(kind: str = "none", scale: float = 1.0) -> Encoder:
    return Encoder(nn.Identity(), {}, Perturbation(kind, scale), head=nn.Linear(WIDTH, 2))


class Nothing(nn.Module):
    """The same representation for every record."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x), 4)


# Cells that tell of their attempts, for sweeps that are killed, interrupted or lose a machine

MARKING = """
import os, sys, time, uuid
from pathlib import Path
from torch import nn

WORKERS = "popen_loky_posix", "default_worker"  # the programs of loky and Ray


def node():
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().get_node_id() if ray and ray.is_initialized() else "here"


def there(folder, doomed):
    return len(list((folder / "attempts").glob(f"*.{doomed}.*")))


def net(inputs, classes, folder, cell, then="go on"):
    program = getattr(sys.modules["__main__"], "__file__", "")
    if Path(program).stem in WORKERS:
        folder, doomed = Path(folder), then.removeprefix("doomed: ")
        (folder / "attempts" / f"{cell}.{node()}.{os.getpid()}.{uuid.uuid4()}").touch()
        if then == "die":
            os._exit(1)
        while then == "wait" or doomed != then and (there(folder, doomed) < 2 or node() == doomed):
            if node() == doomed and there(folder, doomed) < 2:  # its first cell ends, its second never does
                break
            time.sleep(0.05)
    return nn.Linear(inputs, classes)
"""


def mark(folder: Path, *then: str) -> str:
    """A plan of one cell for each of ``then``. A worker leaves a file for each of its attempts, and then
    goes on, dies, waits for ever, or is of the node that is doomed: there the second attempt waits for
    ever, and everywhere else they wait for that."""
    (folder / "marking.py").write_text(MARKING)
    (folder / "attempts").mkdir()
    cells = [
        {"id": f"c{i}", "game": {"name": "Inference", "secret": "group", "batch": i + 4}}
        | {"model": {"name": "marking.net", "folder": str(folder), "cell": i, "then": what}}
        for i, what in enumerate(then)
    ]
    text = tomli_w.dumps({"defaults": DEFAULTS | {"rounds": 1}, "cell": cells})
    (folder / "plan.toml").write_text(text)
    return text


class Attempt(NamedTuple):
    cell: int
    node: str
    pid: int


def attempts(folder: Path) -> list[Attempt]:
    """Every attempt of a worker."""
    parts = [path.name.split(".") for path in (folder / "attempts").iterdir()]
    return [Attempt(int(cell), node, int(pid)) for cell, node, pid, _ in parts]


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The sweep of the plan in a folder, with a session of its own, hearing interrupts as at a terminal."""
    command = [sys.executable, "-m", "leakscope.cli", "run", "plan.toml", "-o", "out", *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def alive(session: int) -> list[int]:
    """The processes of a session that still run; those that are dead and not yet buried do not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, own = stat.read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


def wait(happened: Callable[[], bool], *, seconds: float = 120) -> bool:
    """Whether it happened: the limit is for what never does, not for a slow machine."""
    end = time.monotonic() + seconds
    while not (so := happened()) and time.monotonic() < end:
        time.sleep(0.05)
    return so


# Results of games whose answers are known, made by the kind's own measures


def transcript(hits: int, n: int, *, prior: float = 0.5, seed: int = 0) -> Transcript:
    """Guesses about a secret of two values, the first with chance ``prior``, of which exactly ``hits`` are
    right, with various confidence."""
    rng = torch.Generator().manual_seed(seed)
    secrets = (torch.arange(n) >= round(prior * n)).long()
    right = torch.randperm(n, generator=rng) < hits
    sure = 0.5 + 0.5 * torch.rand(n, generator=rng, dtype=torch.float64).clamp(1e-3, 1 - 1e-3)
    one = torch.where((secrets == 1) == right, sure, 1 - sure)
    chances = torch.tensor([prior, 1 - prior], dtype=torch.float64)
    return Transcript(secrets, torch.stack([1 - one, one], 1), chances)


def game(
    column: str = "sex",
    *,
    rate: float = 0.9,
    n: int = 400,
    prior: float = 0.5,
    seed: int = 0,
    played: Transcript | None = None,
    accuracy: float = 0.8,
    **cell: Any,
) -> Result[Played]:
    """A game of so many trials in which the adversary is right at this rate, as the audit measures it."""
    played = played or transcript(round(rate * n), n, prior=prior, seed=seed)
    asked = {"data": {"name": "adult"}, "game": {"name": "Inference", "secret": column}} | cell
    made = Cell.model_validate(asked)
    found = Played(
        secret=Secret(
            kind="attribute", column=column, values=("a", "b"), chances=(prior, 1 - prior), batch=16
        ),
        scores=measure_transcript(played),
        guessing=guessing(played),
        rounds=(),
        roc=tuple(roc(played)),
        selfcheck=None,
        bounds=Bounds(),
        guarantee=Guarantee(),
        utility=Worth[Estimate](accuracy=proportion("accuracy", round(1000 * accuracy), 1000), majority=0.5),
    )
    return Result(
        key=made.key(seed), seed=seed, kind=made.kind, cell=made, found=found, made=Made(code=revision())
    )


def grid(
    cells: int, columns: Sequence[str] = ("sex", "race", "marital-status"), *, seeds: int = 1
) -> list[Result[Played]]:
    """Defenses of growing strength for each column in turn, the first without; what each seed finds is of
    one measured game."""
    games = [game(rate=0.9 - 0.01 * seed, seed=seed) for seed in range(seeds)]
    results = []
    for i in range(cells):
        column = columns[i % len(columns)]
        defense = None if i < len(columns) else {"name": "Pruning", "rate": i / cells}
        asked = {"defense": defense, "adaptive": i % 2 == 0, "game": {"name": "Inference", "secret": column}}
        cell = games[0].cell.model_copy(update=asked)
        for seed, played in enumerate(games):
            secret = played.found.secret.model_copy(update={"column": column})
            found = played.found.model_copy(update={"secret": secret})
            results.append(played.model_copy(update={"cell": cell, "key": cell.key(seed), "found": found}))
    return results


def fail(result: Result[Any], error: str = "it broke") -> Result[Any]:
    """The same cell and seed, had it failed."""
    return Result(key=result.key, seed=result.seed, kind=result.kind, cell=result.cell, error=error)


def keep(folder: Path, results: Sequence[Result[Any]], *, name: str = "Trial") -> Path:
    """A results folder with these results."""
    cells = list({result.cell.key(0): result.cell.described for result in results}.values())
    seeds = sorted({result.seed for result in results}) or [0]
    document = {"name": name, "seeds": seeds, "cell": cells or [DEFAULTS | KINDS["game"]]}
    text = tomli_w.dumps(_plain(document))
    store.claim(folder, text, plan_of(text).digest)
    for result in results:
        store.save(folder, result)
    return folder


def _plain(value: Any) -> Any:
    """Without what TOML cannot say."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


VOID = {"meta", "br", "img", "input", "link", "hr"}
HOSTILE = "<script>alert(1)</script>\"' onload=alert(2) <img src=x onerror=alert(3)> {{ 7 * 7 }} &amp;"


class Page(HTMLParser):
    """The tags of a page with their attributes, its text, the rows of its tables and what is neither. Every tag
    is closed in order, no attribute stands twice and none is a handler of events."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.open, self.words, self.scripts, self.declared = html, [], [], [], []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"an attribute twice in <{tag}>"
        assert not [name for name in names if name.startswith("on")]
        self.seen.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] in (["script"], ["style"]):
            self.scripts.append(data)
        else:
            self.words.append(data)
            if {"td", "th"} & set(self.open) and "svg" not in self.open:
                self.rows[-1][-1] = " ".join(f"{self.rows[-1][-1]} {data}".split())

    def handle_comment(self, data):
        self.declared.append(data)

    unknown_decl = handle_pi = handle_comment

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())
