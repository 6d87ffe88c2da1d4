"""What an attack on representations says of itself, so that whoever chooses attacks asks no class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from leakscope.core.dataset import Dataset
from leakscope.core.nouns import Attack

OF_VALUES = ("attribute", "property", "distribution")  # the games, in the papers' words, that tell a value
OF_PEOPLE = ("user",)


@dataclass(frozen=True)
class Traits:
    """``slow``: it optimises, or trains models of its own, and is left out where draws are averaged.
    ``censored_only``: it undoes what a guard did, and has nothing to do where there is none.
    ``needs_head``: it looks at the encoder's task head, ``needs_classes``: as one of classes."""

    slow: bool = False
    censored_only: bool = False
    needs_head: bool = False
    needs_classes: bool = False


def traits(attack: Attack) -> Traits:
    """What the attack says of itself in its attribute ``traits``; without one it has none of them."""
    own: Traits = getattr(attack, "traits", Traits())
    return own


@runtime_checkable
class Shadowing(Protocol):
    """An attack that trains models like the one it attacks."""

    def among(self, asked: Dataset) -> Attack:
        """The attack in a rehearsal, with the candidates of the real game among its records."""
        ...

    def on_plain(self, epochs: int) -> Attack:
        """The attack on a model that was trained plainly: its shadows are too."""
        ...
