"""Writing a recording: one file at a time, each whole before the index or its journal names it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
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
    JOURNAL,
    JOURNALLED,
    STATISTICS,
    SUM,
    VERSION,
    Client,
    Shapes,
    count_entries,
    digest_of,
    enter,
    hash_of,
    is_word,
    listed,
    loaded,
    rename_layer,
    sha256,
    shape_words,
    shapes_of,
    trained,
    whole,
)

SHORT = 100  # files, up to which the index is written whole each time
Arrays = nn.Module | Mapping[str, Tensor | np.ndarray[Any, Any]]  # a model, or what it holds by name


@dataclass(frozen=True, eq=False)
class Recorder:
    """Writes a recording beside a training loop of any kind, in three lines:

        recorder = Recorder("run", model, model_name="mlp", rate=0.1, local_steps=5)
        recorder.global_model(r, model)                                  # in round r, before the clients
        recorder.update(r, client, local_model, samples=len(records))    # when a client has trained

    Parameters are stored as they are uploaded, in their own precision, NaN included: a recording says
    what crossed the wire, and what cannot be audited is said when it is read. They are tensors, dense, sparse
    or quantised, or NumPy arrays. An upload may leave layers out, which its client then did not change; so
    may a global model, but the first. Batch statistics are kept as buffers beside the layers. A folder that
    holds a recording of the same model is continued.
    ``clients`` announces who takes part; ``rate`` and ``local_steps`` are what an update has by default.
    ``rename`` says what the model calls a layer that is given by another name; where a name ends in a dot,
    what begins so: {"module.": ""}. ``delta``: clients upload differences, trained minus received.
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
    rename: Mapping[str, str] = field(default_factory=dict)
    delta: bool = False
    _cache: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        layers = self._shapes()[0]
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
                if left.name.startswith((".round-", f".{INDEX}.", f".{JOURNAL}.")):
                    left.unlink(missing_ok=True)
            index = self._continued(layers)
            index["clients"] = list(dict.fromkeys([*index["clients"], *names]))
            self._write_index(index)

    def global_model(self, r: int, params: Arrays) -> None:
        self._append(r, None, params, {"updates": {}}, {})

    def update(
        self,
        r: int,
        client: Client,
        params: Arrays,
        *,
        samples: int,
        rate: float | None = None,
        steps: int | None = None,
        further: Mapping[str, Arrays] | None = None,
    ) -> None:
        """The client's parameters AFTER its local training, as it uploads them; their difference only where
        the recorder was told so (``delta``).

        The update that is read back is Γ = global − uploaded, so that Γ / rate is the gradient of one
        step of plain SGD. ``samples`` are the records it trained on. ``further`` is what it uploads beside
        its parameters, by name, such as {"control": its control variate by layer}. The same call again
        changes nothing.
        """
        rate, steps = self.rate if rate is None else rate, self.local_steps if steps is None else steps
        facts = _facts(_plain(samples), _plain(rate), _plain(steps)) | ({"delta": True} if self.delta else {})
        self._append(r, _client(client), params, facts, further or {})

    def sum(self, r: int, clients: Iterable[Client], params: Arrays, *, samples: int) -> None:
        """Where a server sees no single upload: the mean of what these ``clients`` uploaded, weighted by
        their samples, of which there are so many in all."""
        names = [_client(client) for client in clients]
        require(len({*names}) == len(names) > 0, "clients", "different clients, at least one", names)
        facts = _facts(_plain(samples), self.rate, self.local_steps) | {"clients": names}
        self._append(r, SUM, params, facts | ({"delta": True} if self.delta else {}), {})

    def _shapes(self) -> tuple[Shapes, Shapes]:
        """Of the layers and of the buffers: those of a module, or of arrays what torch calls statistics."""
        if isinstance(self.model, nn.Module):
            kept, layers = self.model.state_dict(), shapes_of(self.model)
            buffers = {name: b for name, b in self.model.named_buffers() if name in kept}
        else:
            buffers = {n: _dense(b, n) for n, b in self.model.items() if n.rpartition(".")[2] in STATISTICS}
            layers = {name: shape for name, shape in shapes_of(self.model).items() if name not in buffers}
        return layers, {name: tuple(b.shape) for name, b in buffers.items() if b.is_floating_point()}

    def _continued(self, layers: Shapes) -> dict[str, Any]:
        """The index that is there, if it is this model's, or a new one in an empty folder."""
        buffers = [[name, [*shape]] for name, shape in self._shapes()[1].items()]
        model = {
            "name": self.model_name,
            "hash": hash_of(layers),
            "layers": [[*item] for item in layers.items()],
            **({"buffers": buffers} if buffers else {}),
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
        for key in ("name", "hash", "buffers", *DECLARED):
            if index["model"].get(key) != model.get(key):
                had, has = index["model"].get(key), model.get(key)
                raise DataError(
                    f"folder {str(self.folder)!r} records another model, with {key} {had!r} where this has "
                    f"{has!r}; choose another folder."
                )
        return index

    def _load_index(self) -> dict[str, Any]:
        """The index, read and checked again only if it is not what was written here last: for each of many
        uploads that would take the longer, the more there are."""
        stamp, index = self._cache.pop("written", (None, {}))
        if stamp and stamp == _stamp(self.folder):
            return dict(index)
        self._cache.clear()
        return loaded(self.folder)

    def _write_index(self, index: dict[str, Any]) -> None:
        """The whole index in place of the one before. A journal is there before an index that has one, and
        emptied after it: until then it says again what the index says."""
        entries, journal = count_entries(index), self.folder / JOURNAL
        index["version"] = VERSION if entries < SHORT else JOURNALLED
        if entries >= SHORT and not journal.exists():
            files.write(journal, "", private=True)
        files.write(self.folder / INDEX, json.dumps(index), private=True)
        if journal.exists() and journal.stat().st_size:
            files.write(journal, "", private=True)
        self._cache.update({"written": (_stamp(self.folder), index), "entries": entries, "lines": 0})

    def _write_entry(self, index: dict[str, Any], line: dict[str, Any], declared: bool) -> None:
        """One line of the journal, or the whole index: where it is short, was written by another, has new
        arrays, or the journal has grown as long. So the work for an entry does not grow with their number."""
        known = self._cache.setdefault("names", {*index["clients"]})
        index["clients"] += (new := [name for name in enter(index, line) if name not in known])
        known |= {*new}
        lines, entries = self._cache.get("lines"), self._cache.get("entries", 0)
        if declared or lines is None or entries < SHORT or lines >= entries:
            self._write_index(index)
        else:
            files.append(self.folder / JOURNAL, json.dumps(line) + "\n", private=True)
            self._cache.update({"written": (_stamp(self.folder), index), "lines": lines + 1})

    def _append(
        self, r: int, client: str | None, params: Arrays, facts: dict[str, Any], further: Mapping[str, Arrays]
    ) -> None:
        """First the tensors, then the index that names them, each whole or not at all."""
        r = _plain(r)
        require(whole(r) and r < 10**6, "round", "an integer from 0 to 999999", r)
        places = {None: ("global", "the global model"), SUM: ("sum", "the sum")}
        place, part = places.get(client) or (f"client-{_slug(str(client))}", f"client {client!r}")
        file, whose = f"round-{r:06d}-{place}.safetensors", f"{part} of round {r}"
        tensors = self._fitted(params, whose)
        beside = {array: self._named(given, f"{whose}, {array}") for array, given in further.items()}
        with _alone(self.folder):
            index = self._load_index()
            current = index["rounds"].get(str(r))
            if client is not None and current is None:
                raise DataError(f"round {r} has no global model yet; record it before {part}'s update.")
            if current and client is not None and (current["updates"] if client == SUM else "sum" in current):
                raise DataError(f"{whose}: a round has uploads or their sum; record one of them.")
            held = index["rounds"] if client is None else current if client == SUM else current["updates"]
            key = str(r) if client is None else "sum" if client == SUM else client
            missing = [name for name in self._shapes()[0] if name not in tensors]
            if missing and client is None and not any(int(other) < r for other in held):
                raise DataError(
                    f"{whose}: layer {listed(map(repr, missing))} is absent in what was given; the first "
                    f"global model must be whole."
                )
            arrays = json.dumps(index["model"].get("further"))
            tensors |= _declare(index, beside, whose)
            digests = " ".join(digest_of(name, tensor) for name, tensor in tensors.items())
            entry = {"file": file, "digest": sha256(digests), **facts}
            kind = {None: {"global": entry}, SUM: {"sum": entry}}
            line = {"round": r, **kind.get(client, {"client": client, "update": entry})}
            if key in held:
                try:
                    enter(index, line)
                except ValueError:
                    raise DataError(
                        f"{str(self.folder / file)!r} is recorded already and differs; a recording is only "
                        f"ever added to: give another round, or another folder."
                    ) from None
                return
            files.write(self.folder / file, save(tensors, metadata={"sha256": digests}), private=True)
            self._write_entry(index, line, arrays != json.dumps(index["model"].get("further")))

    def _fitted(self, params: Arrays, whose: str) -> dict[str, Tensor]:
        """The layers and buffers that are given, in model order and on the CPU, if each is of the model's."""
        given, (layers, buffers) = self._named(params, whose), self._shapes()
        kept = set(self.model.state_dict() if isinstance(self.model, nn.Module) else self.model)
        wrong = [
            f"layer {name!r} is {shape_words(tensor.shape)} in what was given and "
            f"{shape_words((layers | buffers).get(name))} in the recorder's model"
            for name, tensor in given.items()
            if (name not in kept or name in layers | buffers)
            and tuple(tensor.shape) != (layers | buffers).get(name)
        ]
        if wrong or not any(name in layers for name in given):
            reasons = ", ".join(wrong[:8]) or f"none of the layers {listed(layers)} is in what was given"
            way_out = "" if all(name in kept for name in given) else ", or say their other names (rename)"
            raise DataError(f"{whose}: {reasons}; give that model's parameters{way_out}.")
        for name in [name for name in layers if name in given]:
            require(given[name].is_floating_point(), f"layer {name!r}", "floating point", given[name].dtype)
        return {name: given[name] for name in (*layers, *buffers) if name in given}

    def _named(self, given: Arrays, whose: str) -> dict[str, Tensor]:
        """Tensors on the CPU by the model's names; sparse and quantised ones as the values that they stand
        for."""
        found = given.state_dict() if isinstance(given, nn.Module) else given
        named = {rename_layer(name, self.rename): _dense(tensor, name) for name, tensor in found.items()}
        if len(named) < len(found):
            raise DataError(f"{whose}: rename gives two layers one name; give each its own.")
        return named


def _declare(
    index: dict[str, Any], beside: Mapping[str, Mapping[str, Tensor]], whose: str
) -> dict[str, Tensor]:
    """Enter further arrays that are new into the index; all of them in the order in which they stand."""
    for array, part in beside.items():
        require(
            is_word(array) and "/" not in array, "further", "arrays with printable names, no slash", array
        )
        known = index["model"].setdefault("further", {}).setdefault(array, [])
        shapes = {name: tuple(shape) for name, shape in known}
        for name, tensor in part.items():
            if shapes.setdefault(name, tuple(tensor.shape)) != tuple(tensor.shape):
                raise DataError(
                    f"{whose}: {array} {name!r} is {shape_words(tensor.shape)}, and was "
                    f"{shape_words(shapes[name])} before; give each array one shape."
                )
        known[:] = [[name, [*shape]] for name, shape in shapes.items()]
    every = index["model"].get("further", {}).items()
    return {
        f"{array}/{name}": beside[array][name]
        for array, known in every
        for name, _ in known
        if name in beside.get(array, {})
    }


def _dense(given: Any, name: str) -> Tensor:
    if isinstance(given, np.ndarray | np.generic):
        given = torch.from_numpy(np.array(given))
    require(isinstance(given, Tensor), f"layer {name!r}", "a tensor or a NumPy array", type(given).__name__)
    tensor: Tensor = given.detach().cpu()
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _plain(value: Any) -> Any:
    """A NumPy number as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def _stamp(folder: Path) -> list[tuple[int, int, int] | None]:
    """What is another after every writing, of the index and of its journal."""

    def look(file: Path) -> tuple[int, int, int] | None:
        try:
            found = file.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    return [look(folder / name) for name in (INDEX, JOURNAL)]


def _facts(samples: int, rate: float | None, steps: int | None) -> dict[str, Any]:
    facts = {"samples": samples, "rate": rate, "steps": steps}
    rule = "integers of at least 1, a positive rate, or None where rate or steps are not known"
    require(trained(facts), "samples, rate and steps", rule, facts)
    return facts


def _client(name: Client) -> str:
    require(is_word(name) or whole(_plain(name)), "client", "a printable name or a number", name)
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
