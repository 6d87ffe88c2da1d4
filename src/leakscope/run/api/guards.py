"""Encoders that keep a task and lose a secret, trained and attacked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from leakscope.run import options
from leakscope.run.options import Table

if TYPE_CHECKING:
    import pandas as pd

    from leakscope.core.dataset import Dataset
    from leakscope.report.report import Report

    Data = str | Path | Dataset | pd.DataFrame | tuple[Any, Any]


def guard(
    data: Data = "adult",
    *,
    label: options.Label = None,
    secret: options.Secrets = None,
    against: Annotated[
        str,
        options.option(
            "What to hide: an attribute of each record, a property of subsets, membership, or the records.",
            click_type=click.Choice(("attribute", "property", "membership", "reconstruction")),
            show_default=True,
        ),
    ] = "attribute",
    person: options.Person = None,
    drop: options.Drop = (),
    keep: options.Keep = (),
    kinds: options.Kinds = (),
    bins: options.Bins = (),
    lams: Annotated[
        Sequence[float],
        options.option(
            "Weight of privacy, 0 (plain training) to 1; can be repeated for a curve.",
            "--lambda",
            metavar="X",
            show_default="0 and 0.5",
        ),
    ] = (0.0, 0.5),
    loss: Annotated[
        str | None,
        options.option(
            "How the secret is removed. ridge: the best kernel adversary of each batch. adversarial is the "
            "loss of the papers; it stops no new attacker.",
            click_type=click.Choice(("ridge", "mmd", "mean", "prior", "clip", "adversarial")),
            show_default="ridge for an attribute, else mmd",
        ),
    ] = None,
    noise: Annotated[
        float, options.number("Standard deviation of noise on the normed representation; 0: none.")
    ] = 0.5,
    width: Annotated[
        int, options.count("Numbers in the representation of a record of a table: fewer leave less.")
    ] = 8,
    utility: Annotated[
        str,
        options.option(
            "What to keep: the task, or, without one, the information in the records.",
            click_type=click.Choice(("labels", "agnostic", "autoencoder")),
            show_default=True,
        ),
    ] = "labels",
    beside: Annotated[
        Sequence[str],
        options.option(
            "Another guard to try beside it, such as Distilled or DPEncoder:scale=1 (see: leakscope list); "
            "can be repeated.",
            metavar="GUARD",
        ),
    ] = (),
    frontier: Annotated[
        bool,
        options.option(
            "Try the usual guards and baselines beside it, on one page: for an attribute.", "--frontier"
        ),
    ] = False,
    equal: Annotated[
        str | None,
        options.option(
            "Set the guards beside it to be as useful, or as private, as this guard is at the last lambda.",
            click_type=click.Choice(("utility", "privacy")),
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        options.count("Epochs of the guard's training.", show_default="40 for an attribute, else 20"),
    ] = None,
    train: Annotated[
        int | None, options.count("Records the guard learns from.", show_default="a third, at most 12,000")
    ] = None,
    public: Annotated[
        int | None, options.count("Records the adversary has.", show_default="a third, at most 15,000")
    ] = None,
    trials: options.Trials = 2_000,
    rehearsals: options.Rehearsals = 4_000,
    seeds: options.Seeds = 1,
    shadows: Annotated[
        int,
        options.count("Against membership: guards that the adversary trains itself (LiRA); 0: none.", min=0),
    ] = 0,
    dimensions: Annotated[int, options.count("Of the map of representations: 2 or 3.")] = 2,
    show_reconstructions: options.Shown = False,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = (),
    quiet: bool = False,
) -> Report:
    """Train an encoder whose representations keep a task and lose a secret, and attack it anew."""
    from leakscope.audits.guards.request import request_guard
    from leakscope.run.running import run_document

    loss = loss or ("ridge" if against == "attribute" else "mmd")
    settings: Table = {"loss": loss, "utility": utility} | ({"epochs": epochs} if epochs else {})
    if noise:
        settings |= {"perturbation": "gaussian", "scale": noise, "normed": True}
    if against == "membership" and utility == "labels":
        settings["label_aware"] = True
    document, records = request_guard(
        data,
        label=label,
        secret=secret,
        against=against,
        person=person,
        drop=drop,
        keep=keep,
        kinds=kinds,
        bins=bins,
        lams=lams,
        width=width,
        settings=settings,
        train=train,
        public=public,
        trials=trials,
        rehearsals=rehearsals,
        seeds=seeds,
        shadows=shadows,
        dimensions=dimensions,
        shown=show_reconstructions,
        beside=beside,
        equal=equal,
        frontier=frontier,
    )
    return run_document(document, output, records=records, jobs=jobs, trust=trust, quiet=quiet)
