"""Head to head with the packages people would use otherwise: one command, one table.

    python benchmarks/peers                        every part whose packages are installed
    python benchmarks/peers gradients epsilon      some parts
    python benchmarks/peers --quick                smaller sizes, to see that it runs

The packages: pip install -c constraints.txt -r benchmarks/peers/requirements.txt, which fit into one
environment with Leakscope. What is missing is said below the table. Times are process times on one
thread, both sides taking turns; trust the ratios ("x": the peer's time over ours, above 1 where ours is
quicker) more than the seconds. "compared" gives times as ratios and scores as ours less the peer's.
Parts membership and reconstruction need LEAKSCOPE_DATA with location30.npz and cifar100.npz.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

# The folder above: what is imported here is the package `peers`, whose modules shadow nothing.
sys.path[0] = str(Path(__file__).parents[1])
from peers.table import REQUIREMENTS, header, pins, printed  # noqa: E402

PARTS = ("gradients", "alignment", "reconstruction", "membership", "epsilon")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="part", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the peers' own, of their dependencies
    before = os.getloadavg()
    for line in lines(asked.parts or PARTS, quick=asked.quick):
        print(line, flush=True)
    print(surroundings(before))


def lines(names: Sequence[str], *, quick: bool) -> Iterator[str]:
    """The table row by row as they come, and below it what could not be compared."""
    yield header()
    missing: dict[str, None] = {}  # in order, each once
    for name in names:
        part = import_module(f"peers.{name}")
        missing |= dict.fromkeys(peer.missing for peer in part.NEEDS if not peer.installed)
        yield from map(printed, part.rows(quick=quick))
    yield from ("", *missing)


def surroundings(before: tuple[float, float, float]) -> str:
    """The machine's load and the versions that ran."""
    load = f"load {before[0]:.1f} before and {os.getloadavg()[0]:.1f} after on {os.cpu_count()} cores"
    names = ("torch", *pins(REQUIREMENTS.read_text(encoding="utf-8").splitlines()))
    return f"{load}, one thread; {', '.join(filter(None, map(_version, names)))}"


def _version(package: str) -> str | None:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
