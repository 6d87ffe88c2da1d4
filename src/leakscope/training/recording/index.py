"""The index of a recording: its form, checked by hand, and the fingerprints of what it names.

A long recording has a journal beside its index: one line for every file that was written since. Whoever reads
takes both; a last line without its end was not finished, and is not there. A journal that is lost is an
error: what it named would be missing without a word.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core import files
from leakscope.core.errors import DataError
from leakscope.core.nouns import Params

FORMAT, INDEX, JOURNAL = "leakscope recording", "recording.json", "recording.jsonl"
VERSION, JOURNALLED = 1, 2  # the second is of an index that has a journal beside it, be it empty
DECLARED = ("loss", "preprocessing")  # what a writer may say of how its clients trained
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # torch's names of what is no parameter
SUM = "\0"  # in place of a client's name: no client can be called so
SHOWN = 12  # names that are listed before it is said how many more there are

Client = str | int  # 3 and "3" are the same client
Shapes = dict[str, tuple[int, ...]]


def loaded(folder: Path) -> dict[str, Any]:
    """The index of a recording, every field of it checked; no path in it leads out of the folder."""
    file = folder / INDEX
    lines = _read_journal(folder)  # first: what is folded into the index meanwhile is then in both
    try:
        index = json.loads(files.read(own(file)))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{str(folder)!r} holds no {INDEX}; give the folder of a recording.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(file, f"it cannot be read as JSON ({error})") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise damaged(file, "it is not the index of a recording")
    if index.get("version") not in (VERSION, JOURNALLED):
        raise DataError(
            f"{str(file)!r} has format version {index.get('version')!r} and this leakscope reads {VERSION} "
            f"and {JOURNALLED}; use the leakscope that wrote it."
        )
    if fault := next(_faults(index), None):
        raise damaged(file, fault)
    if index["version"] == JOURNALLED and lines is None:  # it may have come between the two readings
        lines = _read_journal(folder)
        if lines is None:
            raise damaged(folder / JOURNAL, "it is missing, and the index says that there is one")
    if not lines:
        return index
    if index["version"] != JOURNALLED:
        raise damaged(folder / JOURNAL, f"an index of version {VERSION} has no journal")
    new: list[str] = []
    for i, line in enumerate(lines, 1):
        try:
            new += enter(index, json.loads(line))
        except (ValueError, RecursionError):
            raise damaged(folder / JOURNAL, f"its line {i} is no entry that fits the index") from None
    index["clients"] = list(dict.fromkeys([*index["clients"], *new]))
    if fault := next(_faults(index), None):
        raise damaged(folder / JOURNAL, fault)
    return index


def _read_journal(folder: Path) -> list[bytes] | None:
    """Its whole lines; None where there is no journal."""
    file = folder / JOURNAL
    try:
        text = files.read(own(file))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise damaged(file, f"it cannot be read ({error})") from None
    return text.split(b"\n")[:-1]


def enter(index: Mapping[str, Any], line: object) -> list[str]:
    """Put one file's entry into the index, and name the clients behind it. What is there already stays; a
    `ValueError` where it is another, or fits nowhere."""
    names: list[str] = []
    match line:
        case {"round": int(r), "global": {**entry}}:
            held, key = index["rounds"], str(r)
        case {"round": int(r), "client": str(client), "update": {**entry}}:
            held, key, names = index["rounds"].get(str(r), {}).get("updates"), client, [client]
        case {"round": int(r), "sum": {"clients": [*clients], **entry}}:
            held, key, names = index["rounds"].get(str(r)), "sum", clients
            entry["clients"] = clients
        case _:
            raise ValueError("it is no entry")
    if not isinstance(held, dict) or not all(map(is_word, names)):
        raise ValueError("its round is not there, or a client has no name")
    if _own_facts(held.setdefault(key, entry)) != _own_facts(entry):
        raise ValueError("it is there already and differs")
    return names


def _own_facts(entry: object) -> object:
    """Of a round's entry, what is about its global model."""
    return (
        {k: v for k, v in entry.items() if k not in ("updates", "sum")} if isinstance(entry, dict) else entry
    )


def count_entries(index: Mapping[str, Any]) -> int:
    """How many files it names."""
    return sum(1 + len(entry["updates"]) + ("sum" in entry) for entry in index["rounds"].values())


def digest_index(folder: Path) -> str:
    """The SHA-256 of the index and of the journal, if there is one: that of another state is another."""
    parts = [files.read(own(folder / name)) for name in (INDEX, JOURNAL) if (folder / name).exists()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _faults(index: Mapping[str, Any]) -> Iterator[str]:
    """Each rule an index breaks, in words; rules rely on those before them, so only the first counts."""
    model: Any = index.get("model")
    clients: Any = index.get("clients")
    rounds: Any = index.get("rounds")
    if not (is_word(index.get("writer")) and isinstance(model, dict) and is_word(model.get("name"))):
        yield "it does not name its writer and its model"
    if not all(is_word(model[key]) for key in DECLARED if key in model):
        yield "its loss and preprocessing must be words"
    if not (isinstance(layers := model.get("layers"), list) and layers and all(map(_is_layer, layers))):
        yield "its layers must be names with shapes"
    if len(dict(layers)) < len(layers) or model.get("hash") != hash_of(dict(layers)):
        yield "its hash is not that of its layers"
    buffers, further = model.get("buffers", []), model.get("further", {})
    if not (isinstance(further, dict) and all(map(is_word, further))):
        yield "its further arrays must have names"
    for part in (buffers, *further.values()):
        if not (isinstance(part, list) and all(map(_is_layer, part))):
            yield "its buffers and further arrays must be names with shapes"
    if len(stored_shapes(model)) < sum(map(len, (layers, buffers, *further.values()))):
        yield "its layers, buffers and further arrays must have different names"
    if not (isinstance(clients, list) and all(map(is_word, clients)) and isinstance(rounds, dict)):
        yield "it does not name its clients and its rounds"
    known = set(clients)
    for r, held in rounds.items():
        if not (
            re.fullmatch("0|[1-9][0-9]{0,5}", r) and _is_entry(held) and isinstance(held.get("updates"), dict)
        ):
            yield f"its round {r!r} must have a number, a global model's file and updates"
        total = held.get("sum")
        if total is not None and not (_is_entry(total) and trained(total) and _is_sum(total, known)):
            yield f"the sum of its round {r} must have a file, samples, rate, steps and the clients behind it"
        for client, entry in held["updates"].items():
            facts = _is_entry(entry) and trained(entry) and isinstance(entry.get("delta", False), bool)
            if client not in known or not facts:
                yield f"its update of client {client!r} in round {r} must have a file, samples, rate, steps"


def stored_shapes(model: Mapping[str, Any]) -> Shapes:
    """Each tensor that a file of this model can hold: layers, then buffers, then further arrays."""
    parts = [("", model["layers"]), ("", model.get("buffers", []))]
    parts += [(f"{array}/", part) for array, part in model.get("further", {}).items()]
    return {head + name: tuple(shape) for head, part in parts for name, shape in part}


def rename_layer(name: str, rules: Mapping[str, str]) -> str:
    """The name by these rules: a whole name for another, or one that ends in a dot as a beginning."""
    if name in rules:
        return rules[name]
    begin = next((old for old in rules if old.endswith(".") and name.startswith(old)), None)
    return name if begin is None else rules[begin] + name.removeprefix(begin)


def _is_layer(item: object) -> bool:
    match item:
        case [str(name), [*shape]]:
            return name.isprintable() and all(map(whole, shape))
    return False


def _is_entry(held: object) -> bool:
    """A file of this folder, never a path, and the digest it must have."""
    match held:
        case {"file": str(file), "digest": str()}:
            return re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*\.safetensors", file) is not None
    return False


def _is_sum(total: Mapping[str, Any], known: set[str]) -> bool:
    clients = total.get("clients")
    return isinstance(clients, list) and bool(clients) and all(map(is_word, clients)) and known >= {*clients}


def trained(facts: Mapping[str, Any]) -> bool:
    rate, steps = facts.get("rate", ""), facts.get("steps", "")
    number = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e300
    return whole(facts.get("samples"), 1) and (rate is None or number) and (steps is None or whole(steps, 1))


def whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_word(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= 200


def parameters_of(given: nn.Module | Params) -> Params:
    return dict(given.named_parameters()) if isinstance(given, nn.Module) else given


def shapes_of(given: nn.Module | Params) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in parameters_of(given).items()}


def hash_of(layers: Mapping[str, Iterable[int]]) -> str:
    """Of names and shapes, in order: it says which model, not which weights."""
    return sha256(json.dumps([[name, [*shape]] for name, shape in layers.items()]))


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of(name: str, tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def own(file: Path) -> Path:
    """The file, if it is one and no link out of its folder; a pipe would be waited for without end."""
    try:
        within = file.resolve(strict=True).parent == file.parent.resolve()
    except RuntimeError:  # links in a circle
        within = False
    if not within:
        raise damaged(file, "it is a link that leads out of the folder, or in a circle")
    if not file.is_file():
        raise damaged(file, "it is no file")
    return file


def damaged(file: Path, why: str) -> DataError:
    return DataError(f"{str(file)!r} is damaged or foreign: {why}; restore it from a copy.")


def shape_words(shape: Iterable[int] | None) -> str:
    return "absent" if shape is None else f"({', '.join(map(str, shape))})"


def listed(items: Iterable[object]) -> str:
    words = [str(item) for item in items]
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")


def span(values: Iterable[float | None]) -> str:
    known = sorted({value for value in values if value is not None})
    ends = [f"{value:,}" for value in dict.fromkeys([*known[:1], *known[-1:]])]
    return " to ".join(ends) or "not known"
