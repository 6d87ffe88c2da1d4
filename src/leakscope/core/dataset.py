"""Records: a table, images, texts or features, the task's label, and what is private about each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from leakscope.core.columns import FEW as FEW
from leakscope.core.columns import Column as Column
from leakscope.core.columns import Fate, arrange, learn
from leakscope.core.errors import DataError
from leakscope.core.task import Classes, Quantity, Task, is_number

TRAIN, PUBLIC = 5_000, 1_000  # paper 000, section 5.1.4
SHADOW_SHARE = 0.4  # of all records that may become public by default
TRAIN_SHARE = 0.7  # of what is not public that becomes private by default
STRATA = 4  # quantile ranges of a numeric label, where records of every label are wanted


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records, the task's label, and what is private about each.

    ``x`` (n, ...) float, or int64 where it numbers the words of texts, ``y`` (n,) labels: integers are
    classes, floats are numbers to come near to. ``private`` column -> (n,) integer codes. ``columns`` says
    where a table's columns stand in ``x`` and names the words of texts (empty for images and features);
    ``values`` names the codes of the label and of the private columns, for people to read. ``scaling`` tells
    records that were standardised by others apart. ``fates`` says what became of every column of the table
    that the records come from. ``unit`` are the mean and the deviation that a numeric label was standardised
    by, ``ordered`` the private columns whose codes are ranges of a number, and ``numbers`` (n,) those of them
    that were taken out of ``x``, as they were there.
    """

    x: Tensor
    y: Tensor
    private: Mapping[str, Tensor]
    name: str = "data"
    columns: tuple[Column, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    label: str = "label"
    raw: bool = False  # never standardised: whoever prepared the records has scaled them
    scaling: str = ""  # the fingerprint of what the records were standardised by, if they were
    fates: tuple[Fate, ...] = ()
    unit: tuple[float, float] = (0.0, 1.0)
    ordered: frozenset[str] = frozenset()
    numbers: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, column in {self.label: self.y, **self.private, **self.numbers}.items():
            if len(column) != len(self.x):
                raise DataError(
                    f"{self.name}: column {name!r} has {len(column)} rows where x has {len(self.x)}."
                )

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        shape = " x ".join(str(size) for size in self.x.shape[1:])
        task = f"{self.label}, {self.task}"
        secrets = ", ".join(self.private) or "none"
        head = f"{self.name}: {len(self):,} records of {shape} inputs"
        return "\n".join([head, f"task: {task}", f"private columns: {secrets}", *list_fates(self.fates)])

    @property
    def digest(self) -> str:
        """Equal for the same records, whatever file they came from. It can be guessed: what is stored is
        `fingerprints.keyed` of it."""
        found = hashlib.sha256()
        for tensor in (self.x, self.y, *self.private.values()):
            found.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
            found.update(tensor.contiguous().numpy().data)
        return found.hexdigest()[:16]

    @property
    def hashes(self) -> list[str]:
        flat = self.x.flatten(1).numpy()
        pairs = zip(flat, self.y.numpy(), strict=True)
        return [hashlib.sha256(row.tobytes() + label.tobytes()).hexdigest()[:16] for row, label in pairs]

    @property
    def task(self) -> Task:
        """What is learned: a class, or a number."""
        return Quantity(*self.unit) if is_number(self.y) else Classes(self.classes)

    @property
    def classes(self) -> int:
        """How many labels the task has: the named ones, or the largest code plus one."""
        return self.classes_for("what was asked")

    def classes_for(self, who: str) -> int:
        """The same, or the refusal of ``who`` needs classes where the label is a number."""
        if is_number(self.y):
            raise DataError(
                f"{self.name}: {who} needs a label of classes, and {self.label!r} is a number; choose "
                f"another, or cut the label into ranges (bins)."
            )
        return len(self.values.get(self.label, ())) or int(self.y.max()) + 1

    @property
    def strata(self) -> Tensor:
        """The labels (n,) as groups: classes, or of a number the quarter that it lies in."""
        if not is_number(self.y):
            return self.y
        shares = torch.arange(1, STRATA, dtype=torch.float64) / STRATA
        return torch.bucketize(self.y, self.y.double().quantile(shares).unique().to(self.y), right=True)

    def secret(self, name: str) -> Tensor:
        if name not in self.private:
            raise DataError(
                f"{self.name} has no private column {name!r}; it has: {', '.join(self.private) or 'none'}."
            )
        return self.private[name]

    def value_names(self, name: str) -> tuple[str, ...]:
        """The words for a private column's codes."""
        named = self.values.get(name, ())
        count = max(int(self.secret(name).max()) + 1, len(named))
        return tuple(named[i] if i < len(named) else str(i) for i in range(count))

    def told_names(self, name: str, *others: Dataset) -> tuple[str, ...]:
        """The words for a private column's codes as results tell them: a value that fewer than `FEW` of these
        and the ``others`` records have is not named."""
        names = self.value_names(name)
        counts = sum(torch.bincount(part.secret(name), minlength=len(names)) for part in (self, *others))
        rare = (torch.as_tensor(counts) < FEW).long()
        places = (rare.cumsum(0) * rare).tolist()
        return tuple(f"rare value {i}" if i else name for i, name in zip(places, names, strict=True))

    def positions(self, *names: str) -> Tensor:
        """The positions in ``x`` of the named columns; ``"*"`` stands for all of them."""
        known = {column.name: column for column in self.columns}
        wanted = list(known) if "*" in names else names
        for name in wanted:
            if name not in known:
                raise DataError(
                    f"{self.name} has no column {name!r} in x; it has: {', '.join(known) or 'none'}."
                )
        spans = [torch.arange(known[name].start, known[name].stop) for name in wanted]
        return torch.cat(spans) if spans else torch.arange(0)

    def has(self, name: str) -> bool:
        """Whether a column stands inside ``x`` (an attribute) or only beside it (a property)."""
        return any(column.name == name for column in self.columns)

    def take(self, rows: Tensor) -> Dataset:
        private = {name: codes[rows] for name, codes in self.private.items()}
        numbers = {name: values[rows] for name, values in self.numbers.items()}
        return replace(self, x=self.x[rows], y=self.y[rows], private=private, numbers=numbers)

    def distinct(self) -> Dataset:
        """The records without repetitions, the first of equal ones kept."""
        first = {key: i for i, key in reversed(list(enumerate(self.hashes)))}
        return self.take(torch.tensor(sorted(first.values()), dtype=torch.long))

    def frequent(self, column: str, least: int) -> Dataset:
        """The records whose value of a private column has at least so many records."""
        codes = self.secret(column)
        counts = torch.bincount(codes)
        return self.take((counts[codes] >= least).nonzero()[:, 0])

    def without(self, *names: str) -> Dataset:
        """The same records with these columns taken out of ``x``; as private columns they stay, and so do the
        numbers of those that are ranges."""
        gone = {int(i) for i in self.positions(*names)}
        kept = [i for i in range(self.x.shape[1]) if i not in gone]
        if not kept:
            raise DataError(f"{self.name}: taking out {', '.join(names)} leaves no column in x.")
        columns, start = [], 0
        for column in self.columns:
            if column.name not in names:
                width = column.stop - column.start
                columns.append(replace(column, start=start, stop=start + width))
                start += width
        gone_numbers = {
            one.name: self.x[:, one.start]
            for one in self.columns
            if one.name in names and one.name in self.ordered and not one.values
        }
        numbers = {**self.numbers, **gone_numbers}
        return replace(self, x=self.x[:, kept], columns=tuple(columns), numbers=numbers)

    def completed(self, by: Dataset) -> Dataset:
        """These records with the medians and the frequent codes of others, where they need any."""
        if all(column.learned for column in self.columns):
            return self
        columns = learn(by.columns, by.x)
        widths = {column.name: column.stop - column.start for column in columns}
        fates = tuple(replace(fate, inputs=widths.get(fate.column, fate.inputs)) for fate in self.fates)
        return replace(self, x=arrange(self.x, self.columns, columns), columns=columns, fates=fates)

    def standardised(self, by: Dataset) -> Dataset:
        """These records scaled by the mean and standard deviation of others, a numeric label likewise,
        dummies and words left alone."""
        if not self.x.is_floating_point():  # the numbers of words have no scale
            return self.in_units(by)
        if not all(column.learned for column in self.columns):
            return self.completed(by).standardised(by.completed(by))
        if self.raw:
            return self
        return self.scaled(*statistics(by)).in_units(by)

    def scaled(self, shift: Tensor, scale: Tensor) -> Dataset:
        """These records less ``shift``, over ``scale``."""
        numbers = torch.cat([shift.flatten(), scale.flatten()]).numpy()
        known = hashlib.sha256(self.scaling.encode() + numbers.tobytes()).hexdigest()[:16]
        return replace(self, x=(self.x - shift).div_(scale), scaling=known)  # one copy of the records

    def in_units(self, of: Dataset) -> Dataset:
        """The same records, a numeric label standardised by the mean and deviation that others have."""
        if not is_number(self.y):
            return self
        y, (mean, deviation) = of.y.double(), self.unit
        shift, scale = float(y.mean()), float(y.std(correction=0)) or 1.0
        known = (mean + deviation * shift, deviation * scale)
        return replace(self, y=((self.y.double() - shift) / scale).to(self.y), unit=known)

    def split(
        self,
        rng: torch.Generator,
        *,
        secret: str | None = None,
        by: str | None = None,
        train: int | None = None,
        public: int | None = None,
        standardise: bool = True,
    ) -> tuple[Dataset, Dataset, Dataset]:
        """Private training, test and public records, disjoint, scaled by training statistics.

        Public and other records have each value of ``secret`` as often as all records do: it is the
        adversary's rehearsals that draw values at equal odds. With ``by="speaker"`` people are split, not
        records, and ``train`` and ``public`` count people. Sizes left out are the paper's (5,000 and 1,000
        records), or what a smaller table allows.
        """
        rows = (
            _rows_by_person(self, by, rng, train=train, public=public)
            if by is not None
            else _rows_by_record(self, secret, rng, train=train, public=public)
        )
        parts = [self.take(part) for part in rows]
        for part, role in zip(parts, ("training", "test", "public"), strict=True):
            if len(part.y.unique()) < 2:
                raise DataError(
                    f"{self.name}: the {role} split of {len(part)} records has a single value of "
                    f"label {self.label!r}; give more records or another label.",
                    public=f"the {role} split has a single value of label {self.label!r}; give more records "
                    f"or another label.",
                )
        parts = [part.completed(parts[0]) for part in parts]
        own = parts[0]
        parts = [part.standardised(own) if standardise else part.in_units(own) for part in parts]
        return parts[0], parts[1], parts[2]


@dataclass(frozen=True, eq=False)
class Batch:
    """Batches drawn from ``data``: ``rows`` (trials, k) are indices, so that whatever is
    computed per record is computed once, however often a record is drawn."""

    data: Dataset
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"{len(self):,} batches of {self.rows.shape[-1]} records of {self.data.name}"


def list_fates(fates: Sequence[Fate]) -> list[str]:
    """A line for every column: what became of it, and why."""
    width = max((len(fate.column) for fate in fates), default=0)
    return [f"  {fate.column:<{width}}  {fate.kind:<9}  {fate.inputs:>4}  {fate.reason}" for fate in fates]


def joined(parts: Sequence[Dataset]) -> Dataset:
    """All records in one, under the name of the first."""
    first = parts[0]
    private = {name: torch.cat([part.private[name] for part in parts]) for name in first.private}
    numbers = {name: torch.cat([part.numbers[name] for part in parts]) for name in first.numbers}
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    return replace(first, x=x, y=y, private=private, numbers=numbers)


def _shuffled(n: int, rng: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=rng)


def _rows_by_record(
    data: Dataset, secret: str | None, rng: torch.Generator, *, train: int | None, public: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    order = _shuffled(len(data), rng)
    codes = data.secret(secret)[order] if secret else torch.zeros(len(data), dtype=torch.long)
    groups = [order[codes == code] for code in codes.unique()]
    if secret and len(groups) < 2:
        raise DataError(f"{data.name}: secret {secret!r} has one value only; there is nothing to infer.")
    wanted = public if public is not None else min(PUBLIC, int(len(data) * SHADOW_SHARE))
    counts = _shares([len(group) for group in groups], wanted)
    if not all(1 <= count < len(group) for count, group in zip(counts, groups, strict=True)):
        what = f"the rarest value of {secret!r} has" if secret else "the data has"
        raise DataError(
            f"{data.name}: you asked for {wanted} public records of {len(data)} in all, and {what} too few "
            f"for that; ask for another number of public records or merge rare values.",
            public=f"{what} too few records to be public; ask for another number of public records or merge "
            f"rare values.",
        )
    shadow = torch.cat([group[:count] for count, group in zip(counts, groups, strict=True)])
    rest = torch.cat([group[count:] for count, group in zip(counts, groups, strict=True)])
    rest = rest[_shuffled(len(rest), rng)]
    size = train if train is not None else min(TRAIN, int(len(rest) * TRAIN_SHARE))
    if not 2 <= size <= len(rest) - 2:
        raise DataError(
            f"{data.name}: you asked for {size} training records, and {len(rest)} records are not public; "
            f"the test split needs 2 of them at least: ask for fewer.",
            public="you asked for more training records than are not public; ask for fewer.",
        )
    return rest[:size], rest[size:], shadow[_shuffled(len(shadow), rng)]


def _shares(sizes: Sequence[int], some: int) -> list[int]:
    """How many of each group belong to ``some`` of all, each group by its size."""
    ends = [0, *accumulate(sizes)]
    return [end * some // ends[-1] - start * some // ends[-1] for start, end in pairwise(ends)]


def _rows_by_person(
    data: Dataset, by: str, rng: torch.Generator, *, train: int | None, public: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    people = data.secret(by).unique()
    people = people[_shuffled(len(people), rng)]
    private = train if train is not None else len(people) // 6  # 15 of CREMA-D's 91
    shadow = public if public is not None else len(people) // 3
    if private < 2 or shadow < 2 or private + shadow >= len(people):
        raise DataError(
            f"{data.name}: you asked for {private} private and {shadow} public values of {by!r}, and it has "
            f"{len(people)}; each needs at least 2, and at least 1 must remain for the test split."
        )
    parts = people[:private], people[private + shadow :], people[private : private + shadow]
    rows = [torch.isin(data.secret(by), part).nonzero()[:, 0] for part in parts]
    train_rows, test_rows, public_rows = (part[_shuffled(len(part), rng)] for part in rows)
    return train_rows, test_rows, public_rows


def statistics(train: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation to scale by: per column of a table, per channel of images."""
    x = train.x.double()
    over = (0, *range(2, x.dim()))
    return scaling_from(train, x.mean(over, keepdim=True), x.std(over, correction=0, keepdim=True))


def scaling_from(like: Dataset, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """What records like these are shifted and divided by where the mean and deviation of every column, or
    channel, are known: nothing happens to dummies, marks of missing numbers and columns that never change."""
    scaled = torch.ones(mean.shape[1], dtype=torch.bool)
    for column in like.columns:
        scaled[column.start : column.stop] = column.standardised
        if column.fill is not None:
            scaled[column.stop - 1] = False  # the mark of a missing number
    scaled = scaled.view(mean.shape)
    mean = torch.where(scaled, mean, 0.0)
    std = torch.where(scaled & (std > 1e-12), std, 1.0)
    return mean.to(like.x.dtype), std.to(like.x.dtype)
