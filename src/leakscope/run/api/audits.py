"""Audits of gradients: which secrets they give away, which layer does, and which defense stops it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from leakscope.core.errors import ArgumentError
from leakscope.run import options
from leakscope.run.options import Table

if TYPE_CHECKING:
    import pandas as pd

    from leakscope.core.dataset import Dataset
    from leakscope.report.report import Report

    Data = str | Path | Dataset | pd.DataFrame | tuple[Any, Any]


def audit(
    data: Data = "adult",
    *,
    label: options.Label = None,
    secret: options.Secrets = None,
    user: options.User = None,
    person: options.Person = None,
    site: options.Site = None,
    seen: options.Seen = "uploads",
    drop: options.Drop = (),
    keep: options.Keep = (),
    kinds: options.Kinds = (),
    bins: options.Bins = (),
    train: options.Train = None,
    public: options.Public = None,
    known: options.Known = (),
    model: options.Model = None,
    weights: options.Weights = None,
    mode: options.Mode = "train",
    raw: options.Raw = False,
    batch: Annotated[
        int,
        options.count("Records behind one gradient; 8 times as many for the distribution, half for a user."),
    ] = 16,
    rounds: options.AuditRounds = 15,
    trials: options.Trials = 2_000,
    rehearsals: options.Rehearsals = 2_000,
    seeds: Annotated[
        int, options.count("Repetitions with new splits and training. Several show how results vary.")
    ] = 1,
    rate: options.Rate = 0.02,
    defenses: options.Defenses = (),
    attack: options.Attack = None,
    dp: Table | None = None,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = (),
    quiet: bool = False,
) -> Report:
    """Attack every secret of a dataset through one victim's gradients, and ask who was trained on.

    ``data`` is a known name, the path of a file, a `Dataset`, a DataFrame or a pair (X, y); ``model`` a name,
    or a `torch.nn.Module` that is audited at the weights it has. Options are those of the command; without
    ``output`` the results are kept in memory only. Without ``defenses`` a short list of them is tried on the
    first question; ``defenses=["none"]`` tries none."""
    from leakscope.audits.asked import parse_model, parse_part
    from leakscope.audits.inference import request as games
    from leakscope.run.running import run_document

    start = parse_model(model, weights, output)
    document, records = games.request_audit(
        data,
        label=label,
        secret=secret,
        user=user,
        person=person,
        site=site,
        seen=seen,
        drop=drop,
        keep=keep,
        kinds=kinds,
        bins=bins,
        train=train,
        public=public,
        known=known,
        raw=raw,
        start=start,
        trust=trust,
        training=options.training(rate, mode),
        defenses=games.list_defenses(defenses),
        tried=() if defenses or not _known(model) else games.TRIED,
        attack=parse_part(attack, "--attack", "Joint:components=30") if attack else None,
        dp=dp,
        batch=batch,
        rounds=rounds,
        trials=trials,
        rehearsals=rehearsals,
        seeds=seeds,
    )
    return run_document(document, output, records=records, net=start.net, jobs=jobs, trust=trust, quiet=quiet)


def _known(model: object) -> bool:
    """Whether a model is one of ours: a defense may not work on another one."""
    from leakscope.core.catalogue import roles

    if model is None or isinstance(model, str):
        return not model or model.partition(":")[0] in roles("model")
    return isinstance(model, dict) and model.get("name") in roles("model")


def localise(
    data: Data = "adult",
    *,
    label: options.Label = None,
    secrets: Annotated[
        Sequence[str], options.column("A private column the adversary is after; can be repeated.", "--secret")
    ] = (),
    person: options.Person = None,
    user: Annotated[str | None, options.column("The same as --person.", hidden=True)] = None,
    drop: options.Drop = (),
    keep: options.Keep = (),
    kinds: options.Kinds = (),
    bins: options.Bins = (),
    model: options.Model = None,
    weights: options.Weights = None,
    mode: options.Mode = "train",
    raw: options.Raw = False,
    defense: Annotated[
        str | Table | None,
        options.option("A defense the model is trained and seen under.", metavar="DEFENSE"),
    ] = None,
    batch: options.Batch = 8,
    rounds: Annotated[int, options.count("Rounds of training, an epoch each.")] = 15,
    observed: Annotated[
        int, options.count("The round whose gradients the adversary sees; 1: before any training.")
    ] = 1,
    trials: options.Trials = 1_000,
    rehearsals: options.Rehearsals = 1_500,
    seeds: options.Seeds = 1,
    rate: options.Rate = 0.1,
    images: Annotated[
        int | None, options.count("Pictures to reconstruct from pairs of layers; 0: none.", min=0)
    ] = None,
    show_reconstructions: options.Shown = False,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = (),
    quiet: bool = False,
) -> Report:
    """Find which layer of a model gives away what, and what protecting it costs."""
    from leakscope.audits.asked import parse_model, parse_part
    from leakscope.audits.layers.request import request_layers
    from leakscope.run.running import run_document

    start = parse_model(model, weights, output)
    document, records = request_layers(
        data,
        label=label,
        secrets=secrets,
        person=person or user,
        drop=drop,
        keep=keep,
        kinds=kinds,
        bins=bins,
        raw=raw,
        model=start.model,
        start=start.weights,
        defense=parse_part(defense, "--defense", "Noise:std=0.01") if defense else None,
        batch=batch,
        rounds=rounds,
        observed=observed,
        trials=trials,
        rehearsals=rehearsals,
        seeds=seeds,
        training=options.training(rate, mode),
        images=images,
        shown=show_reconstructions,
    )
    return run_document(document, output, records=records, net=start.net, jobs=jobs, trust=trust, quiet=quiet)


def tune(
    data: str | Path = "adult",
    *,
    label: options.Label = None,
    secret: options.Secret = None,
    person: options.Person = None,
    drop: options.Drop = (),
    keep: options.Keep = (),
    kinds: options.Kinds = (),
    bins: options.Bins = (),
    train: options.Train = None,
    public: options.Public = None,
    model: options.Model = None,
    weights: options.Weights = None,
    mode: options.Mode = "train",
    raw: options.Raw = False,
    max_advantage: Annotated[
        float,
        options.number("The most an adversary who knows the defense may gain: 0 is guessing, 1 certainty."),
    ] = 0.1,
    max_loss: Annotated[
        float, options.number("The most accuracy it may cost the model: 0.02 is two points.")
    ] = 0.02,
    batch: options.Batch = 16,
    rounds: options.Rounds = 15,
    trials: options.Trials = 2_000,
    rehearsals: options.Rehearsals = 2_000,
    rate: options.Rate = 0.02,
    halvings: Annotated[int, options.count("Strengths tried of a defense below its strongest.")] = 5,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = (),
    quiet: bool = False,
) -> Report:
    """Find the cheapest defense that keeps a stated risk, against an adversary who knows it.

    The search plays property inference: the secret is not an input. The report's ``answer`` names the
    defense, and how to run it; the page has the same words."""
    from leakscope.audits.asked import parse_model
    from leakscope.audits.inference.request import request_audit
    from leakscope.run.running import run_search
    from leakscope.run.tuning import Risk

    if not isinstance(data, str | Path):
        raise ArgumentError("tune takes the name of a dataset or the path of a file, got records in memory.")
    risk, start = Risk(max_advantage, max_loss), parse_model(model, weights)
    if start.net is not None:
        raise ArgumentError(
            "tune takes a model by name, got a module in memory; save its state_dict and give "
            "model='nets.Net', weights='net.pt' and trust=['nets']."
        )
    document, _ = request_audit(
        data,
        label=label,
        secret=secret,
        person=person,
        drop=drop,
        keep=keep,
        kinds=kinds,
        bins=bins,
        train=train,
        public=public,
        raw=raw,
        start=start,
        trust=trust,
        training=options.training(rate, mode),
        title="Defenses",
        batch=batch,
        rounds=rounds,
        trials=trials,
        rehearsals=rehearsals,
    )
    cell = next((cell for cell in document["cell"] if cell["id"] == "property"), None)
    if cell is None:
        raise ArgumentError(
            "tune takes the secret out of the inputs, and the model has it among its own; give one that was "
            "trained without it, or use audit with --defense."
        )
    cell["attack"]["attacks"].append({"name": "NoiseAware"})  # among those that are tried, noise
    document = document | {"cell": [cell]}
    return run_search(document, risk, output, halvings=halvings, jobs=jobs, trust=trust, quiet=quiet)
