"""Figure 9 of paper 000 with the paper's own statistic beside ours, and canaries by cosine beside those by
distance, as the paper tried them.

    python benchmarks/figure9.py [--seeds 5 6 7] [--trials 5000]

Each row is a canary for one clip and noise, on Adult's sex at a net of one hidden layer of 100, after one
epoch of DP-SGD at that clip and noise on 5,000 standardised records. "ratio" is the paper's: the classical
epsilon over 14 times the point estimate, of the l2 statistic. Beside it what we certify of the same trials,
by the l2 statistic and by the likelihood ratio.
"""

from __future__ import annotations

import argparse

import leakscope as ls
from leakscope.audits.mechanism.audit import play_audit
from leakscope.models import build
from leakscope.training import fit

PRINTED = {(4.0, 0.1): 1.86, (1.5, 0.1): 1.14, (2.0, 0.08): 1.20, (2.0, 0.13): 1.33}
ATTRIBUTES = 14


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--trials", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=2_000)
    asked = parser.parse_args()
    data = ls.load("adult")
    print("| clip | noise | seed | objective | distance | ratio | printed | l2 certified | ratio certified |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for seed in asked.seeds:
        train, _, _ = data.split(ls.seeded(seed, "split"), secret="sex", train=5_000, public=1_000)
        for (clip, noise), printed in PRINTED.items():
            defense = ls.DPSGD(clip, noise)
            model = build(ls.MLP((100,)), train, ls.seeded(seed, "model"), defense=defense)
            params = fit(model, train, rounds=1, rng=ls.seeded(seed, "training"), defense=defense)[-1]
            for objective in ("distance", "cosine"):
                audit = ls.AttributeAudit("sex", "l2", steps=asked.steps, objective=objective)
                crafted = audit.record(model, params, train, clip=clip, rng=ls.seeded(seed, "canary"))
                own = play_audit(audit, crafted, defense, trials=asked.trials, rng=ls.seeded(seed, "play"))
                sharp = ls.AttributeAudit("sex", steps=asked.steps, objective=objective)
                best = play_audit(sharp, crafted, defense, trials=asked.trials, rng=ls.seeded(seed, "play"))
                ratio = own.classical / ATTRIBUTES / own.point
                cells = (f"{clip:g}", f"{noise:g}", str(seed), objective, f"{crafted.distance:.3f}",
                         f"{ratio:.2f}", f"{printed:.2f}", f"{own.certified.low:.2f}",
                         f"{best.certified.low:.2f}")  # fmt: skip
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
