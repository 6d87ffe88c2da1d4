"""Randomness is an argument: a seed and a role give a generator, a generator gives more.

Roles are hashed, so a role's stream depends on nothing but the seed and its own name:
adding a role, or running cells in another order or on another process, changes no number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def seeded(seed: int, *roles: str | int) -> torch.Generator:
    """The generator of one role, such as ``seeded(0, "split")``."""
    digest = hashlib.sha256(repr((seed, *roles)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def fork(rng: torch.Generator, n: int) -> list[torch.Generator]:
    """``n`` generators that go on independently of each other and of ``rng``."""
    return [torch.Generator().manual_seed(integer(rng)) for _ in range(n)]


def integer(rng: torch.Generator) -> int:
    """A seed for a library that takes integers (scikit-learn takes 32 bits)."""
    return int(torch.randint(2**31 - 1, (1,), generator=rng))


def dealt(sets: int, n: int, each: int, rng: torch.Generator) -> torch.Tensor:
    """(sets, n): which of ``n`` things stand in which set, every one in ``each`` of them at random."""
    return torch.rand(sets, n, generator=rng).argsort(0) < each


def laplace(like: torch.Tensor, scale: float, rng: torch.Generator) -> torch.Tensor:
    """Laplace numbers of this scale, their deviation its root-2-fold: the difference of two exponentials,
    which is never infinite."""
    one, other = (torch.empty_like(like).exponential_(generator=rng) for _ in range(2))
    return scale * (one - other)


def initialised(make: Callable[[], Module], rng: torch.Generator) -> Module:
    """What ``make`` makes, its random weights drawn from ``rng`` and not from torch's global state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(rng))
        return make()
