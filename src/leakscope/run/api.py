"""The commands as functions: the same options, the same results, a `Report` that prints and draws itself."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from leakscope.audits.guards import request as guards
from leakscope.audits.inference import request as games
from leakscope.audits.layers import request as layers
from leakscope.audits.membership import request as recordings
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError
from leakscope.report.answer import Answer
from leakscope.report.page import write
from leakscope.report.report import Report, read_report, results_of
from leakscope.results import compare as comparisons
from leakscope.results import gate as gates
from leakscope.results import store
from leakscope.results.cell import Plan, Table
from leakscope.results.kind import headline
from leakscope.run import experiment, search
from leakscope.run.engines import Engine, run_task
from leakscope.run.plan import from_document
from leakscope.run.progress import bar, run_plan, say
from leakscope.run.tuning import Risk

if TYPE_CHECKING:
    import pandas as pd

Data = "str | Path | Dataset | pd.DataFrame"


def audit(
    data: str | Path | Dataset | pd.DataFrame = "adult",
    *,
    label: str | None = None,
    secret: str | None = None,
    user: str | None = None,
    drop: Sequence[str] = (),
    known: Sequence[str] = (),
    model: str | Table | None = None,
    batch: int = 16,
    rounds: int = 5,
    trials: int = 2_000,
    rehearsals: int = 2_000,
    seeds: int = 1,
    rate: float = 0.01,
    defenses: Sequence[str | Table] = (),
    dp: Table | None = None,
    output: str | Path | None = None,
    jobs: int | None = None,
    trust: Sequence[str] = (),
    quiet: bool = False,
) -> Report:
    """Every secret of a dataset, attacked through one victim's gradients.

    ``data`` is a known name, the path of a file, a `Dataset` or a DataFrame. Options are those of the
    command; without ``output`` the results are kept in memory only."""
    document, records = games.request_audit(
        data,
        label=label,
        secret=secret,
        user=user,
        drop=drop,
        known=known,
        model=games.parse_part(model, "--model", 'MLP:activation="tanh"') if model else None,
        training={"rate": rate},
        defenses=[games.parse_part(text, "--defense", "Pruning:rate=0.99") for text in defenses],
        dp=dp,
        batch=batch,
        rounds=rounds,
        trials=trials,
        rehearsals=rehearsals,
        seeds=seeds,
    )
    return run_document(document, output, records=records, jobs=jobs, trust=trust, quiet=quiet)


def audit_recording(
    recording: str | Path,
    candidates: str | Path,
    *,
    client: str | None = None,
    label: str | None = None,
    model: str | None = None,
    seen: str = "uploads",
    centred: bool = False,
    scores: bool = False,
    preprocessing: str | None = None,
    drop: Sequence[str] = (),
    trials: int = 2_000,
    seeds: int = 1,
    output: str | Path | None = None,
    jobs: int | None = None,
    trust: Sequence[str] = (),
    quiet: bool = False,
) -> Report:
    """Which candidates the clients of a recorded federation trained on, as its updates show it.

    ``scores`` keeps every candidate's score in the results folder, which is as private as they are."""
    document = recordings.request_recording(
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
    )
    return run_document(document, output, jobs=jobs, trust=trust, quiet=quiet)


def localise(
    data: str | Path | Dataset | pd.DataFrame = "adult",
    *,
    label: str | None = None,
    secrets: Sequence[str] = (),
    user: str | None = None,
    drop: Sequence[str] = (),
    model: str | Table | None = None,
    defense: str | Table | None = None,
    batch: int = 8,
    rounds: int = 15,
    observed: int = 1,
    trials: int = 1_000,
    rehearsals: int = 1_500,
    seeds: int = 1,
    rate: float = 0.1,
    images: int | None = None,
    show_reconstructions: bool = False,
    output: str | Path | None = None,
    jobs: int | None = None,
    trust: Sequence[str] = (),
    quiet: bool = False,
) -> Report:
    """Which layer of a model gives away what, and what protecting it costs."""
    document, records = layers.request_layers(
        data,
        label=label,
        secrets=secrets,
        user=user,
        drop=drop,
        model=games.parse_part(model, "--model", 'MLP:activation="tanh"') if model else None,
        defense=games.parse_part(defense, "--defense", "Noise:std=0.01") if defense else None,
        batch=batch,
        rounds=rounds,
        observed=observed,
        trials=trials,
        rehearsals=rehearsals,
        seeds=seeds,
        rate=rate,
        images=images,
        shown=show_reconstructions,
    )
    return run_document(document, output, records=records, jobs=jobs, trust=trust, quiet=quiet)


def guard(
    data: str | Path | Dataset | pd.DataFrame = "adult",
    *,
    label: str | None = None,
    secret: str | None = None,
    against: str = "attribute",
    lams: Sequence[float] = (0.0, 0.5),
    loss: str = "mmd",
    noise: float = 0.5,
    width: int = 8,
    utility: str = "labels",
    beside: Sequence[str] = (),
    equal: str | None = None,
    drop: Sequence[str] = (),
    epochs: int = 20,
    train: int | None = None,
    public: int | None = None,
    trials: int = 2_000,
    rehearsals: int = 4_000,
    seeds: int = 1,
    shadows: int = 0,
    dimensions: int = 2,
    show_reconstructions: bool = False,
    output: str | Path | None = None,
    jobs: int | None = None,
    trust: Sequence[str] = (),
    quiet: bool = False,
) -> Report:
    """An encoder whose representations keep a task and lose a secret, attacked by who it has not met."""
    settings: Table = {"loss": loss, "utility": utility, "epochs": epochs}
    if noise:
        settings |= {"perturbation": "gaussian", "scale": noise, "normed": True}
    if against == "membership" and utility == "labels":
        settings["label_aware"] = True
    document, records = guards.request_guard(
        data,
        label=label,
        secret=secret,
        against=against,
        drop=drop,
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
    label: str | None = None,
    secret: str | None = None,
    drop: Sequence[str] = (),
    max_advantage: float = 0.1,
    max_loss: float = 0.02,
    batch: int = 16,
    rounds: int = 5,
    trials: int = 2_000,
    rehearsals: int = 2_000,
    rate: float = 0.1,
    halvings: int = 5,
    output: str | Path | None = None,
    jobs: int | None = None,
    trust: Sequence[str] = (),
    quiet: bool = False,
) -> Report:
    """The cheapest defense that keeps a stated risk, against an adversary who knows it.

    The risk is about property inference: the secret is taken out of the inputs. The report's ``answer`` names
    the defense, on the page as here."""
    if not isinstance(data, str | Path):
        raise ArgumentError("tune takes the name of a dataset or the path of a file, got records in memory.")
    risk = Risk(max_advantage, max_loss)
    document, _ = games.request_audit(
        data,
        label=label,
        secret=secret,
        drop=drop,
        training={"rate": rate},
        title="Defenses",
        batch=batch,
        rounds=rounds,
        trials=trials,
        rehearsals=rehearsals,
    )
    document = document | {"cell": [cell for cell in document["cell"] if cell["id"] == "property"]}
    with _folder(output) as folder, bar(quiet=quiet) as progress:
        answer = search.search_defense(
            from_document(document, trusted=trust, where="the search"),
            tomli_w.dumps(document),
            risk,
            folder,
            halvings=halvings,
            jobs=jobs,
            trusted=trust,
            progress=progress,
            tell=lambda line: say(progress, line),
        )
        write(folder)
        report = read_report(folder)
    return _detached(report, output, answer)


def gate(source: Report | str | Path, appetite: str | Path | gates.Appetite) -> gates.GateVerdict:
    """A risk appetite held against a report or a results folder: ``.passed``, and why not."""
    wanted = appetite if isinstance(appetite, gates.Appetite) else gates.read(Path(appetite))
    if not isinstance(source, Report):
        return gates.judge(wanted, gates.read_results(Path(source)))
    return gates.judge(wanted, gates.complete(source.results, source.plan))


def compare(a: Report | str | Path, b: Report | str | Path) -> comparisons.Comparison:
    """Two reports or results folders, cell by cell and measure by measure."""
    if isinstance(a, Report) or isinstance(b, Report):
        return comparisons.compare(results_of(a), results_of(b))
    return comparisons.read(Path(a), Path(b))


def run_document(
    document: Table,
    output: str | Path | None,
    *,
    records: Dataset | None = None,
    jobs: int | None = None,
    trust: Sequence[str] = (),
    quiet: bool = False,
) -> Report:
    """Run the plan of a document, with these records where they are in memory."""
    plan = from_document(document, trusted=trust, where="the audit")
    return run_text(
        plan, tomli_w.dumps(document), output, records=records, jobs=jobs, trust=trust, quiet=quiet
    )


def run_text(
    plan: Plan,
    text: str,
    output: str | Path | None,
    *,
    records: Dataset | None = None,
    jobs: int | None = None,
    trust: Sequence[str] = (),
    engine: Engine | None = None,
    quiet: bool = False,
) -> Report:
    """Run a plan that is already checked; with an ``output`` folder also write its page there."""
    if records is not None:
        return _run_records(plan, text, records, output, trust=trust, quiet=quiet)
    with _folder(output) as folder:
        results = run_plan(plan, text, folder, jobs=jobs, trusted=trust, engine=engine, quiet=quiet)
        if output is not None:
            write(folder)
    return Report(tuple(results), text, Path(output) if output is not None else None)


def _run_records(
    plan: Plan, text: str, records: Dataset, output: str | Path | None, *, trust: Sequence[str], quiet: bool
) -> Report:
    """Records in memory are played with in this process, one cell after the other."""
    asked = store.asked(plan)

    def cut(table: Table) -> Dataset:
        return records.without(*table["without"]) if table.get("without") else records

    for cell, seed in asked.values():
        experiment.check(cell, seed, records=cut(cell.data), trusted=trust)
    folder, results = Path(output) if output is not None else None, []
    if folder:
        store.claim(folder, text, plan.digest)
    with bar(quiet=quiet) as progress:
        task = progress.add_task(f"{len(asked)} cells", total=len(asked))
        for cell, seed in asked.values():
            finished = run_task(cell, seed, trusted=tuple(trust), spare=1, records=cut(cell.data))
            results.append(finished.result)
            if folder:
                store.save(folder, finished.result, finished.files)
            told = f"failed: {finished.said}" if finished.said else headline(finished.result)
            say(progress, f"{cell.id or cell.game_name}, seed {seed}: {told}")
            progress.update(task, advance=1)
    if folder:
        write(folder)
    return Report(tuple(results), text, folder)


class _folder:
    """The results folder: the one that was asked for, or one that goes with the block."""

    def __init__(self, output: str | Path | None) -> None:
        self.kept = Path(output) if output is not None else None

    def __enter__(self) -> Path:
        if self.kept is not None:
            return self.kept
        self.own = tempfile.TemporaryDirectory()
        return Path(self.own.name) / "results"

    def __exit__(self, *_: Any) -> None:
        if self.kept is None:
            self.own.cleanup()


def _detached(report: Report, output: str | Path | None, answer: Answer) -> Report:
    return Report(report.results, report.plan, Path(output) if output is not None else None, answer)
