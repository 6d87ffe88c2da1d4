"""Whole records back from gradients and uploads, and members by the row space of uploads.

    python benchmarks/records.py                      every part (some minutes on one core)
    python benchmarks/records.py gradients uploads    some parts: gradients uploads fitted members preflight
    python benchmarks/records.py --quick              one seed of everything
    python benchmarks/records.py uploads --seeds 10 11 12 13 14

Needs LEAKSCOPE_DATA with heart4.csv.gz, diabetes130.csv.gz and location30.npz. One thread; seconds are the
attack's process time for one release. Five seeds a cell, with two releases of each. The net is
input-m-m/2-classes with ReLU; "trained" is after 10 epochs of Adam (rate .001, batches of 64) on 5,000 other
records. Uploads: 5 local epochs of SGD, rate .1, batches of 8. Exact: every category right and every number
within .05 standard deviations. What each cell must reach stands beside it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

import leakscope as ls
from leakscope.attacks.row_space import RowSpace
from leakscope.attacks.span_matching import SpanMatching
from leakscope.attacks.span_membership import SpanDistance
from leakscope.attacks.whitened import Whitened
from leakscope.audits.records.preflight import HALF, foresee
from leakscope.core.dataset import joined
from leakscope.games import Membership, Reconstruction
from leakscope.games.channels import Summed
from leakscope.models import MLP, build, parameters
from leakscope.training import Local, federate
from leakscope.training.recording import RecordedChannel, Recorder, Recording

SEEDS = (0, 1, 2, 3, 4)
SGD = Local(rate=0.1, batch=8, epochs=5, momentum=0.0, decay=0.0)
NUMBERS = {
    "diabetes130": (
        "time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications", "number_outpatient",
        "number_emergency", "number_inpatient", "number_diagnoses",
    ),
    "heart4": ("age", "trestbps", "chol", "thalach", "oldpeak"),
}  # fmt: skip
LABELS = {"diabetes130": "readmitted", "heart4": "num"}
LEFT_OUT = {"diabetes130": ["encounter_id", "patient_nbr"], "heart4": ["site"]}
FEW = RowSpace(branches=50_000, tried=20_000)  # for many settings
ROWS = 20_000  # of diabetes130, which has 1,898 inputs with them


@dataclass(frozen=True)
class Case:
    """What is released of whom, and what must come back."""

    data: str
    batch: int
    width: int
    trained: bool = False
    upload: bool = False
    clients: int = 1
    exact: float = 0.0
    certified: float = 0.0


GRADIENTS = (
    Case("adult", 24, 100, certified=0.98),
    Case("adult", 24, 256, certified=0.98),
    Case("adult", 16, 256, trained=True, certified=0.92),
    Case("adult", 32, 256),
    Case("diabetes130", 64, 256, certified=0.98),
    Case("diabetes130", 16, 256, trained=True, certified=0.92),
    Case("heart4", 8, 256),
)
UPLOADS = (
    Case("diabetes130", 64, 256, upload=True, exact=0.97),
    Case("diabetes130", 64, 256, upload=True, trained=True, exact=0.97),
    Case("diabetes130", 128, 256, upload=True, exact=0.97),
    Case("adult", 8, 256, upload=True, exact=0.97),
    Case("adult", 8, 256, upload=True, trained=True),
    Case("heart4", 8, 256, upload=True, exact=0.95),
    Case("diabetes130", 25, 256, upload=True, clients=4, exact=0.9),
)
ADAM = Local(rate=0.001, batch=8, epochs=5, optimiser="adam", decay=0.0)
FAR = Local(rate=0.5, batch=8, epochs=5, momentum=0.0, decay=0.0)
FITTED = {  # batch, hidden units, trained, local training, noise in root mean squares, proofs first or not
    "gradient, with proofs": (16, 100, False, None, 0.0, True),
    "gradient": (16, 100, False, None, 0.0, False),
    "gradient, trained": (16, 100, True, None, 0.0, True),
    "gradient, noise .001": (16, 100, False, None, 1e-3, True),
    "upload, rate .5": (6, 100, False, FAR, 0.0, False),
    "upload, Adam": (4, 100, False, ADAM, 0.0, False),
}
MEMBERS = (  # data, records of a client, hidden layers, rounds, what is seen, the least PLR at 1%
    ("location30", 430, (256, 128), 3, "uploads", 100),
    ("adult", 60, (256, 128), 1, "uploads", 95),
    ("location30", 50, (256, 128), 1, "sum", 99),
)


def one_hot(name: str) -> ls.Dataset:
    """A table as it is, categories one-hot and numbers that are missing the mean."""
    path = Path(os.environ["LEAKSCOPE_DATA"]) / f"{name}.csv.gz"
    frame = pd.read_csv(path, dtype=str, na_filter=False).drop(columns=LEFT_OUT[name])
    if len(frame) > ROWS:
        frame = frame.sample(ROWS, random_state=0)
    label, blocks, columns, start = LABELS[name], [], [], 0
    for column in [c for c in frame.columns if c != label]:
        if column in NUMBERS[name]:
            numbers = pd.to_numeric(frame[column], errors="coerce")
            block = numbers.fillna(numbers.mean()).to_numpy(np.float32)[:, None]
            columns.append(ls.Column(column, start, start + 1))
        else:
            codes, values = pd.factorize(frame[column], sort=True)
            block, stop = np.eye(len(values), dtype=np.float32)[codes], start + len(values)
            columns.append(ls.Column(column, start, stop, values=tuple(values), standardised=False))
        blocks.append(block)
        start += block.shape[1]
    task = frame[label] if name != "heart4" else (frame[label] != "0").astype(str)
    y = torch.from_numpy(pd.factorize(task, sort=True)[0])
    return ls.Dataset(torch.from_numpy(np.concatenate(blocks, 1)), y, {}, name=name, columns=tuple(columns))


def table(name: str) -> ls.Dataset:
    return one_hot(name) if name in LABELS else ls.load(name)


def trained_net(net: nn.Module, data: ls.Dataset, seed: int) -> nn.Module:
    optimiser, rng = torch.optim.Adam(net.parameters(), lr=1e-3), ls.seeded(seed, "training")
    for _ in range(10):
        for rows in torch.randperm(len(data), generator=rng).split(64):
            optimiser.zero_grad()
            F.cross_entropy(net(data.x[rows]), data.y[rows]).backward()
            optimiser.step()
    return net


def attacked(case: Case, data: ls.Dataset, seed: int) -> tuple[ls.Transcript, ls.Dataset, float, float]:
    """One seed: what was found, the public records, seconds for one release, and the share of labels."""
    sizes = {"train": min(5_000, len(data) // 2), "public": min(1_000, len(data) // 4)}
    train, others, public = data.split(ls.seeded(seed, "split"), **sizes)
    net = build(MLP((case.width, case.width // 2)), train, ls.seeded(seed, "net"))
    net = trained_net(net, train, seed) if case.trained else net
    game = Reconstruction(others, batch=case.batch * case.clients)
    rounds, trials = (parameters(net),), 2
    channel = ls.UpdateChannel(net, rounds, local=SGD) if case.upload else ls.GradientChannel(net, rounds)
    channel = Summed(channel, case.clients) if case.clients > 1 else channel
    view, secrets = game.deal(channel, trials, ls.seeded(seed, "deal"))
    releases = tuple(ls.Release.of(dict(r.layers), r.params) for r in view.releases)
    start = time.process_time()
    found = RowSpace().recover(
        ls.Knowledge(game.on(public), channel), ls.View(releases, view.public), ls.seeded(seed, "attack")
    )
    seconds = (time.process_time() - start) / trials
    transcript = ls.Transcript(secrets, found.records, torch.empty(0), status=found.status)
    near = torch.cdist(secrets, found.records)
    labels = found.labels.gather(1, near.argmin(2)) == view.public["labels"]
    return transcript, public, seconds, float((labels & (near.amin(2) < 0.1)).double().mean())


def shown(case: Case, data: ls.Dataset, seeds: tuple[int, ...]) -> None:
    parts = [attacked(case, data, seed) for seed in seeds]
    status = torch.cat([part[0].status for part in parts if part[0].status is not None])
    secrets, guesses = (
        torch.cat([getattr(part[0], name) for part in parts]) for name in ("secrets", "guesses")
    )
    whole, public = ls.Transcript(secrets, guesses, torch.empty(0), status=status), parts[0][1]
    exact, certified = ls.exact_records(whole, public), ls.certified_records(whole, public)
    wrong, (cells, mode) = ls.false_certificates(whole, public), ls.right_cells(whole, public)["all"]
    kind = f"{'upload' if case.upload else 'gradient'}, {'trained' if case.trained else 'untrained'}"
    who = f"{case.clients} x {case.batch}" if case.clients > 1 else f"{case.batch}"
    met = exact.value >= case.exact and certified.value >= case.certified
    print(
        f"{case.data:12} {who:>6} m {case.width:4} {kind:20} exact {exact.value:.3f} ({exact.low:.2f}-"
        f"{exact.high:.2f}) asked {case.exact or '-'}; certified {certified.value:.3f} ({certified.low:.2f}-"
        f"{certified.high:.2f}) asked {case.certified or '-'}; false {wrong.value:.2f} a batch; cells "
        f"{cells.value:.3f} (mode {mode.value:.3f}); labels {np.mean([part[3] for part in parts]):.3f}; "
        f"{np.mean([part[2] for part in parts]):.2f} s{'' if met else '  NOT MET'}",
        flush=True,
    )


def fitted(name: str, seeds: tuple[int, ...], each: int) -> None:
    """Adult: cells that are right, certified, and called with more than .95 confidence; all seeds."""
    batch, width, trained, local, noise, proofs = FITTED[name]
    attack = SpanMatching() if proofs else SpanMatching(algebra=None)
    found, seconds = [], time.process_time()
    for seed in seeds:
        train, others, public = ls.load("adult").split(ls.seeded(seed, "split"), train=5_000, public=1_000)
        train, others, public = (part.standardised(train) for part in (train, others, public))
        net = build(MLP((width, width // 2)), train, ls.seeded(seed, "net"))
        rounds = (parameters(trained_net(net, train, seed) if trained else net),)
        game, channel = Reconstruction(others, batch=batch, labels=False), ls.GradientChannel(net, rounds)
        if noise:
            view, _ = game.on(public).deal(channel, 4, ls.seeded(seed, "scale"))
            entries = torch.cat([part.flatten() for part in view.releases[0].layers.values()])
            channel = ls.GradientChannel(net, rounds, ls.Noise(noise * float(entries.square().mean().sqrt())))
        channel = ls.UpdateChannel(net, rounds, local=local) if local else channel
        knowledge = ls.Knowledge(game.on(public), channel)
        found.append(ls.play(game, channel, attack, knowledge, trials=each, rng=ls.seeded(seed, "play")))
    parts = (torch.cat([getattr(one, part) for one in found]) for part in ("secrets", "guesses"))
    sure, status = (torch.cat([getattr(one, part) for one in found]) for part in ("confidence", "status"))
    whole = ls.Transcript(*parts, torch.empty(0), status=status, confidence=sure)
    (cells, mode), (called, right) = ls.right_cells(whole, public)["all"], ls.confident_cells(whole, public)
    exact, certified = ls.exact_records(whole, public), ls.certified_records(whole, public)
    print(
        f"adult {batch:3} m {width} {name:22} {len(status)} batches: cells {cells.value:.3f} (mode "
        f"{mode.value:.3f}), exact {exact.value:.3f}, certified {certified.value:.3f}; beyond these called "
        f"{called.value:.3f}, of which right {right.value:.3f}; "
        f"{(time.process_time() - seconds) / len(status):.0f} s a batch, rehearsals included",
        flush=True,
    )


def members(
    name: str, n: int, hidden: tuple[int, ...], rounds: int, seen: str, asked: int, seed: int
) -> None:
    data, clients = ls.load(name).distinct(), 3 if n > 100 else 4
    train, others, public = data.split(ls.seeded(seed, "split"), train=n * clients, public=600)
    net = build(MLP(hidden), train, ls.seeded(seed, "net"))
    parts = [train.take(rows) for rows in torch.arange(n * clients).split(n)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        recorder = Recorder(path, net, model_name="net")
        federate(net, parts, rounds=rounds, rng=ls.seeded(seed, "training"), local=SGD, recorder=recorder)
        who = ("0",) if seen == "uploads" else ()
        channel = RecordedChannel(Recording(path), net, who, tuple(range(rounds)), seen)  # type: ignore[arg-type]
        there = parts[0] if who else joined(parts)
        game = Membership(there, others.take(torch.arange(min(2_000, len(others)))))
        knowledge = ls.Knowledge(game.on(public), channel, 600)
        line = f"{name:12} {n:4} records, {rounds} rounds, {seen:8} seed {seed}:"
        for attack in (SpanDistance(), Whitened()):
            found = ls.play(game, channel, attack, knowledge, trials=2_000, rng=ls.seeded(seed, "play"))
            plr = ls.plr_at_fpr(found)
            line += f" {type(attack).__name__} PLR {plr.value:.0f} ({plr.low:.0f}-{plr.high:.0f})"
        view, _ = game.deal(channel, 2, ls.seeded(seed))
        reach = SpanDistance().reach(net, view, public.x)
        print(f"{line}; layer {reach.layer}, rank {reach.rank} of {reach.most}; asked {asked}", flush=True)


def foreseen(seed: int) -> None:
    """Sixty settings, every fourth after training: the preflight's word, from public records and the model as
    it starts, beside the share of other records that came back from four releases."""
    right, asked = 0, 0
    for name, place in (("adult", 0), ("heart", 1)):
        data = ls.load(name)
        sizes = {"train": min(5_000, len(data) // 2), "public": min(1_000, len(data) // 4)}
        train, others, public = data.split(ls.seeded(seed, "split"), **sizes)
        for i, (width, local, batch) in enumerate(
            (width, local, batch)
            for width in (16, 48, 200)
            for local in (None, SGD)
            for batch in (3, 6, 12, 20, 64)
        ):
            net = build(MLP((width, width // 2)), train, ls.seeded(seed, "net", i))
            word = foresee(net, public, (batch,), local=local, attack=FEW, seed=seed).sizes[0]
            trained = i % 4 == 3 - place
            net = trained_net(net, train, seed) if trained else net
            rounds, game = (parameters(net),), Reconstruction(others, batch=batch)
            channel = ls.UpdateChannel(net, rounds, local=local) if local else ls.GradientChannel(net, rounds)
            knowledge = ls.Knowledge(game.on(public), channel)
            found = ls.play(game, channel, FEW, knowledge, trials=4, rng=ls.seeded(seed, "play", i))
            share = ls.exact_records(found, public).value
            fits = word.recoverable == (share >= HALF)
            right, asked = right + fits, asked + 1
            kind = f"{'upload' if local else 'gradient'}, {'trained' if trained else 'untrained'}"
            print(
                f"{name:6} {batch:3} m {width:4} {kind:20} foreseen {word.share:.2f}, found {share:.2f}"
                f"{'' if fits else '  WRONG'}",
                flush=True,
            )
    print(f"preflight right in {right} of {asked} (asked 0.9), seed {seed}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["gradients", "uploads", "members", "preflight"])
    parser.add_argument("--cases", nargs="+", default=[*FITTED], help="of the part fitted")
    parser.add_argument("--each", type=int, default=2, help="batches of each seed, of the part fitted")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = tuple(asked.seeds)[:1] if asked.quick else tuple(asked.seeds)
    cases = [
        case
        for part, of in (("gradients", GRADIENTS), ("uploads", UPLOADS))
        if part in asked.parts
        for case in of
    ]
    for name in dict.fromkeys(case.data for case in cases):
        data = table(name)
        for case in [case for case in cases if case.data == name]:
            shown(case, data, seeds)
    for name in asked.cases if "fitted" in asked.parts else ():
        fitted(name, seeds, asked.each)
    if "preflight" in asked.parts:
        foreseen(seeds[-1])
    for setting in MEMBERS if "members" in asked.parts else ():
        for seed in seeds:
            members(*setting, seed)


if __name__ == "__main__":
    main()
