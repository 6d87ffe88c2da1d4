"""What is installed: the wheel's contents, and a package that needs nothing optional."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST = 2_000_000  # bytes
OPTIONAL = ("flwr", "nvflare", "ray", "opacus", "opensmile", "soundfile", "pyarrow", "openpyxl", "PIL")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
IMPORT_ALL = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import leakscope
from leakscope.core.errors import LeakscopeError
for module in pkgutil.walk_packages(leakscope.__path__, "leakscope."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except (ImportError, LeakscopeError) as error:
        print(module.name, str(error).replace("\\n", " "), sep=": ")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    setuptools = pytest.importorskip("setuptools", reason="setuptools builds the wheel")
    if int(setuptools.__version__.partition(".")[0]) < 77:
        pytest.skip("setuptools 77 knows the licence of pyproject.toml")
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-c", BUILD, str(folder / "dist")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "dist").glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_is_small_and_has_what_is_needed_and_no_more(wheel):
    names = wheel.namelist()
    assert Path(wheel.filename).stat().st_size < MOST
    for needed in ("py.typed", "data/adult.csv.gz", "data/heart4.csv.gz", "run/papers/gradients.toml"):
        assert f"leakscope/{needed}" in names
    assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in names if ".dist-info/" in name}
    assert not [name for name in names if "measured/" in name or name.endswith("printed.csv")]
    assert not [name for name in names if not name.startswith("leakscope")]
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    pages = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.html")}
    assert pages <= set(names)


@pytest.mark.slow
def test_every_module_is_imported_with_the_core_alone():
    """What needs an optional package says how to install it, and nothing else fails."""
    command = [sys.executable, "-c", IMPORT_ALL, *OPTIONAL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if "pip install" not in line]
    assert not told, told


def test_every_package_that_is_imported_is_asked_for():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *settings["dependencies"],
        *(name for extra in settings["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[\[<>=!]", line)[0].lower().replace("_", "-") for line in asked}
    trees = (ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py"))
    found = {name.partition(".")[0] for tree in trees for node in ast.walk(tree) for name in _imported(node)}
    homes = packages_distributions()
    foreign = {
        module: homes.get(module, [module]) for module in found - sys.stdlib_module_names - {"leakscope"}
    }
    unasked = {m for m, homes in foreign.items() if not {h.lower().replace("_", "-") for h in homes} & names}
    assert unasked == set()


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
