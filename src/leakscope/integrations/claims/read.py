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
from leakscope.defenses.deployed import SVTPrivacy
from leakscope.integrations.claims.answer import SIZE, Configuration, is_number
from leakscope.integrations.claims.flower import AdaptiveClipping, FixedClipping, LocalDpMod
from leakscope.integrations.claims.hocon import parse_hocon
from leakscope.integrations.claims.jobs import read_filters
from leakscope.integrations.claims.nvflare import FILTERS, KINDS, Filter, Filters, build_filter
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
Pairs = Sequence[tuple[str, Any]]
MARKS = {
    "flower-adaptive": {"initial_clipping_norm", "target_clipped_quantile", "clip_norm_lr"},
    "opacus": {"max_grad_norm", "target_delta", "target_epsilon", "poisson_sampling"},
    "flower-local": {"sensitivity", "epsilon"},
    "flower-fixed": {"noise_multiplier", "clipping_norm"},
}
NAMED = "the app gives these values to the package's own classes, and uses them: a run config only names them"


def read_source(
    source: str | Path, settings: Mapping[str, Any]
) -> tuple[str, Configuration, tuple[str, ...]]:
    """The framework and the configuration: of a framework's name with settings, or of a file, whose values
    the settings replace; and what a file cannot show, on which all that it says depends."""
    name = str(source)
    if name in FRAMEWORKS:
        return name, build(name, settings), ()
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
        listed, only_if = read_filters(path.name, found)
        return "nvflare", build("nvflare", settings, [*listed.items()]), only_if
    framework = found.pop("framework", None)
    if not isinstance(framework, str) or framework not in FRAMEWORKS:
        raise DataError(
            f"{path.name} must have task_result_filters (NVFlare), or 'framework' as one of "
            f"{', '.join(FRAMEWORKS)}, got {reprlib.repr(framework)}."
        )
    return framework, build(framework, settings, [*found.items()], strict=True), ()


def parse_settings(settings: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Settings as a table, or typed as name=value."""
    if isinstance(settings, Mapping):
        return dict(settings)
    bad = [f"--set {text!r} must be name=value." for text in settings if "=" not in text]
    refuse_all(bad, "--set")
    found: dict[str, Any] = {}
    for text in settings:
        name, _, value = (part.strip() for part in text.partition("="))
        try:
            one = json.loads(value)
        except ValueError:  # no JSON, or a number of thousands of digits
            one = value
        if found.setdefault(name, one) != one:
            raise DataError(_twice(name, found[name], one))
    return found


def build(
    framework: str, given: Mapping[str, Any], also: Pairs = (), *, strict: bool = False
) -> Configuration:
    """The configuration from settings that must all be known, and ``also`` from a file's, of which only those
    that are known are taken, unless it is ``strict``; every reason at once why it cannot be."""
    kind = FRAMEWORKS[framework]
    reasons: list[str] = []
    if kind is Filters:
        whole, listed = ({**dict(also), **given}, {}) if strict else (dict(given), dict(also))
        given, also = _with_filter(whole, listed, reasons), ()
    known = _known(kind)
    values: dict[str, Any] = {}
    for pairs, must in (([*given.items()], True), (also, strict)):
        chosen = set(values)  # an option decides, whatever a file says
        for name, value in pairs:
            field = known.get(_plain(name))
            if field is None and must:
                names = ", ".join(field.name for field in fields(kind))
                reasons.append(f"{framework} has no setting {name!r}; it has {names}.")
            elif field is None or field.name in chosen:
                continue
            elif values.setdefault(field.name, value) != value:
                reasons.append(_twice(field.name, values[field.name], value))
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


def _known(kind: type[Any]) -> dict[str, Field[Any]]:
    return {alias: field for field in fields(kind) for alias in (field.name, *field.metadata["names"])}


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").removeprefix("dp_")


def _twice(name: str, one: Any, other: Any) -> str:
    return f"{name} is given as {reprlib.repr(one)} and as {reprlib.repr(other)}; give it once."


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


def _flat(config: Mapping[str, Any]) -> Pairs:
    """Flower's run config may be nested: the last part of a name counts."""
    found: list[tuple[str, Any]] = []
    for name, value in config.items():
        found += _flat(value) if isinstance(value, Mapping) else [(name.rsplit(".", 1)[-1], value)]
    return found


def _flower(
    path: Path, config: Pairs, settings: Mapping[str, Any]
) -> tuple[str, Configuration, tuple[str, ...]]:
    """Which mechanism a run config of Flower sets, by the settings that only one of them has."""
    names = {_plain(name) for name in (*dict(config), *settings)}
    every = set().union(*MARKS.values())
    framework = next((one for one, marks in MARKS.items() if names & marks), "")
    if not framework:
        raise DataError(
            f"{path.name} sets no differential privacy under [tool.flwr.app.config]: none of "
            f"{', '.join(sorted(every))}; name the framework and give settings by --set."
        )
    if more := sorted(names & every - {*_known(FRAMEWORKS[framework])}):
        raise DataError(
            f"{path.name} sets {', '.join(more)} too, which {framework} does not have; name the one that is "
            f"asked about, such as leakscope claim {framework}, and give its settings by --set."
        )
    seeds = [
        f"{name} = {reprlib.repr(value)} does not seed the noise: who knows its seed takes it away"
        for name, value in config
        if "seed" in _plain(name).split("_")
    ]
    return framework, build(framework, settings, config), (NAMED, *seeds)


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
    kinds = KINDS if reasons else _kinds(made, listed, reasons)
    return {**given, **extra, "filters": tuple(made), "kinds": kinds}


def _kinds(
    made: Sequence[Filter], listed: Sequence[Mapping[str, Any]], reasons: list[str]
) -> tuple[str, ...]:
    """What every filter with noise acts on."""
    kinds = KINDS
    for one, table in zip(made, listed, strict=True):
        named = (table.get("args") or {}).get("data_kinds") or KINDS
        if not isinstance(named, list | tuple) or not set(map(str, named)) <= set(KINDS):
            reasons.append(f"data_kinds must be a list of {', '.join(KINDS)}, got {reprlib.repr(named)}.")
        elif isinstance(one, SVTPrivacy):
            kinds = tuple(kind for kind in kinds if kind in named)
    if not kinds:
        reasons.append("no kind of result passes every SVTPrivacy: give them the same data_kinds.")
    return kinds
