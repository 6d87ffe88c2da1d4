"""The architecture as facts: who may import whom, what is public, what every part promises."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import leakscope
from leakscope.catalogue import CATALOGUE, DATA, roles

SOURCE = Path(leakscope.__file__).parent
LEVELS = [  # imports point from later to earlier only
    {"errors", "catalogue", "options"},
    {"dataset", "rng", "store", "bounds"},
    {"core"},
    {"gradients", "models", "data", "recording"},
    {"defenses"},
    {"training", "channels", "guards", "representations"},
    {"games", "agreement"},
    {"attacks"},
    {"referee"},
    {"measures"},
    {"epsilon", "canary", "membership", "localisation", "guarding"},
    {"judged"},
    {"plan", "svg"},
    {"averages"},
    {"summary", "experiment", "charts", "flower"},
    {"sections", "selfchecks"},
    {"federations", "layer_maps", "guard_pages", "gating", "exports", "pages"},
    {"report", "comparison", "overview"},
    {"audits", "engines", "sweep", "published"},
    {"recorded_audits", "layer_audits", "guard_audits"},
    {"tuning", "headlines"},
    {"terminal"},
    {"cli"},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}


def imports(path: Path) -> set[str]:
    """The parts of leakscope that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("leakscope.")}
        elif isinstance(node, ast.ImportFrom) and node.module == "leakscope":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leakscope."):
            found.add(str(node.module).split(".")[1])
    return found


FILES = [p for p in SOURCE.rglob("*.py") if p.relative_to(SOURCE).parts[0] != "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in imports(path) - {part}:
        assert LEVEL[other] <= LEVEL[part], f"{part} imports {other}"
    if part == "attacks":
        assert "measures" not in imports(path)


def test_the_public_names_are_sorted_and_exactly_the_catalogue():
    assert leakscope.__all__ == sorted(
        leakscope.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)
    )
    assert set(leakscope.__all__) == set(CATALOGUE)
    for name in leakscope.__all__:
        assert getattr(leakscope, name).__name__ == name


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_the_catalogue_says_what_the_docstring_says(name):
    words = " ".join((inspect.getdoc(getattr(leakscope, name)) or "").split())
    start = CATALOGUE[name].line.rstrip(".")
    assert words.startswith(start), words[:120]


def test_the_catalogue_lists_the_datasets_that_can_be_loaded():
    from leakscope.data import LOADERS

    assert list(DATA) == list(LOADERS)


PARTS = sorted({*roles("attack", "head", "reduction", "defense", "model")} - {"Within"})


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_frozen_and_its_repr_evaluates_back(name):
    made = getattr(leakscope, name)()
    assert dataclasses.is_dataclass(made)
    assert made.__dataclass_params__.frozen
    assert eval(repr(made), vars(leakscope) | {n: getattr(leakscope, n) for n in leakscope.__all__}) == made


def test_importing_leakscope_and_its_help_needs_no_torch():
    code = (
        "import sys, leakscope, leakscope.cli; sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_is_unpickled_and_nothing_swallowed():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for word in (
            "import pickle",
            "allow_pickle=True",
            "weights_only=False",
            "except Exception",
            "except:",
        ):
            assert word not in text, f"{path.name}: {word}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_prints_or_logs_below_the_command_line(path):
    if path.parent.name == "cli":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print"
