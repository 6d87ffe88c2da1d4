"""Figure 9 of paper 000 with the paper's own statistic beside ours, and canaries by cosine beside those by
distance, as the paper tried them.

    python benchmarks/figure9.py [--seeds 1] [--trials 5000]

Each row is a canary for one clip and noise, on Adult's sex at a net of one hidden layer of 100 after one
epoch. "ratio" is the paper's: the classical epsilon over 14 times the point estimate, of the l2 statistic.
Beside it what we certify of the same trials, by the l2 statistic and by the likelihood ratio. Needs
LEAKSCOPE_DATA with Adult.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import leakscope as ls
from leakscope.audits.mechanism.audit import play_audit
from leakscope.models import build, parameters

PRINTED = {(4.0, 0.1): 1.86, (1.5, 0.1): 1.14, (2.0, 0.08): 1.20, (2.0, 0.13): 1.33}
ATTRIBUTES = 14


def train(model: nn.Module, data: ls.Dataset, seed: int) -> None:
    """One epoch on 5,000 records in batches of 64 at rate .01, as the paper trains before it audits."""
    rows = torch.randperm(len(data), generator=ls.seeded(seed, "train"))[:5_000]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for part in rows.split(64):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.x[part]), data.y[part]).backward()
        optimiser.step()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trials", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=2_000)
    asked = parser.parse_args()
    data = ls.load("adult")
    print("| clip | noise | seed | objective | distance | ratio | printed | l2 certified | ratio certified |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for seed in range(asked.seeds):
        model = build(ls.MLP((100,)), data, ls.seeded(seed, "model"))
        train(model, data, seed)
        params = {name: value.detach() for name, value in parameters(model).items()}
        for (clip, noise), printed in PRINTED.items():
            for objective in ("distance", "cosine"):
                audit = ls.AttributeAudit("sex", "l2", steps=asked.steps, objective=objective)
                crafted = audit.record(model, params, data, clip=clip, rng=ls.seeded(seed, "canary"))
                defense = ls.DPSGD(clip, noise)
                rng = ls.seeded(seed, "play")
                own = play_audit(audit, crafted, defense, trials=asked.trials, rng=rng)
                sharp = ls.AttributeAudit("sex", steps=asked.steps, objective=objective)
                best = play_audit(sharp, crafted, defense, trials=asked.trials, rng=ls.seeded(seed, "play"))
                ratio = own.classical / ATTRIBUTES / own.point
                cells = (f"{clip:g}", f"{noise:g}", str(seed), objective, f"{crafted.distance:.3f}",
                         f"{ratio:.2f}", f"{printed:.2f}", f"{own.certified.low:.2f}",
                         f"{best.certified.low:.2f}")  # fmt: skip
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
