"""The papers' figures that are curves, maps and pictures, recorded for the site: papers/pictures.

    python benchmarks/pictures.py                      every picture (about an hour on one core)
    python benchmarks/pictures.py --only "002 fig1"    one of them; can be repeated

Needs LEAKSCOPE_DATA. Each is of cells of a paper's plan with one seed, 0. A figure is SVG, drawn by the
functions that draw the reports' own figures, in the classes of their style and without colours of its own;
rebuilt pictures are PNG, a strip for each row. Only images of CIFAR-10 are ever shown: no face, no scan and
no private record. index.json says of every picture which cells it is of, their keys, and when it was made.
Results of whole cells are kept in papers-results/pictures, so that a second run only draws.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.manifold import TSNE
from torch import Tensor

import leakscope as ls
from leakscope.attacks.closed_form import Attempt, FirstLayer
from leakscope.attacks.reconstruction import DeepLeakage, InvertingGradients
from leakscope.audits.guards.audit import GuardAudit
from leakscope.audits.guards.kind import _prepare
from leakscope.audits.guards.trial import Trial
from leakscope.audits.membership.simulated import MembershipAudit
from leakscope.core import flatten
from leakscope.core.dataset import Dataset
from leakscope.core.nouns import Batch, Params, Transcript
from leakscope.core.rng import integer, seeded
from leakscope.core.tables import construct
from leakscope.games import Reconstruction
from leakscope.games.channels import GradientChannel
from leakscope.guards.encoder import Encoder, Guarded
from leakscope.guards.hidden import Hidden
from leakscope.measures.fidelity import matched, ssim
from leakscope.measures.orthogonality import orthogonality, update_cosines
from leakscope.models import MLP, LeNet, SigmoidNet, build, parameters
from leakscope.report import plot
from leakscope.report.plot.frame import Axis, frame
from leakscope.report.plot.panel import Curve, Panel, draw
from leakscope.results import store
from leakscope.results.averages import RAREST, thinned
from leakscope.results.cell import Cell
from leakscope.results.result import Result
from leakscope.run import experiment, published

FOLDER = Path(__file__).parents[1] / "papers" / "pictures"
RESULTS = Path("papers-results") / "pictures"
SEED, POINTS, MAPPED, SHOWN, BINS = 0, 40, 300, 6, 40
Drawn = tuple[str, str | bytes, str]  # what it is called, the drawing, and what stands beside it


@dataclass(frozen=True)
class Recorded:
    """Cells of a paper's plan and how they are drawn; ``more`` is what is added to their settings, ``also``
    what else a reader must know of how it was made, and ``data`` whose records are shown
    where no cell says it."""

    cells: tuple[str, ...]
    draw: Callable[[dict[str, Cell], Path], Sequence[Drawn]]
    key: tuple[str, ...] = ()
    also: str = ""
    data: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def result_of(cell: Cell, folder: Path) -> Result[Any]:
    """A cell's result with the seed, from the folder if it is there."""
    result = store.load(folder, cell.key(SEED))
    if result is None or result.error:
        result = experiment.run(cell, SEED)
        folder.mkdir(parents=True, exist_ok=True)
        store.save(folder, result)
    return result


# ROC curves


def draw_rocs(title: str, names: dict[str, str], attack: str) -> Callable[..., list[Drawn]]:
    """One attack's curves under several guards, on two logarithmic axes."""

    def drawn(cells: dict[str, Cell], folder: Path) -> list[Drawn]:
        curves = {}
        for cell, name in names.items():
            judged = result_of(cells[cell], folder).found.judged[0]
            (one,) = (tried for tried in judged.attacks if tried.name == attack)
            curves[name] = thinned(one.roc, POINTS)
        return [(title, rocs(curves, title), "")]

    return drawn


def rocs(curves: dict[str, Sequence[tuple[float, float]]], title: str) -> str:
    """Steps that never claim more than was measured, as those of a report."""
    ticks = ((0.001, "0.1%"), (0.01, "1%"), (0.1, "10%"), (1.0, "100%"))
    across = Axis(RAREST, 1.0, ticks, "false alarms (log scale)", log=True, grid=True)
    up = Axis(RAREST, 1.0, ticks, "members named (log scale)", log=True, grid=True)
    lines = [Curve([(RAREST, RAREST), (1.0, 1.0)], "chance")]
    styles = [f"series {name}" for name in ("first", "second", "third", "fourth")]
    for style, (name, curve) in zip(styles, curves.items(), strict=False):
        steps = [corner for (_, y), (x, top) in pairwise(curve)
                 for corner in ((x, y), (x, top))]  # fmt: skip
        lines.append(Curve([*curve[:1], *steps], style, tip=name))
    panel = Panel(frame(across, up, tall=300), curves=lines)
    desc = f"From the line that is drawn first: {', '.join(curves)}. The dashed line is chance."
    return draw([panel], title, desc, "roc")


# Maps


class Looked(Exception):
    """The encoder as it is, and who is to judge it."""

    def __init__(self, encoder: Encoder, trial: Trial) -> None:
        self.encoder, self.trial = encoder, trial


@dataclass(frozen=True)
class Look(GuardAudit):
    """The audit up to where the guard is trained: nobody attacks it."""

    def _judge(self, guarded: Guarded, trial: Trial, *_: Any) -> Any:
        raise Looked(guarded.encoder, trial)


def look(cell: Cell) -> Looked:
    """The cell's encoder, trained as the audit trains it."""
    audit, parts = _prepare(experiment.enter(cell, SEED))
    settings = {one.name: getattr(audit, one.name) for one in fields(audit)}
    counts = {"trials": cell.trials, "rehearsals": cell.rehearsals, "seed": SEED}
    try:
        Look(**{**settings, "rows": False}).run(
            parts.train, parts.test, parts.public, **counts, person=cell.data.get("by")
        )
    except Looked as looked:
        return looked
    raise AssertionError("an audit of a guard judges it")


def draw_maps(title: str, names: dict[str, str], *, raw: str = "") -> Callable[..., list[Drawn]]:
    """What the attacker sees of challenges of the game, in two dimensions by t-SNE, marked by the secret; of
    the records themselves too, if ``raw`` says what they are called."""

    def drawn(cells: dict[str, Cell], folder: Path) -> list[Drawn]:
        found: list[Drawn] = []
        for cell, name in names.items():
            looked = look(cells[cell])
            if raw and not found:
                found.append(map_of(looked.trial, Encoder(torch.nn.Identity(), {}), title, raw))
            found.append(map_of(looked.trial, looked.encoder, title, name))
        return found

    return drawn


def map_of(trial: Trial, encoder: Encoder, title: str, name: str) -> Drawn:
    """As many challenges as a map has spots."""
    game, _ = trial.games()
    view, secrets = game.deal(trial.channel(encoder), MAPPED, seeded(SEED, "map"))
    seen = flatten(view.releases[0].layers).numpy()
    points = TSNE(2, random_state=integer(seeded(SEED, "t-SNE")), perplexity=30).fit_transform(seen)
    groups: list[list[tuple[float, float]]] = [[] for _ in range(int(secrets.max()) + 1)]
    for (x, y), code in zip(points.tolist(), secrets.tolist(), strict=True):
        groups[code].append((x, y))
    desc = f"{MAPPED} challenges by t-SNE, as the attacker sees them; distances between groups mean little."
    return name, plot.cloud(groups, title=f"{title}, {name}", desc=desc), ""


# Cosines


class Watch:
    """Keeps what one client was given and what it gave back in one round."""

    def __init__(self, r: int) -> None:
        self.r = r
        self.given: Params = {}
        self.back: Params = {}

    def global_model(self, r: int, params: Params) -> None:
        if r == self.r:
            self.given = {name: value.clone() for name, value in params.items()}

    def update(self, r: int, client: int, params: Params, **_: Any) -> None:
        if (r, client) == (self.r, 0):
            self.back = {name: value.clone() for name, value in params.items()}


def draw_cosines(cells: dict[str, Cell], folder: Path) -> list[Drawn]:
    """Figures 1 and 2: between gradients of two records, and between a record's and its client's update."""
    (cell,) = cells.values()
    world = experiment.enter(cell, SEED)
    audit: MembershipAudit = construct(cell.game, "audit")
    who, model, defense = audit._prepare(world)
    last = cell.rounds - 1
    watch = Watch(last)
    audit.federate(model, who.members, rounds=cell.rounds, rng=seeded(SEED, "training"), defense=defense,
                   recorder=watch)  # fmt: skip
    layer, members, others = "conv5", who.members[0], who.others.take(torch.arange(len(who.members[0])))
    net = model.eval()
    pairs = orthogonality(net, watch.given, members, others)
    moved = {name: watch.given[name] - watch.back[name] for name in watch.given}
    inside, outside = (update_cosines(net, watch.given, moved, data)[layer] for data in (members, others))
    between = (pairs.mixed[layer], pairs.members[layer])
    return [
        ("between the gradients of two records", cosines(between, ("member and another", "two members"),
                          "Cosines between the gradients of two records"), ""),
        ("between a record's gradient and the update", cosines((outside, inside), ("others", "members"),
                           "Cosines between a record's gradient and the update"), ""),
    ]  # fmt: skip


def cosines(two: tuple[Tensor, Tensor], names: tuple[str, str], title: str) -> str:
    every = torch.cat(two)
    low, high = float(every.quantile(0.002)), float(every.quantile(0.998))
    edges = torch.linspace(low, high, BINS + 1)
    shares = [
        torch.histogram(part.clamp(low, high).double(), edges.double()).hist / len(part) for part in two
    ]
    text = plot.histogram(edges.tolist(), (shares[0].tolist(), shares[1].tolist()), names=names,
                          span=(low, high), title=title)  # fmt: skip
    return text.replace("test statistic", "cosine").replace("share of trials", "share of pairs")


def draw_statistics(cells: dict[str, Cell], folder: Path) -> list[Drawn]:
    """Figure 8 of paper 000: the statistic under either value of the attribute, on one axis."""
    found = {name: result_of(cell, folder).found for name, cell in cells.items()}
    ends = [end for one in found.values() for end in (one.histogram.edges[0], one.histogram.edges[-1])]
    drawn = []
    for one in found.values():
        shares = tuple([h / sum(part) for h in part] for part in (one.histogram.h0, one.histogram.h1))
        words = "a record made for the audit" if one.crafted else "a record drawn from the data"
        text = plot.histogram(one.histogram.edges, (shares[0], shares[1]), names=one.values[:2],
                              span=(min(ends), max(ends)), title=f"Test statistic, {words}")  # fmt: skip
        drawn.append((words, text, ""))
    return drawn


# Pictures, of CIFAR-10 alone


def draw_rebuilt(cells: dict[str, Cell], folder: Path) -> list[Drawn]:
    """The first images of CIFAR-10's test part, each behind a gradient of its own."""
    test, public = ls.load("cifar10", part="test"), ls.load("cifar10", part="train")
    images, public = test.take(torch.arange(SHOWN)), public.take(torch.arange(500))
    rows: list[Drawn] = [("original", strip(images.x), "")]
    tried = {
        "closed form, MLP": (MLP((256,)), FirstLayer()),
        "DLG, sigmoid net": (SigmoidNet(), DeepLeakage(restarts=2, evaluations=4_000)),
        "cosine, LeNet": (LeNet(), InvertingGradients(iterations=1_200, tv=0.01)),
    }
    for name, (net, attack) in tried.items():
        attempt = rebuild(net, attack, images, public)
        found = matched(Transcript(images.x[:, None], attempt.records, torch.empty(0)))
        likeness = ssim(found, images.x[:, None])
        rows.append((name, strip(found[:, 0]), f"SSIM {likeness.mean():.3f}"))
    return rows


def rebuild(net: Any, attack: Any, images: Dataset, public: Dataset) -> Attempt:
    model = build(net, images, seeded(SEED, "net"))
    channel = GradientChannel(model, (parameters(model),))
    rows = torch.arange(len(images))[:, None]
    releases = channel(Batch(images, rows), torch.zeros(len(images), dtype=torch.long), seeded(SEED))
    view = ls.View(releases, {"labels": images.y[rows]})
    knowledge = ls.Knowledge(Reconstruction(public), channel)
    if isinstance(attack, FirstLayer):
        return attack.attempt(knowledge, view)
    found: Attempt = attack.attempt(knowledge, view, seeded(SEED, "start"))
    return found


def draw_decoded(names: dict[str, str]) -> Callable[..., list[Drawn]]:
    """Records of the cells and what a decoder makes of their representations: the same ones in each. One
    with a person in it is left out, even where no face can be made out."""

    def drawn(cells: dict[str, Cell], folder: Path) -> list[Drawn]:
        rows: list[Drawn] = []
        for cell, name in names.items():
            every = result_of(cells[cell], folder).found.pictures
            shown = [one for i, one in enumerate(every) if i not in PEOPLE]
            if cells[cell].data != {"name": "cifar10"}:
                raise ValueError(f"{cell} is not of CIFAR-10, whose images alone are shown")
            if not rows:
                rows.append(("original", joined([one.original for one in shown]), ""))
            likeness = [one.ssim for one in shown if one.ssim is not None]
            told = f"SSIM {sum(likeness) / len(likeness):.3f}"
            rows.append((name, joined([one.reconstruction for one in shown]), told))
        return rows

    return drawn


def strip(images: Tensor) -> bytes:
    """Images beside each other, with nothing between them."""
    pixels = (images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return png(list(pixels))


def joined(pictures: Sequence[str]) -> bytes:
    """The same of a report's pictures, at their own size."""
    opened = [Image.open(io.BytesIO(base64.b64decode(one))).convert("RGB") for one in pictures]
    return png([np.asarray(one.resize((32, 32), Image.Resampling.NEAREST)) for one in opened])


def png(parts: Sequence[np.ndarray]) -> bytes:
    gap = np.zeros((parts[0].shape[0], 2, 4), dtype=np.uint8)  # the page shows through
    solid = [np.dstack([part, np.full_like(part[..., :1], 255)]) for part in parts]
    wide = [piece for part in solid for piece in (part, gap)][:-1]
    held = io.BytesIO()
    Image.fromarray(np.concatenate(wide, axis=1)).save(held, format="PNG", optimize=True)
    return held.getvalue()


GUARDED = {
    "location-lira": "no guard",
    "location-early-lira": "plain training that stops early",
    "location-aware-lira": "the guard with a bounded loss, told the label",
}
BY_MEMBER = ("others", "members")
BY_SHARE = tuple(f"{share:.0%} women" for share in Hidden.shares)
WITHOUT, WITH = "no guard (λ = 0)", "the paper's guard (λ = 0.75)"
PEOPLE = (2,)  # of the images that seed 0 draws: a rider
LEARNED = {"cifar10-learned-0": "no noise", "cifar10-learned-1.25": "learned noise, ε = 1.25"}


def pair(stem: str) -> dict[str, str]:
    return {f"{stem}-0": WITHOUT, f"{stem}-0.75": WITH}


PICTURES = {
    "000 fig8": Recorded(("audit-crafted", "audit-sampled"), draw_statistics),
    "001 rebuilt": Recorded(
        (),
        draw_rebuilt,
        data="cifar10",
        also="the first images of the test part, nets before training, likeness (SSIM) on average",
    ),
    "002 fig1": Recorded(("cifar100",), draw_cosines, also="the last round, the first client, layer conv5"),
    "003 fig5": Recorded(
        tuple(pair("cifar10")), draw_maps("Members and others", pair("cifar10")), BY_MEMBER
    ),
    "003 fig6": Recorded(
        tuple(pair("location")), draw_maps("Members and others", pair("location")), BY_MEMBER
    ),
    "003 fig8": Recorded(
        tuple(GUARDED), draw_rocs("LiRA on location30", GUARDED, "LiRA"), tuple(GUARDED.values())
    ),
    "003 fig9": Recorded(
        tuple(LEARNED),
        draw_decoded(LEARNED),
        more={"shown": SHOWN},
        also="the first challenges, without one that shows a person; likeness (SSIM) on average",
    ),
    "003 fig12": Recorded(
        tuple(pair("census-mean")), draw_maps("Shares of women", pair("census-mean")), BY_SHARE
    ),
    "004 fig2": Recorded(
        ("adult-gender-0.75",),
        draw_maps("Men and women", {"adult-gender-0.75": WITH}, raw="the records as they are"),
        ("Female", "Male"),
    ),
}  # fmt: skip


def cells_of(name: str) -> dict[str, Cell]:
    recorded, known = PICTURES[name], published.cells(name.split()[0])
    return {
        cell: known[cell].model_copy(update={"game": {**known[cell].game, **recorded.more}})
        for cell in recorded.cells
    }


def write(name: str, results: Path) -> dict[str, Any]:
    """Draw a picture, and say of what."""
    recorded, cells = PICTURES[name], cells_of(name)
    panels = []
    for i, (title, drawing, beside) in enumerate(recorded.draw(cells, results)):
        raw = isinstance(drawing, bytes)
        path = FOLDER / f"{name.replace(' ', '-')}-{i}.{'png' if raw else 'svg'}"
        if isinstance(drawing, bytes):
            path.write_bytes(drawing)
        else:
            path.write_text(drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n")
        panels.append({"file": path.name, "title": title, **({"beside": beside} if beside else {})})
    return {
        "cells": {cell: published.cells(name.split()[0])[cell].key(SEED) for cell in recorded.cells},
        "seed": SEED,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "panels": panels,
    }


def words(name: str) -> dict[str, Any]:
    """What is said of a picture, whenever it was made."""
    recorded = PICTURES[name]
    said = {
        "also": recorded.also,
        "data": recorded.data,
        "settings": recorded.more,
        "key": list(recorded.key),
    }
    return {name: value for name, value in said.items() if value}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=list(PICTURES), default=[])
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results of cells are kept")
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "index.json"
    for name in asked.only or PICTURES:
        begun = time.perf_counter()
        entry = write(name, asked.results)
        index = json.loads(path.read_text()) if path.exists() else {}
        index[name] = entry
        ordered = {known: {**index[known], **words(known)} for known in PICTURES if known in index}
        path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
        print(f"{name}: {len(entry['panels'])} drawn in {time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
