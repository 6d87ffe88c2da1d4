"""Weights that were trained elsewhere: read from a file without unpickling code, and put into a model."""

from __future__ import annotations

import copy
import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from leakscope.core import files
from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, PlanError
from leakscope.core.fingerprints import keyed, same
from leakscope.core.tables import architecture, describe_inputs, try_model

MOST = 2**30  # bytes of a file of weights, and of what it holds
LISTED = 6  # names of each kind that a refusal lists
FILE = "model.safetensors"  # under which name a results folder keeps the weights of a model in memory
State = Mapping[str, Tensor]
REFUSED = torch.serialization.pickle.UnpicklingError  # type: ignore[attr-defined]  # by torch's own unpickler
BROKEN = (
    RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError,
    EOFError, OSError, MemoryError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def starting(
    model: Mapping[str, Any],
    table: Mapping[str, Any] | None,
    net: nn.Module | None,
    *,
    trusted: Iterable[str],
) -> Callable[[Dataset], Any]:
    """What gives a plan's model as it is at first: a copy of the ``net`` in memory, or what its name builds,
    with the weights that a ``table`` names, if any."""
    name = str(model["name"])
    if table is not None and net is not None:
        return lambda data: try_model(name, copy.deepcopy(net), data)
    build = architecture(model, trusted=trusted)
    if table is None:
        return build
    path = table.get("path")
    if not path:
        raise PlanError(
            f"model {name!r} was given in memory and its weights were not kept; audit it again with an "
            f"output folder."
        )
    state = read(path, known=table.get("sha256"))

    def filled(data: Dataset) -> Any:
        built = build(data)
        fill(built, state, Path(path).name, data)
        return built

    return filled


def serialise(model: nn.Module) -> bytes:
    """The parameters and buffers of a module as a safetensors file has them."""
    state = model.state_dict()
    strange = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if strange:
        raise PlanError(
            f"model must hold tensors only, got {type(state[strange[0]]).__name__} as {strange[0]!r}; leave "
            f"its extra state out."
        )
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    return safetensors.torch.save(plain)


def fingerprint(content: bytes) -> str:
    return keyed(hashlib.sha256(content).hexdigest())


def read(path: str | Path, *, known: str | None = None) -> State:
    """The tensors of a safetensors file, or of a ``state_dict`` that torch has saved; code in either is never
    run. Where its fingerprint is ``known`` it must be that file."""
    path = Path(path)
    try:
        content = files.read(path, most=MOST)
    except OSError as error:
        raise DataError(
            f"weights {str(path)!r} cannot be read: {error.strerror or error}; check the path."
        ) from None
    if known is not None and not same(known, hashlib.sha256(content).hexdigest()):
        raise DataError(
            f"weights {str(path)!r} have changed since the plan was written, or the plan is of another user "
            f"or machine; audit them anew, or leave sha256 out of the plan."
        )
    state = _unpack(content, path) if zipfile.is_zipfile(io.BytesIO(content)) else _parse(content, path)
    if not isinstance(state, Mapping) or not state or not all(map(_plain, state, state.values())):
        raise _unusable(path, "it holds something else than names with tensors")
    held = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in state.values()}
    if sum(held.values()) > len(content):
        raise _unusable(path, "it claims to hold more than it does")
    return state


def _parse(content: bytes, path: Path) -> State:
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _unusable(path, f"it is neither a safetensors file nor a zip file of torch: {reason}") from None


def _unpack(content: bytes, path: Path) -> Any:
    """What torch saved, read by its unpickler of tensors alone."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST:
            raise _unusable(path, f"it unpacks to {size:,} bytes, more than {MOST:,}")
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except REFUSED:
        raise _unusable(path, "it holds more than tensors, whose code would be run, or is damaged") from None
    except BROKEN as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _unusable(path, f"torch cannot read it ({reason})") from None


def _plain(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and type(value) is Tensor
        and value.layout == torch.strided
        and not value.is_meta
    )


def _unusable(path: Path, why: str) -> DataError:
    return DataError(
        f"weights {str(path)!r} cannot be used: {why}; save them with safetensors.torch.save_file or "
        f"torch.save, both of model.state_dict()."
    )


def fill(model: nn.Module, state: State, name: str, data: Dataset) -> None:
    """Put weights into a model, if every name and shape is the model's own; else all reasons why not."""
    ours = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    both = [(key, state[key], value) for key, value in ours.items() if key in state]
    shapes = [
        f"{key} is {_shape(theirs)} in the file and {_shape(own)} in the model"
        for key, theirs, own in both
        if theirs.shape != own.shape
    ]
    finite = [key for key, theirs, own in both if theirs.shape != own.shape or theirs.isfinite().all()]
    reasons = [
        f"{words} {_listed(names)}"
        for words, names in (
            ("it lacks", [key for key in ours if key not in state]),
            ("the model has no", [key for key in state if key not in ours]),
            ("", shapes),
            ("not finite in it:", [key for key, _, _ in both if key not in finite]),
        )
        if names
    ]
    if reasons:
        inputs = f" ({describe_inputs(data)})" if shapes else ""
        raise PlanError(
            f"weights {name!r} do not fit {type(model).__name__}: {'; '.join(map(str.strip, reasons))}"
            f"{inputs}; give the model as it was trained."
        )
    model.load_state_dict({**model.state_dict(), **state})


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
