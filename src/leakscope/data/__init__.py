"""Datasets by name, and tables and arrays of your own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.fingerprints import same
from leakscope.data.activity import har, har561, har_folder
from leakscope.data.adult import adult, census42, uci_adult
from leakscope.data.arrays import digits, from_npz, health, mnist
from leakscope.data.binary import location30, purchase100, purchase_like, texas100, texas_like
from leakscope.data.cifar import cifar10, cifar100
from leakscope.data.faces import lfw, lfw_folder, pubfig_folder
from leakscope.data.files import FOLDER, sha256
from leakscope.data.gaussian import synthetic, synthetic_bayes
from leakscope.data.heart import heart
from leakscope.data.images import celeba, celeba_folder, image_folder, utkface, utkface_folder
from leakscope.data.loans import loans
from leakscope.data.medical import bone_age, covid, kidney, medical_mnist, pneumonia, retina, skin
from leakscope.data.ranges import with_ranges
from leakscope.data.speech import cremad, cremad_folder
from leakscope.data.tabular import from_csv
from leakscope.data.text import imdb, text_csv

__all__ = ["FOLDER", "LOADERS", "from_csv", "from_npz", "load", "synthetic", "synthetic_bayes", "tabled"]


_FUNCTIONS: tuple[Callable[..., Dataset], ...] = (
    adult, heart, digits, synthetic, health, cremad, celeba, utkface, uci_adult, celeba_folder,
    utkface_folder, cremad_folder, image_folder, cifar10, cifar100, medical_mnist, pneumonia, covid,
    skin, retina, kidney, bone_age, loans, har561, location30, purchase100,
    texas100, purchase_like, texas_like, census42, mnist, lfw, imdb, har, lfw_folder, pubfig_folder,
    har_folder, text_csv,
)  # fmt: skip
LOADERS: Mapping[str, Callable[..., Dataset]] = MappingProxyType(  # what each is: catalogue.DATA
    {function.__name__.replace("_", "-"): function for function in _FUNCTIONS}
)
SHIPPED = ("adult", "heart")  # files of the package itself


def load(name: str, *, path: str | Path | None = None, **options: object) -> Dataset:
    """The dataset called ``name`` (see ``LOADERS``), from ``path`` if it is not where it is expected."""
    if name not in LOADERS:
        raise DataError(
            f"data must be one of {', '.join(LOADERS)}, got {name!r}; "
            f"for a table or arrays of your own use from_csv or from_npz."
        )
    function = LOADERS[name]
    if path is not None:
        options["path"] = path
    known = inspect.signature(function).parameters
    for option in options:
        if option not in known:
            raise ArgumentError(f"{name} has no option {option!r}; it has: {', '.join(known) or 'none'}.")
    return function(**options)


def tabled(table: Mapping[str, Any]) -> Dataset:
    """The records a plan's ``data`` table names: a known name, ``csv`` or ``npz`` with a path; the
    columns in ``without`` are taken out of the inputs, numbers in ``bins`` cut into ranges. ``by`` names the
    column whose values are split in place of records, such as a patient's number; ``train`` and ``public``
    then count people. ``raw`` records are not standardised.

    The last file that was read is kept: an audit asks for the same records in every cell."""
    apart = ("name", "without", "by", "sha256", "raw")
    options = {key: value for key, value in table.items() if key not in apart}
    name, digest = table["name"], _digest(table)
    if "sha256" in table and not same(str(table["sha256"]), digest or sha256(table.get("path", ""))):
        raise DataError(
            f"{table.get('path')} has changed since the plan was written, or another user or machine wrote "
            f"the plan; audit it again, or leave sha256 out of the plan."
        )
    own: dict[str, Callable[..., Dataset]] = {"csv": from_csv, "npz": from_npz}
    bins = {} if name in own else options.pop("bins", {})
    kept = _kept(own.get(name) or LOADERS.get(name), repr(options), digest) if digest else []
    if not kept:
        kept.append(own[name](**options) if name in own else load(name, **options))
    records = with_ranges(kept[0], bins) if bins else kept[0]
    records = replace(records, raw=True) if table.get("raw") else records
    return records.without(*table["without"]) if table.get("without") else records


@lru_cache(maxsize=1)
def _kept(loader: Callable[..., Dataset] | None, options: str, digest: str) -> list[Dataset]:
    """A place for what was read last. A new place takes the former away before it is filled: one table at a
    time is in memory."""
    return []


def _digest(table: Mapping[str, Any]) -> str:
    """What stands in the one file that is read; empty where it may be another, or several."""
    if table["name"] in ("csv", "npz"):
        return sha256(table.get("path", ""))
    return "shipped" if table["name"] in SHIPPED and "path" not in table else ""
