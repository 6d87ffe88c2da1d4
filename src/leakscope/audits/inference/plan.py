"""The plan of an audit of one dataset: its cells, their sizes and the attacks that play them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakscope.audits.records.request import ask_records
from leakscope.audits.sites.request import ask_federation, name_attacks
from leakscope.core.dataset import PUBLIC, SHADOW_SHARE, TRAIN, TRAIN_SHARE, Dataset
from leakscope.core.errors import DataError

Table = dict[str, Any]
AUDIT_TRIALS = 100_000  # of the epsilon audit: they are simulated in one number each
CHOICE = 400  # rehearsals by which the strongest attack is chosen
RATE = 0.1  # of clients, where no rate is given
FEWEST_PEOPLE = 30  # private, and public, where there are enough: one person must not stand for a value


def document(
    records: Dataset,
    table: Table,
    *,
    secret: str | Sequence[str],
    user: str | None = None,
    person: str | None = None,
    site: str | None = None,
    seen: str = "uploads",
    known: Sequence[str] = (),
    train: int | None = None,
    public: int | None = None,
    most: tuple[int, int] | None = None,
    batch: int = 16,
    rounds: int = 15,
    trials: int = 2_000,
    rehearsals: int = 2_000,
    seeds: int = 1,
    model: Table | None = None,
    weights: Table | None = None,
    inside: bool = False,
    training: Table | None = None,
    defenses: Sequence[Table] = (),
    tried: Sequence[Table] = (),
    attack: Table | None = None,
    dp: Table | None = None,
    trust: Sequence[str] = (),
    name: str = "Audit",
) -> Table:
    """The plan of an audit, ready for TOML: attribute inference if the secret is an input, property
    and distributional inference with it taken out, user inference if a column says who is who.

    Each again under every one of ``defenses``, and the first under those to be ``tried``, against an
    adversary who knows it. Every game is played by the strongest of several attacks, or by the ``attack``
    that is named. ``weights`` are those of the ``model``;
    one that has the secret ``inside`` its inputs plays no game without it. ``dp``, a DPSGD table, adds the
    audit of one attribute's epsilon. With a ``user`` or a ``person`` all records are split by person.
    ``train`` and ``public`` count records; without them as many are used as `Dataset.split` says, or up to
    ``most``. Who was trained on is asked of a federation, of which every ``site`` is a client where a column
    names them; not of a model that is trained already."""
    secrets = [secret] if isinstance(secret, str) else list(secret)
    people = user or person
    table = {**table, "by": people} if people else table
    width, model = 3 if records.columns else 10, model or _model(records)
    sizes = _sizes(records, people, train=train, public=public, most=most)
    cells: list[Table] = []
    for one in secrets:
        records.secret(one)
        first = one == secrets[0]
        own = _cells(
            records, table, secret=one, user=user if first else None, known=known, batch=batch, inside=inside
        )
        own = [*_defended(own, defenses), *(_defended(own[:1], tried)[1:] if first else ())]
        ordered = one in records.ordered
        own = [cell | {"attack": attack or attacks_on(cell, width=width, ordered=ordered)} for cell in own]
        own = [cell | {"weights": weights} for cell in own] if weights else own
        own += _audit_cells(records, one, dp) if dp is not None else []
        own = [cell if "user" in cell["game"] else cell | sizes for cell in own]
        several = len(secrets) > 1
        cells += [cell | {"id": f"{cell['id']}, {one}"} if several else cell for cell in own]
    asked = ask_records() | sizes | ({"weights": weights} if weights else {})
    cells.append(asked)
    if not weights:
        rate = (training or {}).get("rate", RATE)
        federated = ask_federation(
            records, secrets=secrets, person=people, site=site, seen=seen, rate=rate, rounds=rounds
        )
        cells += [
            name_attacks(cell, records, model, trust, rounds) for cell in _defended(federated, defenses)
        ]
    defaults: Table = {
        "data": table,
        "model": model,
        "rounds": rounds,
        "trials": trials,
        "rehearsals": rehearsals,
    }
    if training:
        defaults["training"] = training
    return {"name": name, "seeds": list(range(seeds)), "defaults": defaults, "cell": cells}


def _defended(cells: Sequence[Table], defenses: Sequence[Table]) -> list[Table]:
    """The cells, and each again under every defense."""
    under = [
        cell | {"id": f"{cell['id']}, {defense['name']}", "defense": defense}
        for defense in defenses
        for cell in cells
    ]
    return [*cells, *under]


def attacks_on(cell: Table, *, width: int, ordered: bool = False) -> Table:
    """The attacks among which the strongest plays a cell: ours in closed form, and the papers'; ``ordered``:
    the secret's values are ranges of a number."""
    game = cell["game"]
    pooled = {"name": "MaxPool", "width": width}
    ordinal = {"ordinal": True} if "column" in game or ordered else {}
    attacks: list[Table] = [
        {"name": "Joint"} | ordinal,
        {"name": "Posterior", "reduce": pooled} | ordinal,
    ]
    if "defense" in cell:
        attacks.append({"name": "NoiseAware"} | ordinal)
    if "user" in game:
        components = {"name": "PCA", "components": 60}
        smooth = {"name": "PLDA", "ridge": 0.1, "reduce": components}
        attacks = [smooth, {"name": "PLDA"}] if "defense" in cell else [{"name": "PLDA"}, smooth]
        attacks.append({"name": "Prototype"})
    return {"name": "Strongest", "by": "loss", "rehearsals": CHOICE, "attacks": attacks}


def _cells(
    records: Dataset,
    table: Table,
    *,
    secret: str,
    user: str | None,
    known: Sequence[str],
    batch: int,
    inside: bool,
) -> list[Table]:
    cells: list[Table] = []
    inference: Table = {"name": "Inference", "secret": secret, "batch": batch}
    if known:
        inference["known"] = list(known)
    outside = dict(table)
    if records.has(secret):
        cells.append({"id": "attribute", "game": inference})
    if records.has(secret) and not inside:
        outside["without"] = [*table.get("without", ()), secret]
    if not inside:
        cells.append({"id": "property", "game": inference, "data": outside})
    cells.append(
        {
            "id": "distribution",
            "data": outside,
            "game": {"name": "Distribution", "column": secret, "batch": 8 * batch},
        }
    )
    if user:
        cells.append(_user_cell(records, user, batch=max(batch // 2, 1)))
    return cells


def _audit_cells(records: Dataset, secret: str, dp: Table) -> list[Table]:
    if not records.has(secret):
        raise DataError(
            f"{records.name}: the audit of an attribute changes it inside a record, and {secret!r} is not "
            f"among the inputs; choose a secret that is."
        )
    settings = {key: value for key, value in dp.items() if key != "delta"}
    game = {"name": "AttributeAudit", "attribute": secret, "delta": dp.get("delta", 1e-5)}
    return [
        {
            "id": f"epsilon, {'crafted' if crafted else 'sampled'} record",
            "game": game | {"crafted": crafted},
            "defense": settings,
            "model": {"name": "MLP", "hidden": [100]},
            "rounds": 1,
            "trials": AUDIT_TRIALS,
        }
        for crafted in (True, False)
    ]


def _model(records: Dataset) -> Table:
    if not records.x.is_floating_point():
        return {"name": "TextClf"}
    if records.x.dim() == 4 and min(records.x.shape[2:]) >= 9:
        return {"name": "CNN"}
    wide = records.x[0].numel() > 500
    return {"name": "MLP", "hidden": [64, 64] if wide else [32, 16]}


def _sizes(
    records: Dataset,
    people: str | None,
    *,
    train: int | None,
    public: int | None,
    most: tuple[int, int] | None,
) -> Table:
    """How many records, or people, are private and how many public, where `Dataset.split` is not left to say
    it. Of people: as many as have so many records, within the same shares, and `FEWEST_PEOPLE` of each where
    there are so many."""
    wanted = most or (TRAIN, PUBLIC)
    if people:
        number = len(records.secret(people).unique())
        shadow = number * (public or wanted[1]) / len(records)
        shadow = round(min(max(shadow, FEWEST_PEOPLE), SHADOW_SHARE * number))
        private = number * (train or wanted[0]) / len(records)
        private = int(min(max(private, FEWEST_PEOPLE), TRAIN_SHARE * (number - shadow)))
        return {"train": max(private, 2), "public": max(shadow, 2)}
    sizes: Table = {"train": train, "public": public}
    if most:
        sizes["public"] = public or min(wanted[1], int(SHADOW_SHARE * len(records)))
        sizes["train"] = train or min(wanted[0], int(TRAIN_SHARE * (len(records) - sizes["public"])))
        sizes["train"] = max(sizes["train"], 2)  # of too many public records the split says so
    return {key: value for key, value in sizes.items() if value is not None}


def _user_cell(records: Dataset, user: str, *, batch: int) -> Table:
    """User inference with the largest batch, up to ``batch``, that half of the people can give twice."""
    counts = records.secret(user).unique(return_counts=True)[1]
    batch = min(batch, int(counts.median()) // 2)
    if batch < 1:
        raise DataError(
            f"{records.name}: most values of {user!r} have one record; user inference needs at least 2 each."
        )
    return {"id": "user", "game": {"name": "UserInference", "user": user, "batch": batch}}
