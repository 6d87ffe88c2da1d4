"""End to end: how much of a 10-round property inference on Adult is its forests?

    python benchmarks/attack.py [--quick]

Times the whole cell (load, split, train the victim, rehearse, attack, measure) and, inside the
same run, the forests' fits and predictions alone. One thread. The ratio is what counts.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from leakscope import (
    MLP,
    GradientChannel,
    Inference,
    Knowledge,
    Posterior,
    RandomForest,
    auroc,
    load,
    play,
    seeded,
)
from leakscope.audits.inference.audit import measure
from leakscope.models import build
from leakscope.training import fit


class Clock:
    """A scikit-learn classifier that adds the time it works to a ledger."""

    def __init__(self, inner: Any, ledger: list[float]) -> None:
        self.inner, self.ledger = inner, ledger

    def fit(self, x: Any, y: Any) -> Clock:
        start = time.perf_counter()
        self.inner.fit(x, y)
        self.classes_ = self.inner.classes_
        self.ledger.append(time.perf_counter() - start)
        return self

    def predict_proba(self, x: Any) -> Any:
        start = time.perf_counter()
        said = self.inner.predict_proba(x)
        self.ledger.append(time.perf_counter() - start)
        return said


@dataclass(frozen=True)
class TimedForest:
    """The paper's head, its time kept."""

    ledger: list[float] = field(default_factory=list)

    def fresh(self, seed: int) -> Clock:
        return Clock(RandomForest(50).fresh(seed), self.ledger)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="3 rounds of 1,000 trials")
    quick = arguments.parse_args().quick
    rounds, trials = (3, 1_000) if quick else (10, 5_000)
    torch.set_num_threads(1)
    head = TimedForest()
    with threadpool_limits(1):
        start = time.perf_counter()
        train, _, public = load("adult").without("sex").split(seeded(0, "split"), secret="sex")
        model = build(MLP((32, 16)), train, seeded(0, "model"))
        history = fit(model, train, rounds=rounds, rng=seeded(0, "training"))
        channel = GradientChannel(model, history[:rounds])
        game = Inference(train, "sex", batch=16)
        knowledge = Knowledge(game.on(public), channel, trials, game.chances)
        transcript = play(game, channel, Posterior(head), knowledge, trials=trials, rng=seeded(0, "play"))
        measure(transcript)
        whole = time.perf_counter() - start
    forests = sum(head.ledger)
    print(f"{rounds} rounds, {trials} rehearsals and trials, AUROC {auroc(transcript).value:.4f}")
    print(f"{'whole cell':<24}{whole:8.1f} s")
    print(f"{'forests alone':<24}{forests:8.1f} s")
    print(f"{'ratio':<24}{whole / forests:8.2f}   (wanted: at most 1.5)")


if __name__ == "__main__":
    main()
