"""Encoders read from disk: nothing is unpickled, and what does not fit is refused in one sentence."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from leakscope.core import files
from leakscope.core.errors import DataError
from leakscope.guards.encoder import FORMAT, TABLE, TENSORS, Encoder
from leakscope.guards.networks import reader
from leakscope.guards.noise import Perturbation
from leakscope.guards.preparation import Preparation
from leakscope.models.encoders import from_description, specimen
from leakscope.models.layers import MOST_LAYERS

MOST_WORDS, MOST_WEIGHTS = 1 << 24, 1 << 33  # bytes of either file
MOST_NUMBERS = 1 << 31  # of a record


def load_encoder(folder: str | Path) -> Encoder:
    """The encoder that was saved in a folder; nothing is unpickled."""
    folder = Path(folder)
    table, content = _read(folder)
    try:
        kind, scale = table["perturbation"]["kind"], float(table["perturbation"]["scale"])
        normed, about = bool(table["normed"]), dict(table["about"])
        tensors = load_tensors(content)
        network, head, released = _networks(table)
        steps = float(table["input_step"]), float(table["output_step"])
        preparation = _prepare(table, tensors)
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{folder} holds no encoder that can be read ({reason}); save it again.") from None
    _fill(network, "network", tensors, folder)
    if head is not None:
        _fill(head, "head", tensors, folder)
    mean, deviation = tensors.get("perturbation.mean"), tensors.get("perturbation.deviation")
    if kind == "learned" and not all(
        part is not None and part.shape == released and part.is_floating_point() for part in (mean, deviation)
    ):
        raise DataError(
            f"{folder}: a learned perturbation must have a mean and a deviation of the representation's "
            f"shape, {tuple(released)}; save the encoder again."
        )
    noise = Perturbation(kind, scale, mean, deviation)
    return Encoder(network, table["architecture"], noise, normed, head, about, preparation, *steps)


def _prepare(table: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Preparation | None:
    if table["preparation"] is None:
        return None
    own = {n.removeprefix("preparation."): t for n, t in tensors.items() if n.startswith("preparation.")}
    found, shape = Preparation.read(table["preparation"], own), tuple(table["about"]["shape"])
    if any(tensor.shape not in ((), shape) for tensor in found.tensors().values()):
        raise ValueError(f"its scale and its grid must be of the shape of a record, {shape}")
    if found.columns and (len(shape) != 1 or found.columns[-1].stop != shape[0]):
        raise ValueError(f"its columns must fill a record, {shape}")
    return found


def _networks(table: Mapping[str, Any]) -> tuple[nn.Module, nn.Module | None, torch.Size]:
    """The networks that a table describes and the shape of a representation. They are of no device, so that
    however large the sizes in the table, memory is taken by what the file holds alone."""
    architecture, shape = dict(table["architecture"]), tuple(table["about"]["shape"])
    widths = architecture.pop("head", None)
    hidden, classes = tuple(widths or ()), table["about"]["classes"]
    most = max(len(hidden), *(len(part) for part in architecture.values() if isinstance(part, list)), 0)
    if most > MOST_LAYERS:
        raise ValueError(f"it must have at most {MOST_LAYERS} layers, and it has {most:,}")
    if not all(type(size) is int and size >= 1 for size in (*shape, *hidden, classes)):
        raise ValueError(f"its sizes must be integers of at least 1, got {(*shape, *hidden, classes)}")
    if math.prod(shape) > MOST_NUMBERS:
        raise ValueError(f"a record must have at most {MOST_NUMBERS:,} numbers, got the shape {shape}")
    with torch.device("meta"), torch.no_grad():
        data = specimen(shape, 1)
        network = from_description(architecture)(data).eval()
        released = network(data.x).shape[1:]
        head = None if widths is None else reader(tuple(released), classes, hidden)
    return network, head, released


def _read(folder: Path) -> tuple[Mapping[str, Any], bytes]:
    try:
        table = json.loads(files.read(folder / TABLE, most=MOST_WORDS))
        content = files.read(folder / TENSORS, most=MOST_WEIGHTS)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{folder} holds no encoder that can be read ({error}); give a saved one.") from None
    if isinstance(table, dict) and table.get("format") == 1:
        raise DataError(
            f"{folder} holds an encoder of format 1, which may name rare values and under one key shares its "
            f"noise with others; train the guard again."
        )
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise DataError(f"{folder}/encoder.json must be of format {FORMAT}; save the encoder again.")
    if hashlib.sha256(content).hexdigest()[:16] != table.get("digest"):
        raise DataError(
            f"{folder}: encoder.json describes another encoder.safetensors; save the encoder again."
        )
    return table, content


def _fill(net: nn.Module, part: str, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Load the tensors of one part into a network of exactly these names and shapes."""
    own = {name.removeprefix(f"{part}."): t for name, t in tensors.items() if name.startswith(f"{part}.")}
    expected = {name: (*value.shape, value.dtype) for name, value in net.state_dict().items()}
    found = {name: (*value.shape, value.dtype) for name, value in own.items()}
    if found != expected:
        differing = min(name for name, _ in found.items() ^ expected.items())
        raise DataError(
            f"{folder}: {part}.{differing} is {found.get(differing, 'missing')} in encoder.safetensors and "
            f"{expected.get(differing, 'unknown')} in the architecture of encoder.json; they do not belong "
            f"together."
        )
    net.load_state_dict(own, assign=True)
