"""What a guard returns: an encoder, with all that happens to a record on its way out, and a task head."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from pandas.api.types import is_scalar
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from leakscope.core import files
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.data.tabular import rows_as
from leakscope.guards.keys import LEAST, Key, rehearsed_key
from leakscope.guards.noise import KINDS as KINDS
from leakscope.guards.noise import Kind as Kind
from leakscope.guards.noise import Perturbation as Perturbation
from leakscope.guards.preparation import Preparation, cells, scaled
from leakscope.models.repair import RepairedNetwork

FORMAT = 2
TENSORS, TABLE = "encoder.safetensors", "encoder.json"
BLOCK = 4_096  # records that are encoded at once
INPUT_STEP = 2.0**-6  # of records in their deviations, where no preparation has a grid for them
OUTPUT_STEP = 1 / 32  # of the noise's scale


def represented(network: Callable[[Tensor], Tensor], x: Tensor, *, normed: bool) -> Tensor:
    """Representations without noise; ``normed``: of mean 0 and variance 1 in each record, so that an encoder
    cannot outgrow its noise."""
    r = network(x)
    return F.layer_norm(r, r.shape[1:]) if normed else r


@dataclass(init=False, eq=False, repr=False)
class Encoder(nn.Module):
    """From records to the representations that are shared in their place: all that happens on the way.

    Records are prepared (`Preparation`: categories, grid, scale), where the encoder has learned how; then
    come ``network``, norm, noise, and a grid of ``output_step`` times the noise's scale, since the last bits
    of a sum give away what was added. ``architecture`` is the plan table from which the network is built
    again, ``head`` the task head; ``about`` says what it was trained on and against. An encoder without a
    preparation takes tensors as they were in training; for its draws they are rounded to ``input_step``.
    """

    network: nn.Module
    architecture: Mapping[str, Any]
    perturbation: Perturbation
    normed: bool
    head: nn.Module | None
    about: Mapping[str, Any]
    preparation: Preparation | None
    input_step: float
    output_step: float

    def __init__(
        self,
        network: nn.Module,
        architecture: Mapping[str, Any],
        perturbation: Perturbation | None = None,
        normed: bool = False,
        head: nn.Module | None = None,
        about: Mapping[str, Any] | None = None,
        preparation: Preparation | None = None,
        input_step: float = INPUT_STEP,
        output_step: float = OUTPUT_STEP,
    ) -> None:
        super().__init__()
        require(0 < input_step < math.inf, "input_step", "finite and above 0", input_step)
        require(0 <= output_step <= 1, "output_step", "from 0 to 1", output_step)
        self.network, self.head = network.eval().requires_grad_(False), head
        if head is not None:
            head.eval().requires_grad_(False)
        self.architecture, self.normed = architecture, normed
        self.perturbation, self.preparation = perturbation or Perturbation(), preparation
        self.about = about or {}
        self.input_step, self.output_step = input_step, output_step
        for name, tensor in (preparation.tensors() if preparation else {}).items():
            self.register_buffer(name, tensor)

    if TYPE_CHECKING:

        def __call__(self, *given: Any, **settings: Any) -> Tensor: ...

    def forward(
        self,
        records: Tensor | pd.DataFrame,
        draws: Tensor | None = None,
        *,
        rng: torch.Generator | None = None,
        key: Key | int | None = None,
        people: Iterable[object] | None = None,
    ) -> Tensor:
        """Representations (n, ...) of records (n, ...) as they are released: with one draw for each person,
        frozen by ``key``, which whoever knows it can take off again, or fresh ones from ``rng``.

        ``records`` are a DataFrame with the columns of the training records, or a tensor. ``people`` are
        their ids; without them a record is a person, as it stands on the grid. ``draws`` are those that
        `draws` gives: by these alone the encoder can be exported. A number as key is for games: an encoder
        that takes tables refuses it.
        """
        x = self._tensor(records)
        if draws is not None:
            return self._released(x, draws)
        self._check_groups(x)
        if not self.perturbation.silent and rng is None and key is None:
            raise ArgumentError(
                "this encoder adds noise and needs key, a Key that you keep to yourself and give in every "
                "release alike, or rng for fresh draws, got neither."
            )
        named = None if people is None else name_people(people)
        if named is not None and len(named) != len(x):
            raise ArgumentError(f"people must be one for each of {len(x)} records, got {len(named)}.")
        with torch.no_grad():
            parts = [self._drawn(part, rng, key, named, i * BLOCK) for i, part in enumerate(x.split(BLOCK))]
            return torch.cat(parts)

    def _tensor(self, records: Tensor | pd.DataFrame) -> Tensor:
        x = records if isinstance(records, Tensor) else self.read(records)
        shape = tuple(self.about.get("shape", x.shape[1:]))
        if tuple(x.shape[1:]) != shape:
            raise ArgumentError(
                f"records must have the shape {shape} of this encoder, got {tuple(x.shape[1:])}."
            )
        return x

    def _check_groups(self, x: Tensor) -> None:
        """Refuse records without the group by which their representations are repaired."""
        if not isinstance(self.network, RepairedNetwork):
            return
        unknown = (self.network.groups(x).sum(1) != 1).nonzero()[:, 0]
        if len(unknown):
            column = self.about.get("told", "the secret")
            raise DataError(
                f"this encoder must be told {column!r} of every record, a value that it was trained on, and "
                f"{len(unknown):,} have none, such as record {int(unknown[0]) + 1}; give it, or leave those "
                f"records out."
            )

    def read(self, frame: pd.DataFrame) -> Tensor:
        """The rows of a table (n, inputs) as this encoder's columns have them, before they are scaled."""
        if self.preparation is None or not self.preparation.columns:
            raise ArgumentError(
                "this encoder was trained on no table and knows no columns; give records as a tensor."
            )
        return rows_as(frame, self.preparation.columns)

    def _drawn(
        self,
        x: Tensor,
        rng: torch.Generator | None,
        key: Key | int | None,
        people: Sequence[bytes] | None,
        first: int,
    ) -> Tensor:
        r = self._exact(x)
        if self.perturbation.silent:
            return r.to(x.dtype)
        if rng is not None:
            return self._noised(r, self.perturbation.draws(r, rng)).to(x.dtype)
        own = None if people is None else people[first : first + len(x)]
        return self._noised(r, self._frozen(x, r.shape[1:], key, own)).to(x.dtype)

    def draws(
        self, records: Tensor | pd.DataFrame, key: Key, people: Iterable[object] | None = None
    ) -> Tensor:
        """The draws (n, ...) that belong to these people, for an encoder that was exported."""
        x = self._tensor(records)
        with torch.no_grad():
            shape = self.clean(x[:1]).shape[1:]
        return self._frozen(x, shape, key, None if people is None else name_people(people))

    def _frozen(
        self, x: Tensor, shape: Sequence[int], key: Key | int | None, people: Sequence[bytes] | None
    ) -> Tensor:
        if not isinstance(key, Key):
            deployed = self.preparation is not None or key is None
            require(not deployed, "key", f"a Key of at least {8 * LEAST} bits, from a file", key)
            key = rehearsed_key(int(key or 0))
        who = self.name_records(x) if people is None else people
        return self.perturbation.frozen(who, shape, key, self.fingerprint)

    def name_records(self, x: Tensor) -> list[bytes]:
        """What stands for a person where nobody has an id: the record on its grid."""
        step = self.input_step if self.preparation is None else self.preparation.step
        return [b"record" + row.tobytes() for row in cells(x, step).flatten(1).long().numpy()]

    def clean(self, x: Tensor) -> Tensor:
        """Representations without noise, of records before they are scaled. They are not for release."""
        return self._exact(x).to(x.dtype)

    def _exact(self, x: Tensor) -> Tensor:
        """The same; of prepared records in float64, so that a record's release never hangs on the records
        beside it: float32 sums differ with the size of a batch, and rounding can make a step of that."""
        if self.preparation is None:
            return represented(self.network, x, normed=self.normed)
        inputs = scaled(x.double(), *(self.get_buffer(name) for name in ("shift", "scale", "step")))
        exact = {n: t.double() if t.is_floating_point() else t for n, t in self.network.state_dict().items()}
        return represented(partial(functional_call, self.network, exact), inputs, normed=self.normed)

    def _released(self, x: Tensor, draws: Tensor) -> Tensor:
        r = self._exact(x)
        return (r if self.perturbation.silent else self._noised(r, draws)).to(x.dtype)

    def _noised(self, r: Tensor, draws: Tensor) -> Tensor:
        noisy = r.double() + self.perturbation.delta(draws.double())
        step = self.output_step * self.perturbation.scale
        return (noisy / step).round() * step if step else noisy

    @torch.no_grad()
    def logits(
        self, x: Tensor | pd.DataFrame, *, rng: torch.Generator | None = None, key: Key | int | None = None
    ) -> Tensor:
        """The task head's logits (n, classes), from representations as they are released."""
        if self.head is None:
            raise ArgumentError(
                "this encoder has no task head, since it was trained for no task; train one on its "
                'representations, or guard with utility="labels".'
            )
        out: Tensor = self.head(self(x, rng=rng, key=key))
        return out

    @property
    def fingerprint(self) -> str:
        """Equal for encoders that give the same representations alone: it decides the draws."""
        settings = [self.perturbation.kind, self.perturbation.scale, self.normed, self.input_step]
        prepared = self.preparation.table() if self.preparation else None
        words = json.dumps([dict(self.architecture), *settings, self.output_step, prepared], default=str)
        found = hashlib.sha256(words.encode())
        for name, tensor in sorted(self._tensors().items()):
            if not name.startswith("head."):
                found.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
                found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:32]

    def save(self, folder: str | Path) -> Path:
        """Write encoder.safetensors and encoder.json, from which `load_encoder` makes the same encoder."""
        for name, content in self.files().items():
            files.write(Path(folder) / name, content)
        return Path(folder)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        if self.head is not None:
            tensors |= {f"head.{name}": value for name, value in self.head.state_dict().items()}
        for name in ("mean", "deviation"):
            value = getattr(self.perturbation, name)
            tensors |= {} if value is None else {f"perturbation.{name}": value}
        if self.preparation is not None:
            tensors |= {f"preparation.{name}": value for name, value in self.preparation.tensors().items()}
        return tensors

    def files(self) -> dict[str, bytes]:
        """What `save` writes: the weights, and then the table that names them."""
        content = save_tensors({name: value.contiguous() for name, value in self._tensors().items()})
        table = {
            "format": FORMAT,
            "architecture": dict(self.architecture),
            "perturbation": {"kind": self.perturbation.kind, "scale": self.perturbation.scale},
            "normed": self.normed,
            "input_step": self.input_step,
            "output_step": self.output_step,
            "preparation": self.preparation.table() if self.preparation else None,
            "about": dict(self.about),
            "digest": hashlib.sha256(content).hexdigest()[:16],
        }
        return {TENSORS: content, TABLE: json.dumps(table, indent=1).encode()}


def name_people(ids: Iterable[object], first: int = 1) -> list[bytes]:
    """Each id as what a draw and a ledger know a person by: 7, 7.0 and "7" are one person. Records are
    counted from ``first``, for who has none."""
    found = []
    for row, one in enumerate(ids, start=first):
        text = str(one).strip()
        if not text or text == "<NA>" or (is_scalar(one) and pd.isna(one)):  # type: ignore[call-overload]
            raise DataError(
                f"every record must have an id where people are keyed by one, and record {row} has none; "
                f"give it one, or leave the record out."
            )
        found.append(b"person" + re.sub(r"^(-?\d+)\.0+$", r"\1", text).encode())
    return found


@dataclass(frozen=True, eq=False)
class Guarded:
    """An encoder, the privacy network that it was trained with (the stale attacker), and what was seen on
    the way: the losses of every epoch, and how much the network found in records held back."""

    encoder: Encoder
    privacy: nn.Module | None
    history: tuple[Mapping[str, float], ...]
    seconds: float = 0.0
