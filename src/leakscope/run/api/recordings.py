"""Audits of a federation that was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.core.errors import ArgumentError, DataError
from leakscope.run import options

if TYPE_CHECKING:
    from leakscope.report.report import Report


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
    site: options.Site = None,
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
    engine: options.Engine = "loky",
    address: options.Address = None,
    quiet: bool = False,
) -> Report:
    """Tell which candidates the clients of a recorded federation trained on, from its updates.

    ``scores`` keeps every candidate's score in the results folder, which is as private as they are.
    ``rounds`` are those to look at, all if left out: numbers, or "1-5,8". ``ask`` are the questions beside
    that; ``canary`` is the column of canaries, which certify an epsilon at ``delta``.
    ``secret`` is the column whose share at each client is asked about: clients are rehearsed for it at
    ``rate``, the recorded one if left out, on batches of ``batch`` records. Who was trained on is asked of
    every client apart, by ``jobs`` processes or the workers of an ``engine``, and asked no more of those that
    are done where it was interrupted."""
    from leakscope.audits.membership.request import request_recording
    from leakscope.audits.questions.request import ask_recording
    from leakscope.audits.records.request import ask_recorded
    from leakscope.run import engines
    from leakscope.run.running import run_document

    workers = engines.chosen(engine, address=address)
    if "sums" in ask and seen != "uploads":
        raise ArgumentError(f"--ask sums is a second audit beside that of uploads, got --seen {seen}.")
    request = partial(
        request_recording,
        str(candidates),
        recording=Path(recording),
        client=client,
        label=label,
        model=model,
        drop=drop,
        trials=trials,
        seeds=seeds,
        trust=trust,
        preprocessing=preprocessing,
        rounds=rounds,
        clients=clients,
        rename=rename,
        differences=differences,
        private=[name for name in dict.fromkeys((person, canary, site)) if name not in (None, client)],
        secret=secret,
        site=site,
    )
    document = request(seen=seen, centred=centred, records=scores)
    members = document["cell"][0]
    try:
        document["cell"].append(ask_recorded(members, shown=False, quick=True, trust=trust))
    except (ArgumentError, DataError) as error:
        note = f"Which records can be read out of the uploads was not asked: {error}"
        members["note"] = " ".join(filter(None, [members.get("note", ""), note]))
    if "sums" in ask:
        sums = request(seen="sum", centred=False, records=False)["cell"]
        document["cell"] += [cell | {"id": f"{cell['id']} in sums"} for cell in sums]
    document["cell"] += ask_recording(
        members,
        ask=[question for question in ask if question != "sums"],
        person=person,
        canary=canary,
        promised=promised,
        delta=delta,
        secret=secret,
        rate=rate,
        batch=batch,
        trust=trust,
    )
    return run_document(document, output, jobs=jobs, trust=trust, quiet=quiet, engine=workers)
