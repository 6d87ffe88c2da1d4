"""What a guard returns: an encoder, the noise its representations are released with, and a task head."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import files
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.guards.networks import reader
from leakscope.models.encoders import from_description, specimen
from leakscope.models.layers import MOST_LAYERS

Kind = Literal["none", "gaussian", "uniform", "learned"]
KINDS = ("none", "gaussian", "uniform", "learned")
FORMAT = 1
MOST_WORDS, MOST_WEIGHTS = 1 << 24, 1 << 33  # bytes of either file
MOST_NUMBERS = 1 << 31  # of a record
TENSORS, TABLE = "encoder.safetensors", "encoder.json"
BLOCK = 4_096  # records that are encoded at once


@dataclass(frozen=True, eq=False)
class Perturbation:
    """What is added to a representation before it leaves: delta, drawn anew or frozen for each record.

    "gaussian" and "uniform" have standard deviation ``scale``. "learned" is ``scale`` tanh(``mean`` +
    ``deviation`` z) with z standard normal (equation 21 of paper 003), the two of the representation's shape.
    """

    kind: Kind = "none"
    scale: float = 1.0
    mean: Tensor | None = None
    deviation: Tensor | None = None

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "perturbation", f"one of {', '.join(KINDS)}", self.kind)
        require(0 <= self.scale < math.inf, "scale", "finite and at least 0", self.scale)

    @property
    def silent(self) -> bool:
        return self.kind == "none" or self.scale == 0

    def draws(self, like: Tensor, rng: torch.Generator) -> Tensor:
        """Fresh draws for representations (n, ...), before they are scaled and shaped."""
        draw = torch.rand if self.kind == "uniform" else torch.randn
        return draw(like.shape, generator=rng, dtype=like.dtype)

    def frozen(self, x: Tensor, like: Tensor, key: int) -> Tensor:
        """One draw for each record, the same whenever it is asked for: from a hash of the record's bytes
        under ``key``, so that who does not know the key cannot draw it again."""
        require(0 <= key < 2**256, "key", "in [0, 2**256)", key)
        secret, shape = key.to_bytes(32, "little"), like.shape[1:]
        found = np.empty(like.shape, dtype=np.float64)
        for i, record in enumerate((x + 0).numpy()):  # + 0 makes no difference of 0.0 and -0.0
            digest = hashlib.blake2b(record.tobytes(), key=secret, digest_size=16).digest()
            own = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
            found[i] = own.random(shape) if self.kind == "uniform" else own.standard_normal(shape)
        return torch.from_numpy(found).to(like.dtype)

    def delta(self, draws: Tensor) -> Tensor:
        if self.kind == "uniform":
            return self.scale * math.sqrt(3) * (2 * draws - 1)
        if self.kind == "learned":
            assert self.mean is not None
            assert self.deviation is not None
            return self.scale * torch.tanh(self.mean + self.deviation * draws)
        return self.scale * draws


def represented(network: nn.Module, x: Tensor, *, normed: bool) -> Tensor:
    """Representations without noise; ``normed``: of mean 0 and variance 1 in each record, so that an encoder
    cannot outgrow its noise."""
    r: Tensor = network(x)
    return F.layer_norm(r, r.shape[1:]) if normed else r


@dataclass(frozen=True, eq=False)
class Encoder:
    """From records to the representations that are shared in their place: ``network``, normed, perturbed.

    ``architecture`` is the plan table from which the network is built again, ``head`` the widths of the task
    head's hidden layers within it; ``about`` says what it was trained on and against.
    """

    network: nn.Module
    architecture: Mapping[str, Any]
    perturbation: Perturbation = field(default_factory=Perturbation)
    normed: bool = False
    head: nn.Module | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for net in (self.network, self.head):
            if net is not None:
                net.eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, x: Tensor, *, rng: torch.Generator | None = None, key: int | None = None) -> Tensor:
        """Representations (n, ...) of records (n, ...) as they are released: with one draw for each record,
        frozen by ``key``, which whoever knows it can take off again, or fresh ones from ``rng``."""
        shape = tuple(self.about.get("shape", x.shape[1:]))
        if tuple(x.shape[1:]) != shape:
            raise ArgumentError(
                f"records must have the shape {shape} of this encoder, got {tuple(x.shape[1:])}."
            )
        return torch.cat([self._released(part, rng, key) for part in x.split(BLOCK)])

    def _released(self, x: Tensor, rng: torch.Generator | None, key: int | None) -> Tensor:
        r = represented(self.network, x, normed=self.normed)
        if self.perturbation.silent:
            return r
        if rng is not None:
            draws = self.perturbation.draws(r, rng)
        elif key is not None:
            draws = self.perturbation.frozen(x, r, key)
        else:
            raise ArgumentError(
                "this encoder adds noise and needs key, a number that you keep to yourself and give in every "
                "release alike, or rng for fresh draws, got neither."
            )
        return r + self.perturbation.delta(draws)

    @torch.no_grad()
    def logits(self, x: Tensor, *, rng: torch.Generator | None = None, key: int | None = None) -> Tensor:
        """The task head's logits (n, classes), from representations as they are released."""
        if self.head is None:
            raise ArgumentError(
                "this encoder has no task head, since it was trained for no task; train one on its "
                'representations, or guard with utility="labels".'
            )
        out: Tensor = self.head(self(x, rng=rng, key=key))
        return out

    def save(self, folder: str | Path) -> Path:
        """Write encoder.safetensors and encoder.json, from which `load_encoder` makes the same encoder."""
        for name, content in self.files().items():
            files.write(Path(folder) / name, content)
        return Path(folder)

    def files(self) -> dict[str, bytes]:
        """What `save` writes: the weights, and then the table that names them."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        if self.head is not None:
            tensors |= {f"head.{name}": value for name, value in self.head.state_dict().items()}
        for name in ("mean", "deviation"):
            value = getattr(self.perturbation, name)
            tensors |= {} if value is None else {f"perturbation.{name}": value}
        content = save_tensors({name: value.contiguous() for name, value in tensors.items()})
        table = {
            "format": FORMAT,
            "architecture": dict(self.architecture),
            "perturbation": {"kind": self.perturbation.kind, "scale": self.perturbation.scale},
            "normed": self.normed,
            "about": dict(self.about),
            "digest": hashlib.sha256(content).hexdigest()[:16],
        }
        return {TENSORS: content, TABLE: json.dumps(table, indent=1).encode()}


def load_encoder(folder: str | Path) -> Encoder:
    """The encoder that was saved in a folder; nothing is unpickled."""
    folder = Path(folder)
    table, content = _read(folder)
    try:
        kind, scale = table["perturbation"]["kind"], float(table["perturbation"]["scale"])
        normed, about = bool(table["normed"]), dict(table["about"])
        tensors = load_tensors(content)
        network, head, released = _networks(table)
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
    return Encoder(network, table["architecture"], noise, normed, head, about)


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


@dataclass(frozen=True, eq=False)
class Guarded:
    """An encoder, the privacy network that it was trained with (the stale attacker), and what was seen on
    the way: the losses of every epoch, and how much the network found in records held back."""

    encoder: Encoder
    privacy: nn.Module | None
    history: tuple[Mapping[str, float], ...]
    seconds: float = 0.0
