"""From a file or options, as people have them, to a configuration: what does not fit is said all at once."""

from __future__ import annotations

import json
import reprlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from leakscope.core import files
from leakscope.core.errors import DataError, LeakscopeError, refuse_all
from leakscope.integrations.claims.answer import SIZE, Configuration, is_number
from leakscope.integrations.claims.flower import AdaptiveClipping, FixedClipping, LocalDpMod
from leakscope.integrations.claims.hocon import parse_hocon
from leakscope.integrations.claims.nvflare import FILTERS, Filter, Filters, build_filter
from leakscope.integrations.claims.records import JaxTraining, OpacusTraining, TffAggregator

FRAMEWORKS: dict[str, type[Any]] = {
    "flower-local": LocalDpMod,
    "flower-fixed": FixedClipping,
    "flower-adaptive": AdaptiveClipping,
    "nvflare": Filters,
    "opacus": OpacusTraining,
    "tff": TffAggregator,
    "jax-privacy": JaxTraining,
}
TRAIN = ("train", "*")


def read_source(source: str | Path, settings: Mapping[str, Any]) -> tuple[str, Configuration]:
    """The framework and the configuration: of a framework's name with settings, or of a file, whose values
    the settings replace."""
    name = str(source)
    if name in FRAMEWORKS:
        return name, build(name, settings, {})
    path = Path(source)
    if not path.is_file():
        raise DataError(
            f"{name!r} is neither a framework nor a file; frameworks are {', '.join(FRAMEWORKS)}, files a "
            f"pyproject.toml with [tool.flwr.app.config], or a job config as .json, .conf or .yml."
        )
    found = _parsed(path)
    if path.suffix == ".toml":
        for name in ("tool", "flwr", "app", "config"):
            inner = found.get(name)
            found = inner if isinstance(inner, dict) else {}
        return _flower(path, _flat(found), settings)
    if "task_result_filters" in found:
        return "nvflare", build("nvflare", settings, _filters(path, found))
    framework = found.pop("framework", None)
    if not isinstance(framework, str) or framework not in FRAMEWORKS:
        raise DataError(
            f"{path.name} must have task_result_filters (NVFlare), or 'framework' as one of "
            f"{', '.join(FRAMEWORKS)}, got {reprlib.repr(framework)}."
        )
    return framework, build(framework, {**found, **settings}, {})


def parse_settings(settings: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Settings as a table, or typed as name=value."""
    if isinstance(settings, Mapping):
        return dict(settings)
    bad = [f"--set {text!r} must be name=value." for text in settings if "=" not in text]
    refuse_all(bad, "--set")
    found = {}
    for text in settings:
        name, _, value = text.partition("=")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:  # no JSON, or a number of thousands of digits
            found[name.strip()] = value
    return found


def build(framework: str, given: Mapping[str, Any], also: Mapping[str, Any]) -> Configuration:
    """The configuration from settings that must all be known, and ``also`` from a file's, of which only those
    that are known are taken; every reason at once why it cannot be."""
    kind = FRAMEWORKS[framework]
    reasons: list[str] = []
    if kind is Filters:
        given = _with_filter(dict(given), also, reasons)
    known = {alias: field for field in fields(kind) for alias in (field.name, *field.metadata["names"])}
    values: dict[str, Any] = {}
    for source, strict in ((also, False), (given, True)):
        for name, value in source.items():
            field = known.get(name.lower().replace("-", "_").removeprefix("dp_"))
            if field is not None:
                values[field.name] = value
            elif strict:
                names = ", ".join(field.name for field in fields(kind))
                reasons.append(f"{framework} has no setting {name!r}; it has {names}.")
    reasons += [reason for field in fields(kind) if (reason := _fault(framework, field, values))]
    if not reasons:
        try:
            made: Configuration = kind(**values)
        except LeakscopeError as error:
            reasons.append(str(error))
        else:
            return made
    refuse_all(reasons, "the configuration")
    raise AssertionError


def _fault(framework: str, field: Field[Any], values: Mapping[str, Any]) -> str:
    """Why a value cannot be, or nothing."""
    words, holds = field.metadata["rule"]
    if field.name not in values:
        needed = field.default is MISSING
        return (
            f"{framework} needs {field.name}: {words}. Give it, such as --set {field.name}=..."
            if needed
            else ""
        )
    value = values[field.name]
    number = any(word in str(field.type) for word in ("float", "int"))
    fits = is_number(value) if number else True
    fits = fits or (value is None and "None" in str(field.type))
    if str(field.type).startswith("int") and fits and value is not None:
        fits = float(value).is_integer()
    if not fits or not holds(value):
        size = f" and {SIZE}" if type(value) in (int, float) and not is_number(value) else ""
        return f"{framework}: {field.name} must be {words}{size}, got {reprlib.repr(value)}."
    return ""


def _parsed(path: Path) -> dict[str, Any]:
    text = files.read(path).decode(errors="replace")
    name, parse = FORMATS.get(path.suffix, ("JSON", json.loads))
    try:
        found = parse(text)
    except ValueError as error:  # of any format, or a number of thousands of digits
        raise DataError(f"{path.name} cannot be read as {name}: {' '.join(str(error).split())}.") from error
    except RecursionError:
        raise DataError(f"{path.name} cannot be read as {name}: its tables are too deep.") from None
    if not isinstance(found, dict):
        raise DataError(f"{path.name} must hold a table of settings, got a {type(found).__name__}.")
    return found


def _parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ValueError("PyYAML is not installed; pip install leakscope[yaml]") from None
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError("it repeats a part by an alias, which is not read here")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


FORMATS: dict[str, tuple[str, Callable[[str], Any]]] = {
    ".toml": ("TOML", tomllib.loads),
    ".conf": ("HOCON as NVFlare writes it", parse_hocon),
    ".yml": ("YAML", _parse_yaml),
    ".yaml": ("YAML", _parse_yaml),
}


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flower's run config may be nested: the last part of a name counts."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value) if isinstance(value, Mapping) else {name.rsplit(".", 1)[-1]: value}
    return found


def _flower(path: Path, config: dict[str, Any], settings: Mapping[str, Any]) -> tuple[str, Configuration]:
    """Which of Flower's mechanisms a run config sets, by the settings that only one of them has."""
    names = {name.lower().replace("-", "_").removeprefix("dp_") for name in (*config, *settings)}
    marks = {
        "flower-adaptive": {"initial_clipping_norm", "target_clipped_quantile", "clip_norm_lr"},
        "flower-local": {"sensitivity", "epsilon"},
        "flower-fixed": {"noise_multiplier", "clipping_norm"},
    }
    for framework, needed in marks.items():
        if names & needed:
            return framework, build(framework, settings, config)
    raise DataError(
        f"{path.name} sets no differential privacy under [tool.flwr.app.config]: none of "
        f"{', '.join(sorted(set().union(*marks.values())))}; name the framework and give settings by --set."
    )


def _filters(path: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    """NVFlare's own list: the filters of training results, and those that act elsewhere."""
    inside: list[Mapping[str, Any]] = []
    elsewhere: list[str] = []
    listed = {name: found.get(name, []) for name in ("task_result_filters", "task_data_filters")}
    bad = [
        f"{path.name}: {name} must be a list of groups of filters, got {reprlib.repr(groups)}."
        for name, groups in listed.items()
        if not isinstance(groups, list)
    ]
    refuse_all(bad, path.name)
    groups = [(group, name == "task_result_filters") for name, found in listed.items() for group in found]
    for group, sent in groups:
        shaped = isinstance(group, Mapping) and isinstance(group.get("filters"), list)
        if not shaped or not all(isinstance(one, Mapping) for one in group["filters"]):
            raise DataError(f"{path.name}: each group of filters must have 'filters', a list of tables.")
        if not isinstance(group.get("tasks", []), list):
            raise DataError(
                f"{path.name}: tasks of a group must be a list of names, got {reprlib.repr(group['tasks'])}."
            )
        acts = sent and any(task in TRAIN for task in group.get("tasks", []))
        for one in group["filters"]:
            if acts:
                inside.append(one)
            else:
                elsewhere.append(str(one.get("path") or one.get("name")).rsplit(".", 1)[-1])
    if not inside:
        raise DataError(f"{path.name} has no filter on results of training: updates go out as they are.")
    return {"listed": inside, "elsewhere": tuple(elsewhere)}


def _with_filter(given: dict[str, Any], also: Mapping[str, Any], reasons: list[str]) -> dict[str, Any]:
    """The settings with filters made of a file's list, or of one named as filter=... with its arguments."""
    entries = given.get("entries", given.get("parameters"))
    made: list[Filter] = []
    listed: Sequence[Mapping[str, Any]] = also.get("listed", ())
    if not listed and "filter" in given:
        own = {
            name: given.pop(name)
            for name in [*given]
            if name not in ("entries", "parameters", "rounds", "num_rounds")
        }
        listed = [{"name": own.pop("filter"), "args": own}]
    for one in listed:
        name = str(one.get("path") or one.get("name"))
        try:
            made.append(build_filter(name, one.get("args") or {}, entries))
        except LeakscopeError as error:
            reasons.append(str(error))
    if not listed:
        names = ", ".join(FILTERS)
        reasons.append(
            f"nvflare needs filter: one of {names}. Give it, such as --set filter={[*FILTERS][1]}."
        )
    extra = {"elsewhere": also["elsewhere"]} if "elsewhere" in also else {}
    return {**given, **extra, "filters": tuple(made)}
