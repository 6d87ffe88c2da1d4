"""What recordings of many clients, rounds and parameters cost to write, to check and to audit.

    python benchmarks/recording_size.py silos        100 clients x 1, 2 and 4 rounds x 1 M parameters (2 GB)
    python benchmarks/recording_size.py devices      100 of 10,000 clients in each of 25 and 50 rounds
    python benchmarks/recording_size.py index        writing alone, with and without a journal: a tiny net
    python benchmarks/recording_size.py --quick      all, a tenth of that

One thread; seconds are the process's own. Uploads are drawn, not trained: what they hold does not change what
they cost. Each part is measured at several sizes, in a process each, so that the time of an upload and the
peak of memory show whether both stay as they are. 100 clients x 100 rounds x 1 M parameters are 40 GB, 25
times the largest of these. Clients are looked at as workers do it, each by itself. FedMIA reads up to 16
other uploads of a round for each of a client's own, so that reading takes up to 17 times "read".
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch

from leakscope import Dataset, Recorder, Recording, seeded
from leakscope.audits.membership.kind import KIND
from leakscope.models import MLP, build
from leakscope.results.cell import Cell
from leakscope.results.kind import World
from leakscope.training.recording import writer


@dataclass(frozen=True)
class Size:
    clients: int
    a_round: int
    rounds: int
    hidden: int
    inputs: int
    asked: int  # clients whose members are asked about
    looked_at: int = 10  # of these, by each attack
    members: int = 20
    nobody: int = 200
    journal: bool = True


ATTACKS = ("Cosine", "FedMIA")
SIZES = {
    "silos": [Size(100, 100, rounds, 960, 1_000, asked=10, looked_at=2) for rounds in (1, 2, 4)],
    "devices": [Size(10_000, 100, rounds, 32, 50, asked=100) for rounds in (25, 50)],
    "index": [
        *(Size(10_000, 100, rounds, 2, 2, asked=0) for rounds in (25, 50, 100)),
        *(Size(10_000, 100, rounds, 2, 2, asked=0, journal=False) for rounds in (25, 50)),
    ],
}
QUICK = {
    "silos": [Size(10, 10, rounds, 960, 1_000, asked=2, looked_at=1) for rounds in (2, 4)],
    "devices": [Size(1_000, 100, rounds, 32, 50, asked=20, looked_at=5) for rounds in (3, 5)],
    "index": [
        Size(1_000, 100, rounds, 2, 2, asked=0, journal=kept) for kept in (True, False) for rounds in (5, 10)
    ],
}


def measure(size: Size) -> dict[str, float]:
    """Seconds of each part for one upload, bytes of disk for one upload, and the peak of memory."""
    torch.set_num_threads(1)
    data = _candidates(size)
    model = build(MLP((size.hidden,)), data, seeded(0, "model"))
    spent: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        folder, clock = Path(place) / "run", time.process_time
        start = clock()
        with patch.object(writer, "SHORT", writer.SHORT if size.journal else math.inf):
            _write(folder, model, size)
        uploads = size.a_round * size.rounds
        spent["uploads"] = uploads
        spent["write, s an upload"] = (clock() - start) / uploads
        spent["disk, MB an upload"] = sum(p.stat().st_size for p in folder.iterdir()) / uploads / 1e6
        start = clock()
        recording = Recording(folder)
        spent["read the index, s"] = clock() - start
        if size.asked:
            start = clock()
            recording.update(0, recording.clients_in(0)[0])
            spent["read, s an upload"] = clock() - start
            spent |= _audit(size, folder, data)
    return spent


def _audit(size: Size, folder: Path, data: Dataset) -> dict[str, float]:
    """The check of all uploads, then some clients by each attack, as workers look at them, then the end."""
    spent, clock, uploads = {}, time.process_time, size.a_round * size.rounds
    spent["peak before, MB"], division = _peak(), None
    for attack in ATTACKS:
        game = {"name": "RecordingAudit", "recording": str(folder), "attacks": [{"name": attack}]}
        table = {"name": "MLP", "hidden": [size.hidden]}
        cell = {"data": {"name": "candidates"}, "model": table, "trials": 200, "game": game}
        world = World(Cell.model_validate(cell), 0, data)
        if division is None:  # what it finds hangs on no attack
            start = clock()
            division = KIND.divide(world)
            assert division is not None
            spent["check, s an upload"] = (clock() - start) / uploads
            spent["peak after the check, MB"] = _peak()
        names, recording = division.names[: size.looked_at], division.facts.recording
        asked = sum(len({*names} & {*recording.clients_in(r)}) for r in recording.rounds)
        start = clock()
        parts = dict(KIND.run_parts(replace(world, facts=division.facts), names))
        spent[f"{attack}, s an upload asked about"] = (clock() - start) / asked
        spent[f"{attack}, KB that a client's part is"] = len(parts[names[0]]) / 1e3
        spent[f"peak after {attack}, MB"] = _peak()
    start = clock()
    same = dict.fromkeys(division.names, parts[names[0]])  # as if all were alike
    KIND.run(replace(world, facts=division.facts, parts=same))
    spent["put together, s"] = clock() - start
    return spent


def _take_part(size: Size) -> list[list[str]]:
    """Who takes part in each round."""
    rng = seeded(0, "taking part")
    drawn = [torch.randperm(size.clients, generator=rng)[: size.a_round] for _ in range(size.rounds)]
    return [[f"c{i}" for i in some.tolist()] for some in drawn]


def _asked(size: Size) -> list[str]:
    return _take_part(size)[0][: size.asked]


def _candidates(size: Size) -> Dataset:
    n, rng = size.asked * size.members + size.nobody, seeded(0, "candidates")
    x, y = torch.randn(n, size.inputs, generator=rng), torch.randint(2, (n,), generator=rng)
    whose = torch.arange(n).div(size.members, rounding_mode="floor").clamp(max=size.asked)
    names = (*_asked(size), "nobody")
    return Dataset(x, y, {"client": whose}, name="candidates", values={"client": names})


def _write(folder: Path, model: torch.nn.Module, size: Size) -> None:
    recorder, rng = Recorder(folder, model, model_name="mlp"), seeded(0, "uploads")
    sent = {name: p.detach().clone() for name, p in model.named_parameters()}
    for r, clients in enumerate(_take_part(size)):
        recorder.global_model(r, sent)
        mean = {name: torch.zeros_like(p) for name, p in sent.items()}
        for client in clients:
            own = {name: p + 0.01 * torch.randn(p.shape, generator=rng) for name, p in sent.items()}
            recorder.update(r, client, own, samples=size.members)
            mean = {name: mean[name] + own[name] / size.a_round for name in mean}
        sent = mean


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[[], *SIZES])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = QUICK if given.quick else SIZES
    if given.one:
        part, _, place = given.one.partition(":")
        print(json.dumps(measure(sizes[part][int(place)])))
        return
    for part in given.parts or SIZES:
        for i, size in enumerate(sizes[part]):
            order = [sys.executable, __file__, "--one", f"{part}:{i}", *(["--quick"] if given.quick else [])]
            spent = json.loads(subprocess.run(order, check=True, capture_output=True, text=True).stdout)
            print(
                part, size, *(f"  {name}: {value:.4g}" for name, value in spent.items()), sep="\n", flush=True
            )


if __name__ == "__main__":
    main()
