"""Reading a recording: every layer checked against the index when it is asked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from leakscope.core.errors import DataError, require
from leakscope.core.nouns import Params
from leakscope.training.recording.index import (
    SUM,
    VERSION,
    Client,
    Shapes,
    damaged,
    digest_of,
    listed,
    loaded,
    own,
    rename_layer,
    sha256,
    shape_words,
    shapes_of,
    span,
    stored_shapes,
)


class NotFinite(DataError):
    """A file holds values that are not finite: it is what was uploaded, and cannot be audited."""


@dataclass(frozen=True)
class Recording:
    """What a federation recorded, as it was when it was opened; open it again to see more.

    Layers are read when they are asked for, one file at a time, each checked against the index, and
    given in float32; ``only`` names the ones to read. A layer that an upload leaves out is the global model's
    of its round; one that a global model leaves out is that of the last one before that has it.
    """

    path: Path
    _index: dict[str, Any] = field(init=False, repr=False, compare=False)
    _every: dict[str, Any] = field(init=False, repr=False, compare=False)  # rounds, those not chosen too
    _names: dict[str, str] = field(init=False, repr=False, compare=False)  # of renamed layers, as stored
    _array: str = field(init=False, repr=False, compare=False, default="")  # whose values pass for updates

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        object.__setattr__(self, "_index", loaded(self.path))
        object.__setattr__(self, "_every", self._index["rounds"])
        object.__setattr__(self, "_names", {})

    def choose(
        self,
        rounds: Iterable[int] = (),
        *,
        without: Collection[tuple[int, str | None]] = (),
        rename: Mapping[str, str] | None = None,
        delta: bool = False,
        array: str = "",
    ) -> Recording:
        """The same with these ``rounds`` only (all, if none are named), and ``without`` some clients' updates
        or, where no client is named, whole rounds. ``rename`` gives layers the model's names, see
        `rename_layer`. ``delta``: what was recorded as uploads are their differences to the global model.
        ``array``: an update is what clients uploaded under this name, as it came, in place of Γ."""
        wanted = {str(r) for r in rounds}
        if absent := sorted(wanted - {*self._index["rounds"]}, key=int):
            raise DataError(
                f"{str(self.path)!r} has no round {listed(absent)}; it has: {listed(self.rounds) or 'none'}."
            )
        kept = {}
        for r, entry in self._index["rounds"].items():
            if (wanted and r not in wanted) or (int(r), None) in without:
                continue
            updates = {c: e for c, e in entry["updates"].items() if (int(r), c) not in without}
            kept[r] = {**entry, "updates": updates}
            if (int(r), SUM) in without:
                del kept[r]["sum"]
            for c, e in updates.items() if delta else ():
                updates[c] = {**e, "delta": True}
        model, names = dict(self._index["model"]), dict(self._names)
        if rename:
            new = {name: rename_layer(name, rename) for name in (*self.layers, *self.buffers)}
            if len({*new.values()}) < len(new) or all(a == b for a, b in new.items()):
                raise DataError(
                    f"rename must give layers of the recording new names, each its own; the layers are "
                    f"{listed(self.layers)}, and it would give {listed(new.values())}."
                )
            names = {new[name]: self._names.get(name, name) for name in new}
            parts = {part: model[part] for part in ("layers", "buffers") if part in model}
            model |= {part: [[new[name], shape] for name, shape in had] for part, had in parts.items()}
        chosen = copy(self)
        object.__setattr__(chosen, "_array", array or self._array)
        object.__setattr__(chosen, "_index", {**self._index, "rounds": kept, "model": model})
        object.__setattr__(chosen, "_names", names)
        return chosen

    @property
    def model_name(self) -> str:
        return str(self._index["model"]["name"])

    def declared(self, what: str) -> str | None:
        """What the writer said of its clients' "loss" or "preprocessing", if it did."""
        word = self._index["model"].get(what)
        return None if word is None else str(word)

    @property
    def layers(self) -> Shapes:
        """The shape of every layer, in model order."""
        return {name: tuple(shape) for name, shape in self._index["model"]["layers"]}

    @property
    def buffers(self) -> tuple[str, ...]:
        """The names of what the model holds beside its parameters, such as batch statistics."""
        return tuple(name for name, _ in self._index["model"].get("buffers", []))

    @property
    def arrays(self) -> dict[str, Shapes]:
        """What clients uploaded beside their parameters, such as control variates, by name."""
        every = self._index["model"].get("further", {})
        return {array: {name: tuple(shape) for name, shape in part} for array, part in every.items()}

    @property
    def gradients(self) -> list[str]:
        """Of these, the ones shaped as the layers are, so that attacks can read them as updates."""
        return [a for a, part in self.arrays.items() if part.items() <= self.layers.items()]

    @property
    def clients(self) -> tuple[str, ...]:
        """Everyone who was announced or uploaded, in that order."""
        return tuple(self._index["clients"])

    @property
    def uploaders(self) -> set[str]:
        """Everyone who uploaded in any round, of those that are not chosen too."""
        every = self._every.values()
        return {c for entry in every for c in (*entry["updates"], *entry.get("sum", {}).get("clients", ()))}

    @property
    def differences(self) -> bool:
        """Whether uploads are said to be differences to the global model."""
        every = self._index["rounds"].values()
        return any(update.get("delta") for entry in every for update in entry["updates"].values())

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds whose global model is recorded; the last may still be growing."""
        return tuple(sorted(int(r) for r in self._index["rounds"]))

    def clients_in(self, r: int) -> tuple[str, ...]:
        """Who uploaded in round ``r``, in order of arrival, or is behind the sum that is recorded."""
        entry = self._entry(r)
        return tuple(entry["sum"]["clients"] if "sum" in entry else entry["updates"])

    def parts_in(self, r: int) -> tuple[str, ...]:
        """Whose updates are on disk: the clients', or only the sum of all (`SUM`)."""
        return (SUM,) if "sum" in self._entry(r) else self.clients_in(r)

    def samples(self, r: int, client: Client) -> int:
        return int(self._entry(r, client)["samples"])

    def rate(self, r: int, client: Client) -> float | None:
        """The client's learning rate, if the writer knew it."""
        rate = self._entry(r, client)["rate"]
        return None if rate is None else float(rate)

    def steps(self, r: int, client: Client) -> int | None:
        """The client's local steps, if the writer knew them."""
        steps = self._entry(r, client)["steps"]
        return None if steps is None else int(steps)

    def global_model(self, r: int, *, only: Iterable[str] | None = None) -> Params:
        """The parameters the server sent out in round ``r``."""
        return {name: tensor.float() for name, tensor in self._read(r, None, only)}

    def uploaded(self, r: int, client: Client, *, only: Iterable[str] | None = None) -> Params:
        """The parameters the client uploaded in round ``r``."""
        return {name: tensor.float() for name, tensor in self._read(r, client, only)}

    def update(self, r: int, client: Client, *, only: Iterable[str] | None = None) -> Params:
        """Γ = global − uploaded, which points along the gradient; subtracted in float64 and rounded
        once, so that for float32 files it is the float32 difference itself."""
        return self.aggregate(r, (client,), only=only)

    def statistics(self, r: int) -> Params:
        """The buffers that the server sent out in round ``r``, or last before it; those that are recorded."""
        found = {name: self._earlier(r, name, missing=None) for name in self.buffers}
        return {name: tensor.float() for name, tensor in found.items() if tensor is not None}

    def initial(self) -> Params | None:
        """The model that the federation began with, and its statistics, whichever rounds are chosen; rounds
        are counted from 0 or, as in Flower, from 1. None where the first is not recorded, or not finite."""
        first = min(map(int, self._every), default=2)
        if first > 1:
            return None
        try:
            model = {name: self._earlier(first, name).float() for name in self.layers}
        except NotFinite:
            return None
        return {**model, **self.statistics(first)}

    @cached_property
    def still(self) -> bool:
        """Whether clients leave the statistics as they are, as in evaluation mode: those of the first upload
        are the global model's. False where no upload has any."""
        first = next(((r, parts[0]) for r in self.rounds if (parts := self.parts_in(r))), None)
        if first is None:
            return False
        with self._open(self._entry(*first)) as read:
            own = {name: read(self._names.get(name, name)) for name in self.buffers}
        sent = {name: self._earlier(first[0], name, missing=None) for name in own}
        kept = [(value, sent[name]) for name, value in own.items() if value is not None]
        return bool(kept) and all(after is not None and torch.equal(value, after) for value, after in kept)

    def further(self, r: int, client: Client, array: str) -> Params:
        """What the client uploaded in round ``r`` beside its parameters, as it came; a layer that is not in
        it is zero."""
        require(array in self.arrays, "array", f"one of {listed(self.arrays) or 'none'}", array)
        found: dict[str, Tensor] = {}
        with self._open(self._entry(r, client)) as read:
            for name, shape in self.layers.items():
                tensor = read(f"{array}/{self._names.get(name, name)}")
                found[name] = torch.zeros(shape) if tensor is None else tensor.float()
        return found

    def aggregate(
        self,
        r: int,
        clients: Iterable[Client] | None = None,
        *,
        weighted: bool = True,
        only: Iterable[str] | None = None,
    ) -> Params:
        """The mean update of ``clients`` (the round's, if None), weighted by their samples: all that a
        server sees of them under secure aggregation. Of one client it is that client's update."""
        require(not isinstance(clients, str), "aggregate.clients", "a collection of names", clients)
        names = self.parts_in(r) if clients is None else tuple(str(client) for client in clients)
        require(len(set(names)) == len(names), "aggregate.clients", "different clients", names)
        if not names:
            raise DataError(f"{str(self.path)!r}: no update to aggregate in round {r}; choose another round.")
        weights = {client: self.samples(r, client) if weighted else 1 for client in names}
        only = None if only is None else tuple(only)
        mean: dict[str, Tensor] = {}
        for client, weight in weights.items():
            for name, tensor in self._read(r, client, only) if not self._array else self._beside(r, client):
                term = tensor.double() * (weight / sum(weights.values()))
                mean[name] = mean[name].add_(term) if name in mean else term
        if self._array:
            return {name: tensor.float() for name, tensor in mean.items() if only is None or name in only}
        return {name: (tensor.double() - mean[name]).float() for name, tensor in self._read(r, None, only)}

    def check(self, model: nn.Module) -> None:
        """Raise `DataError` at the first layer that is not in both, or not of the same shape."""
        ours, theirs = self.layers, shapes_of(model)
        for name in [*theirs, *ours]:
            if ours.get(name) != theirs.get(name):
                raise DataError(
                    f"{str(self.path)!r} does not fit the model: layer {name!r} is "
                    f"{shape_words(ours.get(name))} in the recording and {shape_words(theirs.get(name))} in "
                    f"the model; "
                    f"give the model that was trained, {self.model_name!r}."
                )

    def complete(self) -> None:
        """Raise `DataError` if a round between the first and the last is missing, if one has no update
        (the last may be the final model), or if any file is missing, damaged or not finite."""
        rounds, gaps = self.rounds, self._gaps()
        empty = [r for r in rounds[: max(1, len(rounds) - 1)] if not self.clients_in(r)]
        if gaps or empty or not rounds:
            why = f"round {listed(gaps)} is missing" if gaps else f"round {listed(empty)} has no update"
            raise DataError(
                f"{str(self.path)!r} is incomplete: {why if rounds else 'it has no round yet'}; wait for the "
                f"federation, or restore what is missing."
            )
        for r in rounds:
            for client in (None, *self.parts_in(r)):
                for _ in self._read(r, client, None):
                    pass

    def describe(self) -> str:
        layers, rounds, model = self.layers, self.rounds, self._index["model"]
        updates = [self._entry(r, part) for r in rounds for part in self.parts_in(r)]
        lines = [
            f"Recording {str(self.path)!r}, format version {VERSION}, written by {self._index['writer']}.",
            f"Model {self.model_name!r}, hash {model['hash'][:12]}: "
            f"{sum(map(math.prod, layers.values())):,} parameters. Layers: {len(layers)}: "
            f"{listed(f'{name} {shape_words(shape)}' for name, shape in layers.items())}.",
            f"Clients: {len(self.clients)}: {listed(self.clients) or 'none yet'}.",
            f"Rounds: {len(rounds)}: {span(rounds)}; updates in each: "
            f"{span([len(self.clients_in(r)) for r in rounds])}.",
            f"Samples per update: {span([update['samples'] for update in updates])}. "
            f"Learning rate: {span([update['rate'] for update in updates])}. "
            f"Local steps: {span([update['steps'] for update in updates])}.",
        ]
        taking = Counter(client for r in rounds for client in self.clients_in(r))
        if len({taking[client] for client in self.clients}) > 1:
            each = [f"{client} in {taking[client]}" for client in self.clients]
            lines.append(f"Took part, in so many rounds: {listed(each)}.")
        if self.buffers:
            lines.append(f"Buffers: {len(self.buffers)}: {listed(self.buffers)}.")
        if self.arrays:
            lines.append(f"Arrays beside the parameters: {listed(self.arrays)}.")
        return "\n".join([*lines, *self.describe_gaps()])

    def describe_gaps(self) -> Iterator[str]:
        """The rounds that are not there, and those of which no upload is."""
        if gaps := self._gaps():
            yield f"Missing rounds: {listed(gaps)}."
        if empty := [r for r in self.rounds[:-1] if not self.clients_in(r)]:
            yield f"Rounds without an upload: {listed(empty)}."

    def _beside(self, r: int, client: Client) -> Iterator[tuple[str, Tensor]]:
        yield from self.further(r, client, self._array).items()

    def _gaps(self) -> list[int]:
        return sorted({*range(min(self.rounds, default=0), max(self.rounds, default=0))} - {*self.rounds})

    def _entry(self, r: int, client: Client | None = None) -> dict[str, Any]:
        """What the index says of a round's global model, or of a client's update in it."""
        rounds = self._index["rounds"]
        held, key, what = rounds, str(r), f"round {r}"
        if client == SUM and key in rounds:
            held, key, what = rounds[key], "sum", f"sum in {what}"
        elif client is not None and key in rounds:
            what = f"update of client {str(client)!r} in {what}"
            held, key = rounds[key]["updates"], str(client)
        if key not in held:
            raise DataError(f"{str(self.path)!r} has no {what}; it has: {listed(held) or 'none yet'}.")
        return dict(held[key])

    def _read(
        self, r: int, client: Client | None, only: Iterable[str] | None
    ) -> Iterator[tuple[str, Tensor]]:
        """The wanted layers of one file, each checked, in model order and as they were stored."""
        entry, layers = self._entry(r, client), self.layers
        wanted = set(layers if only is None else only)
        require(wanted <= set(layers), "only", f"layers of the recording ({listed(layers)})", only)
        with self._open(entry) as read:
            for name in [name for name in layers if name in wanted]:
                tensor = read(self._names.get(name, name))
                if tensor is None:
                    tensor = self._earlier(r, name)
                elif entry.get("delta"):
                    tensor = self._earlier(r, name).double() + tensor.double()
                yield name, tensor

    def _earlier(self, r: int, name: str, missing: str | None = "record the whole model once") -> Any:
        """A layer or buffer of the global model of round ``r``, or of the last one before that has it."""
        for earlier in sorted((int(key) for key in self._every if int(key) <= r), reverse=True):
            with self._open(self._every[str(earlier)]) as read:
                if (tensor := read(self._names.get(name, name))) is not None:
                    return tensor
        if missing is None:
            return None
        raise DataError(
            f"{str(self.path)!r} has layer {name!r} in no global model up to round {r}; {missing}, in the "
            f"first round."
        )

    @contextmanager
    def _open(self, entry: Mapping[str, Any]) -> Iterator[Callable[[str], Tensor | None]]:
        """What reads a tensor of a file by its stored name, checked, or says None where it is left out."""
        file, known = self.path / entry["file"], stored_shapes(self._index["model"]).items()
        shapes = {self._names.get(name, name): shape for name, shape in known}
        try:
            with safe_open(own(file), "pt") as stored:
                keys, said = {*stored.keys()}, (stored.metadata() or {}).get("sha256", "")
                digests = dict(zip([name for name in shapes if name in keys], said.split(), strict=False))
                if sha256(said) != entry["digest"] or not digests or not keys == {*digests}:
                    raise damaged(file, "it is not the file that the index describes")

                def read(name: str) -> Tensor | None:
                    if name not in digests:
                        return None
                    tensor: Tensor = stored.get_tensor(name).clone()  # no map of a file that may yet change
                    if (shape := tuple(tensor.shape)) != shapes[name]:
                        words = f"{shape_words(shape)} where the index says {shape_words(shapes[name])}"
                        raise damaged(file, f"layer {name!r} is {words}")
                    if digest_of(name, tensor) != digests[name]:
                        raise damaged(file, f"layer {name!r} is not what was written")
                    if not tensor.float().isfinite().all():
                        raise NotFinite(
                            f"{str(file)!r}: layer {name!r} has values that are not finite in float32; leave "
                            f"this client or this round out."
                        )
                    return tensor

                yield read
        except FileNotFoundError:
            raise damaged(file, "it is missing") from None
        except (OSError, SafetensorError) as error:
            raise damaged(file, f"it is not a complete safetensors file ({error})") from None
