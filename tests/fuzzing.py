"""How the fuzz tests break what was whole, count their cases and judge what happens."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from leakscope.core.errors import LeakscopeError

TIMES = int(os.environ.get("LEAKSCOPE_FUZZ", "1"))  # how many times the cases below are run
CASES: Mapping[str, int] = MappingProxyType(
    {
        "plans as documents": 1_200,
        "plans as text": 500,
        "plans with their data": 200,
        "data tables of plans": 300,
        "appetites": 500,
        "appetites as text": 200,
        "tables": 900,
        "bytes of tables": 300,
        "indexes of recordings": 500,
        "recordings that go on": 200,
        "journals of recordings": 200,
        "files of recordings": 300,
        "headers of safetensors": 300,
        "encoders": 500,
        "texts for encoders": 50,
        "results that are loaded": 300,
        "folders that are reported": 100,
        "results that are reported": 150,
    }
)
JUNK = (
    None, True, False, -1, 0, 1, 2, 3.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf"), 2**63, -(2**70),
    10**400, "", " ", "x", "name", "*", "../up", "/etc/passwd", "os.system", "builtins.eval", "a.b.c", "..", "__class__",
    "\x00", "\x1b[31mred", "a\nb", "\u202eevil", "\ud800", "é" * 300, "x" * 10_000, "<script>alert(1)</script>",
    "{{ 7 * 7 }}", [], {}, [1], ["x"], [[]], [None], {"a": 1}, {"name": "MLP"}, {"name": "os.system"}, {"name": 3},
    {"name": {"name": "MLP"}}, [{"name": "Sign"}], [{"name": "MLP"}, 3],
)  # fmt: skip


BYTES = (b"", b"\x00", b'"', b"'''", b"[", b"{" * 50, b"\xff\xfe", b"\r\n", b"=", b"\xe9", b"\xef\xbb\xbf")


def fuzz(name: str, strategy: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """As many cases as ``CASES`` says, the same in every run, counted as they happen."""
    wanted, ran = CASES[name] * TIMES, []

    @settings(
        max_examples=wanted,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(case: Any) -> None:
        ran.append(name)
        check(case)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # of cases too long to print
        each()
    print(f"{len(ran)} cases of {name}")
    assert len(ran) >= wanted


def works_or_says_why(call: Callable[[], Any]) -> LeakscopeError | None:
    """The call works, or is refused in one printable sentence; anything else goes through."""
    try:
        call()
    except LeakscopeError as error:
        message = str(error)
        assert message.isprintable(), ascii(message)
        assert message.endswith("."), message
        assert len(message) < 5_000
        return error
    return None


def nested(depth: int) -> list[Any]:
    """Lists in lists, deeper than any document needs."""
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


junk = st.one_of(
    st.sampled_from(JUNK), st.text(max_size=12), st.integers(), st.floats(), st.just(60).map(nested)
)


def _spots(node: Any) -> list[tuple[Any, Any]]:
    """Every place in a document that holds something, as (container, key)."""
    found = []
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        found.append((node, key))
        if isinstance(node[key], dict | list):
            found += _spots(node[key])
    return found


@st.composite
def broken(draw: st.DrawFn, whole: Any, values: st.SearchStrategy[Any] = junk) -> Any:
    """A whole document with one to three places of it changed: put in, taken out, twice, renamed, wrapped."""
    document = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        spots = _spots(document)
        if not spots:
            break
        node, key = draw(st.sampled_from(spots))
        value = copy.deepcopy(draw(values))
        match draw(st.sampled_from(("put", "put", "put", "take out", "add", "rename", "wrap", "other"))):
            case "put":
                node[key] = value
            case "take out":
                del node[key]
            case "add" if isinstance(node, dict):
                node[value if isinstance(value, str) else str(value)[:50]] = node[key]
            case "rename" if isinstance(node, dict):
                node[value if isinstance(value, str) else str(value)[:50]] = node.pop(key)
            case "wrap":
                node[key] = [node[key]]
            case "other":  # what stands elsewhere in the same document
                there, other = draw(st.sampled_from(spots))
                if there is not node or isinstance(node, dict):
                    node[key] = copy.deepcopy(there[other])
            case _:
                node.append(value)
    return document


NUDGES: Mapping[type, st.SearchStrategy[Any]] = MappingProxyType(
    {
        bool: st.booleans(),
        int: st.sampled_from((-(10**30), -3, -1, 0, 1, 2, 3, 5, 40, 300, 10**15, 2**63 - 1, 10**30)),
        float: st.sampled_from((-1.0, 0.0, 1e-300, 0.5, 1.0, 1e30, 1e308, float("nan"), float("inf"))),
        str: st.sampled_from(
            ("", "x", "group", "label", "synthetic", "csv", "npz", "adult", "*", "all", "a\nb")
        ),
        list: st.sampled_from(([], [0], [-1], [1], [1, 1], [2, 1], ["group"], ["x"], [10**15])),
    }
)


@st.composite
def nudged(draw: st.DrawFn, whole: Any) -> Any:
    """A whole document in which one or two values are others of the same kind: it gets further before it
    is refused."""
    document = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 2))):
        spots = [(node, key) for node, key in _spots(document) if type(node[key]) in NUDGES and key != "name"]
        node, key = draw(st.sampled_from(spots))
        node[key] = copy.deepcopy(draw(NUDGES[type(node[key])]))
    return document


@st.composite
def scratched(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes cut short, with a part taken out, doubled or overwritten."""
    start = draw(st.integers(0, len(whole)))
    stop = draw(st.integers(start, min(len(whole), start + 40)))
    put = draw(st.sampled_from(BYTES) | st.binary(max_size=8))
    match draw(st.sampled_from(("cut", "replace", "replace", "double", "bit"))):
        case "cut":
            return whole[:start]
        case "double":
            return whole[:stop] + whole[start:]
        case "bit" if start < len(whole):
            return whole[:start] + bytes([whole[start] ^ 1 << draw(st.integers(0, 7))]) + whole[start + 1 :]
        case _:
            return whole[:start] + put + whole[stop:]


def files(folder: Path) -> dict[str, bytes]:
    """What a folder holds, by path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
