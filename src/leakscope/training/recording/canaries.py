"""Canaries: records, people or clients that a fair coin puts into a training or leaves out of it.

Whoever trains is told the names of those to put in and nothing else. The coins lie beside the recording, for
whoever audits it: `measures.one_run` makes a lower bound of epsilon of them and of an attack's scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from leakscope.core import files
from leakscope.core.errors import DataError, require
from leakscope.core.rng import seeded
from leakscope.training.recording.index import is_word

ENDING = ".canaries.json"  # after the name of the folder that they lie beside
FORMAT, VERSION = "leakscope canaries", 1


@dataclass(frozen=True)
class Canaries:
    """Which canaries were put into a training, each by the toss of a fair coin.

        canaries = Canaries.toss(names, seed=7)    # before the training
        canaries.write("run")                      # beside the recording
        train([record for name, record in records if name in canaries.included])

    A canary is what one name stands for: a record, all records of a person, or a client.
    """

    coins: Mapping[str, bool]
    seed: int

    @staticmethod
    def toss(names: Sequence[str], *, seed: int) -> Canaries:
        """A coin for each name, in this order."""
        words = len(names) > 0 and all(map(is_word, names))
        require(words, "Canaries.toss: names", "one printable name or more", list(names)[:5])
        require(len(set(names)) == len(names), "Canaries.toss: names", "all different", "some twice")
        tossed = torch.randint(2, (len(names),), generator=seeded(seed, "canaries")).bool().tolist()
        return Canaries(dict(zip(names, tossed, strict=True)), seed)

    @property
    def included(self) -> frozenset[str]:
        """The names of those to put in."""
        return frozenset(name for name, inside in self.coins.items() if inside)

    def write(self, folder: str | Path) -> None:
        """Beside the folder of the recording, for its user alone; other coins that lie there stay."""
        path = _beside(folder)
        if path.exists() and Canaries.read(folder) != self:
            raise DataError(f"{str(path)!r} holds other coins, which a training may have used; keep them.")
        content = {"format": FORMAT, "version": VERSION, "seed": self.seed, "coins": dict(self.coins)}
        files.write(path, json.dumps(content), private=True)

    @staticmethod
    def read(folder: str | Path) -> Canaries:
        """The coins beside a recording, if they are what their seed tosses."""
        path = _beside(folder)
        try:
            content = json.loads(files.read(path))
        except FileNotFoundError:
            raise DataError(f"there are no coins, {str(path)!r}; toss them before the training.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{str(path)!r} cannot be read as JSON ({error}).") from None
        head = (content.get("format"), content.get("version")) if isinstance(content, dict) else ()
        coins, seed = (content["coins"], content["seed"]) if _whole(content) else ({}, 0)
        if head != (FORMAT, VERSION) or not coins or coins != Canaries.toss([*coins], seed=seed).coins:
            raise DataError(
                f"{str(path)!r} is damaged: it does not hold the coins that its seed tosses; restore it."
            )
        return Canaries(coins, seed)


def _beside(folder: str | Path) -> Path:
    path = Path(folder)
    return path.with_name(path.name + ENDING)


def _whole(content: object) -> bool:
    """Whether there are a seed and coins, whatever they say."""
    return (
        isinstance(content, dict)
        and type(content.get("seed")) is int
        and isinstance(coins := content.get("coins"), dict)
        and all(is_word(name) and type(inside) is bool for name, inside in coins.items())
    )
