"""Writing a recording: one file at a time, each whole before the index names it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from leakscope.core import files
from leakscope.core.errors import DataError, StoreError, require
from leakscope.core.nouns import Params
from leakscope.training.recording.index import (
    DECLARED,
    FORMAT,
    INDEX,
    VERSION,
    Client,
    Shapes,
    digest_of,
    hash_of,
    is_word,
    loaded,
    parameters_of,
    sha256,
    shape_words,
    shapes_of,
    trained,
    whole,
)


@dataclass(frozen=True, eq=False)
class Recorder:
    """Writes a recording beside a training loop of any kind, in three lines:

        recorder = Recorder("run", model, model_name="mlp", rate=0.1, local_steps=5)
        recorder.global_model(r, model)                                  # in round r, before the clients
        recorder.update(r, client, local_model, samples=len(records))    # when a client has trained

    Parameters are stored as they are uploaded, in their own precision, NaN included: a recording says
    what crossed the wire, and what cannot be audited is refused when it is read. Batch statistics and
    other buffers are left out. A folder that holds a recording of the same model is continued.
    ``clients`` announces who takes part; ``rate`` and ``local_steps`` are what an update has by default.
    ``loss`` and ``preprocessing`` are words or fingerprints, such as "cross-entropy" and `Dataset.scaling`,
    that an audit of the recording must be given again: one of another loss or other scaling is refused.
    """

    folder: Path
    model: nn.Module | Params = field(repr=False)
    _: KW_ONLY
    model_name: str
    writer: str = "leakscope"
    clients: Iterable[Client] = ()
    rate: float | None = None
    local_steps: int | None = None
    loss: str | None = None
    preprocessing: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        layers = shapes_of(self.model)
        require(is_word(self.model_name), "Recorder.model_name", "a printable name", self.model_name)
        require(is_word(self.writer), "Recorder.writer", "a printable name", self.writer)
        for name in DECLARED:
            word = getattr(self, name)
            require(word is None or is_word(word), f"Recorder.{name}", "None or printable words", word)
        require(len(layers) > 0, "Recorder.model", "a model with parameters", self.model)
        require(not isinstance(self.clients, str), "Recorder.clients", "a collection of names", self.clients)
        names = [_client(client) for client in self.clients]
        _facts(1, self.rate, self.local_steps)
        with _alone(self.folder):
            for left in self.folder.glob(".*.*"):  # by a writer that was killed: nobody else writes now
                if left.name.startswith((".round-", f".{INDEX}.")):
                    left.unlink(missing_ok=True)
            index = self._continued(layers)
            index["clients"] = list(dict.fromkeys([*index["clients"], *names]))
            files.write(self.folder / INDEX, json.dumps(index), private=True)

    def global_model(self, r: int, params: nn.Module | Params) -> None:
        self._append(r, None, params, {"updates": {}})

    def update(
        self,
        r: int,
        client: Client,
        params: nn.Module | Params,
        *,
        samples: int,
        rate: float | None = None,
        steps: int | None = None,
    ) -> None:
        """The client's parameters AFTER its local training, as it uploads them, not their difference.

        The update that is read back is Γ = global − uploaded, so that Γ / rate is the gradient of one
        step of plain SGD. ``samples`` are the records it trained on. The same call again changes nothing.
        """
        rate, steps = self.rate if rate is None else rate, self.local_steps if steps is None else steps
        self._append(r, _client(client), params, _facts(samples, rate, steps))

    def _continued(self, layers: Shapes) -> dict[str, Any]:
        """The index that is there, if it is this model's, or a new one in an empty folder."""
        model = {
            "name": self.model_name,
            "hash": hash_of(layers),
            "layers": [[*item] for item in layers.items()],
            **{name: word for name in DECLARED if (word := getattr(self, name)) is not None},
        }
        if not (self.folder / INDEX).exists():
            if others := sorted(item.name for item in self.folder.iterdir() if item.name[0] != "."):
                raise DataError(
                    f"folder {str(self.folder)!r} holds {others[0]!r} and no recording; choose an empty one."
                )
            head = {"format": FORMAT, "version": VERSION, "writer": self.writer, "model": model}
            return {**head, "clients": [], "rounds": {}}
        index = loaded(self.folder)
        for key in ("name", "hash", *DECLARED):
            if index["model"].get(key) != model.get(key):
                had, has = index["model"].get(key), model.get(key)
                raise DataError(
                    f"folder {str(self.folder)!r} records another model, with {key} {had!r} where this has "
                    f"{has!r}; choose another folder."
                )
        return index

    def _append(self, r: int, client: str | None, params: nn.Module | Params, facts: dict[str, Any]) -> None:
        """First the tensors, then the index that names them, each whole or not at all."""
        require(whole(r) and r < 10**6, "round", "an integer from 0 to 999999", r)
        file = f"round-{r:06d}-{'global' if client is None else 'client-' + _slug(client)}.safetensors"
        tensors = self._fitted(
            params, f"the global model of round {r}" if client is None else f"client {client!r} in round {r}"
        )
        digests = " ".join(digest_of(name, tensor) for name, tensor in tensors.items())
        entry = {"file": file, "digest": sha256(digests), **facts}
        with _alone(self.folder):
            index = loaded(self.folder)
            held = index["rounds"] if client is None else index["rounds"].get(str(r), {}).get("updates")
            key = str(r) if client is None else client
            if held is None:
                raise DataError(
                    f"round {r} has no global model yet; record it before client {key!r}'s update."
                )
            if key in held and {**held[key], "updates": {}} != {**entry, "updates": {}}:
                raise DataError(
                    f"{str(self.folder / file)!r} is recorded already and differs; a recording is only ever "
                    f"added to: give another round, or another folder."
                )
            if key not in held:
                held[key] = entry
                if client is not None and client not in index["clients"]:
                    index["clients"].append(client)
                files.write(self.folder / file, save(tensors, metadata={"sha256": digests}), private=True)
                files.write(self.folder / INDEX, json.dumps(index), private=True)

    def _fitted(self, params: nn.Module | Params, whose: str) -> dict[str, Tensor]:
        """The layers in model order, on the CPU, if all are there and of the right shape."""
        given, layers = parameters_of(params), shapes_of(self.model)
        buffers = set(self.model.state_dict() if isinstance(self.model, nn.Module) else ()) - set(layers)
        for name in [*layers, *given]:
            shape = tuple(given[name].shape) if name in given else None
            if shape != layers.get(name) and name not in buffers:
                raise DataError(
                    f"{whose}: layer {name!r} is {shape_words(shape)} in what was given and "
                    f"{shape_words(layers.get(name))} in the recorder's model; give that model's parameters."
                )
        for name in layers:
            require(given[name].is_floating_point(), f"layer {name!r}", "floating point", given[name].dtype)
        return {n: given[n].detach().cpu().clone(memory_format=torch.contiguous_format) for n in layers}


def _facts(samples: int, rate: float | None, steps: int | None) -> dict[str, Any]:
    facts = {"samples": samples, "rate": rate, "steps": steps}
    rule = "integers of at least 1, a positive rate, or None where rate or steps are not known"
    require(trained(facts), "samples, rate and steps", rule, facts)
    return facts


def _client(name: Client) -> str:
    require(is_word(name) or whole(name), "client", "a printable name or a number", name)
    return str(name)


def _slug(client: str) -> str:
    """The client in a file name: as it is if it is plain, else with a digest that tells it from others."""
    plain = re.sub("[^a-z0-9_-]", "_", client.lower())[:40]
    return plain if plain == client else f"{plain}.{sha256(client)[:12]}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One writer at a time; the lock of a writer that is killed goes with it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with files.locked(folder / ".lock"):
            yield
    except OSError as error:
        raise StoreError(f"cannot write to {str(folder)!r} ({error}); choose another folder.") from None
