"""Models in sentences: what decides which gradients the numbers of a page are of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from leakscope.report.pages import percent
from leakscope.results.cell import group_by
from leakscope.results.result import Net, Result


def list_nets(results: Iterable[Result[Any]]) -> list[Net]:
    """The models behind results, without what differs from split to split."""
    return list(dict.fromkeys(map(_plain, _nets(results))))


def describe_nets(results: Iterable[Result[Any]]) -> list[str]:
    """What is easily overlooked about the models."""
    groups = group_by(_nets(results), _plain)
    return list(dict.fromkeys(line for net, runs in groups.items() for line in _describe(net, runs)))


def _nets(results: Iterable[Result[Any]]) -> Iterator[Net]:
    return (r.made.model for r in results if r.found is not None and r.made.model is not None)


def _plain(net: Net) -> Net:
    return net.model_copy(update={"start": None, "idle": False})


def _describe(net: Net, runs: Sequence[Net]) -> Iterator[str]:
    if net.given:
        starts = [run.start for run in runs if run.start is not None]
        words = (
            " to ".join(dict.fromkeys(percent(end(starts)) for end in (min, max))) if starts else "unknown"
        )
        yield (
            f"{net.name} came with weights of its own. The first round is observed at these, and training "
            f"goes on from there. Its accuracy on test records before that: {words}. Records that it was "
            f"trained on before may be among those that count as never seen here."
        )
    if any(run.idle for run in runs):
        yield (
            f"With its own weights {net.name} is not clearly better than always saying the most frequent "
            f"label. Were its inputs prepared as in its training? See the order of the columns, and --raw. "
            f"If not, these numbers say nothing about {net.name} as it is used."
        )
    if net.joins:
        yield (
            f"Batch statistics of {net.name} mix records: gradients were computed batch by batch, in "
            f"training mode. Where the gradient of a single record is asked for, it is that of evaluation "
            f"mode."
        )
    if net.draws:
        yield f"{net.name} draws at random (dropout): every gradient has masks of its own, from the seed."
    if net.still:
        yield f"Gradients of {net.name} are those of evaluation mode: running statistics, no dropout."
    if net.statistics:
        yield (
            f"{net.name} has running statistics, which a federation usually uploads beside the weights. They "
            f"were not attacked here, and no defense acts on them."
        )
