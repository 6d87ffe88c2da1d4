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
from leakscope.core.catalogue import CATALOGUE, DATA, roles

SOURCE = Path(leakscope.__file__).parent
ROOMS = [  # each imports only those above it
    "core", "data", "models", "gradients", "defenses", "training", "guards", "games", "attacks", "measures",
    "results", "report", "audits", "run", "integrations", "cli",
]  # fmt: skip


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
        assert ROOMS.index(other) < ROOMS.index(part), f"{part} imports {other}"
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


def test_there_are_at_most_sixteen_rooms_and_no_loose_module():
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(ROOMS)
    assert len(ROOMS) <= 16
    assert [path.name for path in SOURCE.glob("*.py")] == ["__init__.py"]


READERS = [
    path
    for path in FILES
    if path.relative_to(SOURCE).parts[0] in ("results", "report", "cli")
    or (
        path.relative_to(SOURCE).parts[0] == "audits"
        and ("page" in path.parts or path.name in ("page.py", "kind.py"))
    )
    or path.name in ("tuning.py", "search.py", "published.py")
    or path.parent.name == "api"
]
RESULTS = ("found", "result", "results", "estimates", "scores", "run", "made")  # what holds a result, by name


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", READERS, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_result_is_read_by_a_key(path):
    """The models of what was found are read by attributes that mypy checks; format1.py alone reads tables."""
    if "format1" in path.parts:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        keyed = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        keyed = keyed and isinstance(node.slice.value, str)
        got = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"
        got = got and bool(node.args) and isinstance(node.args[0], ast.Constant)
        if keyed or got:
            whole = ast.unparse(node)
            assert _root(node) not in RESULTS or ".cell." in whole, f"{path.name}:{node.lineno}: {whole}"


def test_a_kind_is_known_by_name_in_its_own_folder_and_the_registry_alone():
    from leakscope.core.catalogue import KINDS

    names = {name for entry in KINDS.values() for name in entry.games}
    for path in FILES:
        place = path.relative_to(SOURCE).parts
        if place[0] in ("audits", "core") or "format1" in place or path.name in ("plan.py", "published.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value not in names, f"{path.name}:{node.lineno} knows {node.value!r}"


def test_no_public_name_is_a_literal_outside_its_module_requests_and_plans():
    """An object says what it is; nobody decides by what it is called."""
    names = {
        name
        for name, entry in CATALOGUE.items()
        if entry.role in ("attack", "defense", "guard", "head", "reduction")
    }
    allowed = ("request.py", "plan.py", "tuning.py", "catalogue.py", "__init__.py", "cell.py")
    for path in FILES:
        if path.name in allowed or "papers" in path.parts or path.parent.name in ("cli", "api"):  # headings
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                own = CATALOGUE[node.value].module.endswith(path.stem) if node.value in names else False
                assert node.value not in names or own, f"{path.name}:{node.lineno}: {node.value!r}"


TEMPLATES = sorted(SOURCE.rglob("*.html"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_template_decides_on_prose(path):
    """A condition may ask whether something is there, or compare numbers; it compares no words of a person and
    searches in none."""
    import re

    for tag in re.findall(r"{%-?\s*(?:el)?if\s(.*?)-?%}", path.read_text(encoding="utf-8"), re.S):
        assert not re.search(r"""["'][A-Za-z ]+["']\s+in\s""", tag), f"{path.name}: {tag}"
        assert ".defense ==" not in tag
        assert ".method" not in tag
        assert ".attack ==" not in tag


def test_every_class_name_is_used_once():
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_functions_fit_a_screen(path):
    if path.parent.name == "cli":
        return  # a command's options are its signature
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (node.end_lineno or 0) - (body[0].lineno if body else node.lineno) + 1
            assert lines <= 60, f"{path.name}: {node.name} has {lines} lines"


PARTS = sorted({*roles("attack", "head", "reduction", "defense", "model", "estimator")} - {"Within"})


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_frozen_and_its_repr_evaluates_back(name):
    made = getattr(leakscope, name)()
    assert dataclasses.is_dataclass(made)
    assert made.__dataclass_params__.frozen
    assert eval(repr(made), vars(leakscope) | {n: getattr(leakscope, n) for n in leakscope.__all__}) == made


def test_importing_leakscope_and_its_help_needs_no_torch():
    code = (
        "import sys, leakscope; from leakscope.cli import app; app(['--help'], standalone_mode=False); "
        "sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (shown.returncode, "leakscope audit adult" in shown.stdout) == (0, True)


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
