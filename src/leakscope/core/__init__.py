"""The nouns of every game, and what all other rooms stand on: records, randomness, errors, files."""

from __future__ import annotations

from importlib import import_module


def __getattr__(name: str) -> object:  # the nouns need torch, and help needs none of it
    return getattr(import_module("leakscope.core.nouns"), name)
