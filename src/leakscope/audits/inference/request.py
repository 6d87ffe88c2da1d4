"""Options as a person gives them -> the plan of an audit of one dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leakscope.audits.asked import SECRETS, Start, open_data, parse_part, present, stem
from leakscope.audits.inference.plan import document
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, PlanError
from leakscope.data.ranges import Bins
from leakscope.models import weights

Table = dict[str, Any]
TRIED: tuple[Table, ...] = (  # defenses that an audit tries on its first question, unless told otherwise
    {"name": "DPSGD", "clip": 0.02, "noise": 0.6},  # so much noise that it can hold; it costs what it costs
)
NONE = "none"  # the word for no defense
OWN_TRAIN, OWN_PUBLIC = 20_000, 10_000  # records of one's own table that are used, where it has so many


def request_audit(
    data: Any,
    *,
    label: str | None,
    secret: str | Sequence[str] | None,
    user: str | None = None,
    person: str | None = None,
    site: str | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    kinds: Mapping[str, str] | Sequence[str] = (),
    bins: Bins | Sequence[str] = (),
    known: Sequence[str] = (),
    title: str = "Audit",
    raw: bool = False,
    start: Start | None = None,
    trust: Sequence[str] = (),
    **options: Any,
) -> tuple[Table, Dataset | None]:
    """The plan for what was asked, every name in it checked, and the records where they are in memory only;
    ``start`` is the model, other options are those of `document`."""
    secrets = [secret] if isinstance(secret, str) else list(dict.fromkeys(secret or ()))
    _one_role(site, label=label, secrets=secrets, user=user, person=person, drop=drop)
    if user and person and user != person:
        raise ArgumentError(f"--user splits by {user!r} already, got --person {person!r} too; leave one out.")
    table, records, held = open_data(
        data,
        label=label,
        secrets=secrets,
        user=user,
        person=person,
        site=site,
        drop=drop,
        keep=keep,
        kinds=kinds,
        raw=raw,
        bins=bins,
    )
    taken_out = table.get("without", ())
    usual = SECRETS.get(str(data) if isinstance(data, str) else records.name)
    wanted = secrets or ([usual] if usual else [])
    if not wanted:
        there = ", ".join(records.private) or "none"
        raise ArgumentError(f"--secret is missing; {stem(data)} has: {there}.")
    _one_role(site, label=records.label, secrets=wanted, user=user, person=person, drop=drop)
    own = "path" in table or not isinstance(data, str | Path | Dataset)
    columns = [column.name for column in records.columns]
    inputs = [name for name in (*taken_out, *known) if name != "*" or not columns]
    people = [name for name in (user, person, site) if name]
    present([*wanted, *people], list(records.private), records, "private column")
    present(inputs, columns, records, "column")
    records = records.without(*taken_out) if taken_out else records
    start, inside = start or Start(), False
    if start.weights and len(wanted) > 1:
        raise ArgumentError("a trained model is audited for one --secret at a time; leave the others out.")
    if start.weights and records.has(wanted[0]):
        inside = takes(start, records, wanted[0], trust)
        if not inside:
            table = table | {"without": [*taken_out, wanted[0]]}
            records = records.without(wanted[0])
    asked = document(
        records,
        table,
        secret=wanted,
        user=user,
        person=person,
        site=site,
        known=known,
        name=f"{title} of {stem(data)}",
        model=start.model,
        weights=start.weights,
        inside=inside,
        most=(OWN_TRAIN, OWN_PUBLIC) if own else None,
        trust=trust,
        **options,
    )
    return asked, held


def _one_role(
    site: str | None,
    *,
    label: str | None,
    secrets: Sequence[str],
    user: str | None,
    person: str | None,
    drop: Sequence[str],
) -> None:
    """Refuse a column of sites that is something else too, with all that it is."""
    roles = {"--label": [label], "--secret": secrets, "--user": [user], "--person": [person], "--drop": drop}
    if both := [option for option, names in roles.items() if site is not None and site in names]:
        raise ArgumentError(
            f"--site must name a column that is nothing else, and {site!r} is named by {' and '.join(both)} "
            f"too; choose one."
        )
    if site is not None and user is not None:
        raise ArgumentError(
            f"--site and --user must not both be given, got {site!r} and {user!r}; name people by --person, "
            f"which keeps the records of each together."
        )


def takes(start: Start, records: Dataset, secret: str, trust: Sequence[str]) -> bool:
    """Whether a trained model has the secret among its inputs, or all other columns and not that one; refused
    where it takes neither."""
    build = weights.starting(start.model or {}, start.weights, start.net, trusted=trust)
    try:
        build(records.completed(records))
    except PlanError as error:
        try:
            build(records.without(secret).completed(records.without(secret)))
        except PlanError:
            raise PlanError(f"{str(error).removesuffix('.')} (nor does it fit without {secret!r}).") from None
        return False
    return True


def list_defenses(defenses: Sequence[str | Table]) -> list[Table]:
    """The plan's tables of the defenses to audit; the word none stands for none of them."""
    named = [part for part in defenses if part != NONE]
    if named and len(named) < len(defenses):
        raise ArgumentError(
            f"--defense {NONE} must stand alone, got {len(named)} more; leave one of them out."
        )
    return [parse_part(part, "--defense", "Pruning:rate=0.99") for part in named]
