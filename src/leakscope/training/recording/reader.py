"""Reading a recording: every layer checked against the index when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from leakscope.core.errors import DataError, require
from leakscope.core.nouns import Params
from leakscope.training.recording.index import (
    VERSION,
    Client,
    Shapes,
    damaged,
    digest_of,
    listed,
    loaded,
    own,
    sha256,
    shape_words,
    shapes_of,
    span,
)


@dataclass(frozen=True)
class Recording:
    """What a federation recorded, as it was when it was opened; open it again to see more.

    Layers are read when they are asked for, one file at a time, each checked against the index, and
    given in float32; ``only`` names the ones to read.
    """

    path: Path
    _index: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        object.__setattr__(self, "_index", loaded(self.path))

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
    def clients(self) -> tuple[str, ...]:
        """Everyone who was announced or uploaded, in that order."""
        return tuple(self._index["clients"])

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds whose global model is recorded; the last may still be growing."""
        return tuple(sorted(int(r) for r in self._index["rounds"]))

    def clients_in(self, r: int) -> tuple[str, ...]:
        """Who uploaded in round ``r``, in order of arrival."""
        return tuple(self._entry(r)["updates"])

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
        names = self.clients_in(r) if clients is None else tuple(str(client) for client in clients)
        require(len(set(names)) == len(names), "aggregate.clients", "different clients", names)
        if not names:
            raise DataError(f"{str(self.path)!r}: no update to aggregate in round {r}; choose another round.")
        weights = {client: self.samples(r, client) if weighted else 1 for client in names}
        only = None if only is None else tuple(only)
        mean: dict[str, Tensor] = {}
        for client, weight in weights.items():
            for name, tensor in self._read(r, client, only):
                term = tensor.double() * (weight / sum(weights.values()))
                mean[name] = mean[name].add_(term) if name in mean else term
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
            for client in (None, *self.clients_in(r)):
                for _ in self._read(r, client, None):
                    pass

    def describe(self) -> str:
        layers, rounds, model = self.layers, self.rounds, self._index["model"]
        updates = [self._entry(r, client) for r in rounds for client in self.clients_in(r)]
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
        return "\n".join([*lines, f"Missing rounds: {listed(self._gaps())}."] if self._gaps() else lines)

    def _gaps(self) -> list[int]:
        return sorted({*range(min(self.rounds, default=0), max(self.rounds, default=0))} - {*self.rounds})

    def _entry(self, r: int, client: Client | None = None) -> dict[str, Any]:
        """What the index says of a round's global model, or of a client's update in it."""
        rounds = self._index["rounds"]
        held, key, what = rounds, str(r), f"round {r}"
        if client is not None and key in rounds:
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
        file, wanted = self.path / entry["file"], set(layers if only is None else only)
        require(wanted <= set(layers), "only", f"layers of the recording ({listed(layers)})", only)
        try:
            with safe_open(own(file), "pt") as stored:
                said = (stored.metadata() or {}).get("sha256", "")
                digests = dict(zip(layers, said.split(), strict=False))
                if sha256(said) != entry["digest"] or not {*stored.keys()} == {*layers} == {*digests}:
                    raise damaged(file, "it is not the file that the index describes")
                for name in [name for name in layers if name in wanted]:
                    tensor = stored.get_tensor(name).clone()  # not a map of a file that may yet change
                    if (shape := tuple(tensor.shape)) != layers[name]:
                        shapes = f"{shape_words(shape)} where the index says {shape_words(layers[name])}"
                        raise damaged(file, f"layer {name!r} is {shapes}")
                    if digest_of(name, tensor) != digests[name]:
                        raise damaged(file, f"layer {name!r} is not what was written")
                    if not tensor.float().isfinite().all():
                        raise DataError(
                            f"{str(file)!r}: layer {name!r} has values that are not finite in float32; leave "
                            f"this client or this round out."
                        )
                    yield name, tensor
        except FileNotFoundError:
            raise damaged(file, "it is missing") from None
        except (OSError, SafetensorError) as error:
            raise damaged(file, f"it is not a complete safetensors file ({error})") from None
