"""The commands as functions: the same options, the same results, a `Report` that prints and draws itself.

The command line reads its options off these signatures, so that nothing heavy may be imported with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from leakscope.core.errors import ArgumentError
from leakscope.run import options
from leakscope.run.options import Table

if TYPE_CHECKING:
    import pandas as pd

    from leakscope.audits.records.preflight import Preflight
    from leakscope.core.dataset import Dataset
    from leakscope.report.report import Report
    from leakscope.results.compare import Comparison
    from leakscope.results.gate import Appetite, GateVerdict

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


def audit_recording(
    recording: str | Path,
    candidates: str | Path,
    *,
    client: options.Client = None,
    label: options.Label = None,
    model: str | None = None,
    seen: options.Seen = "uploads",
    centred: options.Centred = False,
    scores: bool = False,
    preprocessing: options.Preprocessing = None,
    rounds: Sequence[int] | str | int = (),
    clients: options.Clients = (),
    rename: options.Rename = (),
    differences: options.Differences = False,
    ask: options.Ask = (),
    person: options.Person = None,
    canary: options.Canary = None,
    promised: options.Promised = None,
    delta: float = 1e-5,
    secret: str | None = None,
    rate: float | None = None,
    batch: int | None = None,
    drop: options.Drop = (),
    trials: options.Trials = 2_000,
    seeds: options.Seeds = 1,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = (),
    quiet: bool = False,
) -> Report:
    """Tell which candidates the clients of a recorded federation trained on, from its updates.

    ``scores`` keeps every candidate's score in the results folder, which is as private as they are.
    ``rounds`` are those to look at, all if left out: numbers, or "1-5,8". ``ask`` are the questions beside
    that; ``canary`` is the column of canaries, which certify an epsilon at ``delta``.
    ``secret`` is the column whose share at each client is asked about: clients are rehearsed for it at
    ``rate``, the recorded one if left out, on batches of ``batch`` records."""
    from leakscope.audits.membership.request import request_recording
    from leakscope.audits.questions.request import ask_recording
    from leakscope.run.running import run_document

    document = request_recording(
        str(candidates),
        recording=Path(recording),
        client=client,
        label=label,
        model=model,
        seen=seen,
        centred=centred,
        records=scores,
        drop=drop,
        trials=trials,
        seeds=seeds,
        trust=trust,
        preprocessing=preprocessing,
        rounds=rounds,
        clients=clients,
        rename=rename,
        differences=differences,
        private=[name for name in dict.fromkeys((person, canary)) if name not in (None, client)],
        secret=secret,
    )
    document["cell"] += ask_recording(
        document["cell"][0],
        ask=ask,
        person=person,
        canary=canary,
        promised=promised,
        delta=delta,
        secret=secret,
        rate=rate,
        batch=batch,
        trust=trust,
    )
    return run_document(document, output, jobs=jobs, trust=trust, quiet=quiet)


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
    show_reconstructions: options.Shown = False,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = (),
    quiet: bool = False,
) -> Report:
    """Read records out of one gradient or upload, and prove which of them were there.

    ``data`` and ``model`` as for `audit`; the model must begin with a linear layer. No record is in the
    report unless ``show_reconstructions`` asks for some."""
    from leakscope.audits.asked import parse_model
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
    )
    return run_document(document, output, records=records, net=start.net, jobs=jobs, trust=trust, quiet=quiet)


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


def guard(
    data: Data = "adult",
    *,
    label: options.Label = None,
    secret: options.Secret = None,
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
    equal: Annotated[
        str | None,
        options.option(
            "Set the guards beside it to be as useful, or as private, as this guard is at the last lambda.",
            click_type=click.Choice(("utility", "privacy")),
        ),
    ] = None,
    epochs: Annotated[int, options.count("Epochs of the guard's training.")] = 20,
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
    settings: Table = {"loss": loss, "utility": utility, "epochs": epochs}
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
    )
    return run_document(document, output, records=records, jobs=jobs, trust=trust, quiet=quiet)


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


def gate(
    source: Report | str | Path | Sequence[Report | str | Path], appetite: str | Path | Appetite
) -> GateVerdict:
    """Check reports or results folders, one or several, against a risk appetite: ``.passed``, and why not."""
    from leakscope.report.report import Report
    from leakscope.results import gate as gates

    wanted = appetite if isinstance(appetite, gates.Appetite) else gates.read(Path(appetite))
    sources = [source] if isinstance(source, Report | str | Path) else list(source)
    runs = [
        gates.complete(one.results, one.plan) if isinstance(one, Report) else gates.read_results(Path(one))
        for one in sources
    ]
    return gates.judge(wanted, *runs)


def dossier(
    folders: Sequence[str | Path], output: str | Path, *, appetite: str | Path | None = None
) -> tuple[list[str], str]:
    """Write what may leave a trusted environment about some results folders: the names of the files, and what
    became of the PDF."""
    from leakscope.report.dossier import write_dossier

    wanted = Path(appetite) if appetite else None
    return write_dossier([Path(folder) for folder in folders], Path(output), appetite=wanted)


def compare(a: Report | str | Path, b: Report | str | Path) -> Comparison:
    """Compare two reports or results folders, cell by cell and measure by measure."""
    from leakscope.report.report import Report, results_of
    from leakscope.results import compare as comparisons

    if isinstance(a, Report) or isinstance(b, Report):
        return comparisons.compare(results_of(a), results_of(b))
    return comparisons.read(Path(a), Path(b))
