"""Records that are read out of one gradient or upload, and how many that will be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from leakscope.run import options
from leakscope.run.options import Table

if TYPE_CHECKING:
    import pandas as pd

    from leakscope.audits.records.preflight import Preflight
    from leakscope.core.dataset import Dataset
    from leakscope.report.report import Report

    Data = str | Path | Dataset | pd.DataFrame | tuple[Any, Any]


def reconstruct(
    data: Data = "adult",
    *,
    label: options.Label = None,
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
    width: options.Width = 256,
    batches: options.Batches = (8, 16, 32),
    local_epochs: options.LocalEpochs = None,
    local_batch: options.LocalBatch = 8,
    optimiser: options.Optimiser = "sgd",
    clients: options.Together = 1,
    sums: options.Sums = False,
    trained: Annotated[int, options.count("Epochs that the model has been trained for before.", min=0)] = 0,
    trials: Annotated[
        int, options.count("Releases of each number of records. More make intervals narrower.", min=2)
    ] = 40,
    seeds: options.Seeds = 1,
    rate: options.Rate = 0.1,
    defenses: Annotated[
        Sequence[str | Table],
        options.option(
            "A defense to audit too, such as Noise:std=0.01 or Pruning:rate=0.9 (see: leakscope list). The "
            "adversary knows it. Can be repeated.",
            "--defense",
            metavar="DEFENSE",
        ),
    ] = (),
    attack: Annotated[
        str | Table | None,
        options.option(
            "RowSpace, which proves records, or SpanMatching, which goes on by optimisation where proofs end "
            "and rates every cell: slower. Settings as in SpanMatching:restarts=7.",
            metavar="ATTACK",
            show_default="RowSpace",
        ),
    ] = None,
    show_reconstructions: options.Shown = False,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = (),
    quiet: bool = False,
) -> Report:
    """Read records out of one gradient or upload, and prove which of them were there.

    ``data`` and ``model`` as for `audit`; the model must begin with a linear layer. No record is in the
    report unless ``show_reconstructions`` asks for some."""
    from leakscope.audits.asked import parse_model, parse_part
    from leakscope.audits.inference.request import list_defenses
    from leakscope.audits.records.request import describe_local, request_records
    from leakscope.run.running import run_document

    start = parse_model(model, weights, output)
    document, records = request_records(
        data,
        label=label,
        person=person,
        drop=drop,
        keep=keep,
        kinds=kinds,
        bins=bins,
        raw=raw,
        train=train,
        public=public,
        start=start,
        width=width,
        batches=batches,
        local=describe_local(local_epochs, local_batch, optimiser, rate),
        clients=clients,
        sums=sums,
        trained=trained,
        trials=trials,
        seeds=seeds,
        training=options.training(rate, mode),
        defenses=list_defenses(defenses),
        shown=show_reconstructions,
        attack=parse_part(attack, "--attack", "SpanMatching:restarts=7") if attack else None,
    )
    return run_document(document, output, records=records, net=start.net, jobs=jobs, trust=trust, quiet=quiet)


def reconstruct_recording(
    recording: str | Path,
    candidates: str | Path,
    *,
    client: options.Client = None,
    label: options.Label = None,
    model: str | None = None,
    seen: options.Seen = "uploads",
    preprocessing: options.Preprocessing = None,
    rounds: options.Observed = (),
    clients: Sequence[str] = (),
    rename: options.Rename = (),
    differences: options.Differences = False,
    drop: options.Drop = (),
    show_reconstructions: options.Shown = False,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = (),
    quiet: bool = False,
) -> Report:
    """Read records out of the uploads in a recording, and prove which of them were there.

    The arguments are those of `audit_recording`. The candidates of nobody tell the adversary how the table is
    written; those of clients are what it looks for, and it has none of them."""
    from leakscope.audits.membership.request import request_recording
    from leakscope.audits.records.request import ask_recorded
    from leakscope.run.running import run_document

    document = request_recording(
        str(candidates),
        recording=Path(recording),
        client=client,
        label=label,
        model=model,
        seen=seen,
        centred=False,
        records=False,
        drop=drop,
        trials=2,
        seeds=1,
        trust=trust,
        preprocessing=preprocessing,
        rounds=rounds,
        clients=clients,
        rename=rename,
        differences=differences,
    )
    asked = ask_recorded(document["cell"][0], shown=show_reconstructions, quick=False, trust=trust)
    document |= {"name": document["name"].replace("Audit of", "Records of"), "cell": [asked]}
    return run_document(document, output, jobs=jobs, trust=trust, quiet=quiet)


def preflight(
    data: Data = "adult",
    *,
    label: options.Label = None,
    drop: options.Drop = (),
    keep: options.Keep = (),
    kinds: options.Kinds = (),
    bins: options.Bins = (),
    model: options.Model = None,
    weights: options.Weights = None,
    raw: options.Raw = False,
    width: options.Width = 256,
    batches: options.Batches = (8, 16, 32),
    local_epochs: options.LocalEpochs = None,
    local_batch: options.LocalBatch = 8,
    optimiser: options.Optimiser = "sgd",
    clients: options.Together = 1,
    sums: options.Sums = False,
    rate: options.Rate = 0.1,
    trust: options.Trust = (),
) -> Preflight:
    """Foresee how many records can be read out of one release, before anything is trained.

    The attack is rehearsed on records of this table, at the model as it starts."""
    from leakscope.audits.asked import parse_model
    from leakscope.audits.records.request import describe_local, request_preflight

    return request_preflight(
        data,
        start=parse_model(model, weights),
        width=width,
        batches=batches,
        clients=clients,
        sums=sums,
        local=describe_local(local_epochs, local_batch, optimiser, rate),
        trust=trust,
        label=label,
        drop=drop,
        keep=keep,
        kinds=kinds,
        bins=bins,
        raw=raw,
    )
