"""HOCON as NVFlare writes its job configs: objects, lists, strings, numbers and comments, and nothing that
reads other files, the environment or other settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DEEPEST = 50  # objects within objects
TOKENS = re.compile(
    r"""(?P<space>[ \t\r\ufeff]+) | (?P<comment>(?:\#|//)[^\n]*) | (?P<line>\n)
    | (?P<text>\"{3}.*?\"{3}) | (?P<quoted>"(?:[^"\\\n]|\\.)*") | (?P<mark>[{}\[\],:=])
    | (?P<bare>(?:(?!//)[^\s"{}\[\],:=+\#$`^?!@*&\\]|\+(?!=))+)""",
    re.VERBOSE | re.DOTALL,
)
NUMBER = re.compile(r"[+-]?(\d+|\d*\.\d+)([eE][+-]?\d+)?")
WORDS = {"true": True, "false": False, "null": None}
FOREIGN = {"$": "a substitution such as ${name}", "+": "+="}


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int
    spaced: bool  # there is space before it

    def refuse(self, wanted: str) -> ValueError:
        got = "the end" if self.kind == "end" else repr(self.text[:40])
        return ValueError(f"line {self.line} has {got}, where {wanted} should be")


def parse_hocon(text: str) -> dict[str, Any]:
    """The table in a text; a ValueError that names the line where it is something else."""
    reader = _Reader([*_tokens(text)])
    reader.skip("line", ",")
    found = reader.table(braced=reader.took("{"), depth=0)
    reader.skip("line", ",")
    if reader.now.kind != "end":
        raise reader.now.refuse("the end")
    return found


def _tokens(text: str) -> Iterator[_Token]:
    at, line, spaced = 0, 1, False
    while at < len(text):
        match = TOKENS.match(text, at)
        if match is None:
            what = FOREIGN.get(text[at], repr(text[at]))
            raise ValueError(f"line {line} has {what}, which is not read here")
        kind, part = str(match.lastgroup), match[0]
        if kind not in ("space", "comment"):
            yield _Token(part if kind == "mark" else kind, part, line, spaced)
        at, line, spaced = match.end(), line + part.count("\n"), kind == "space"
    yield _Token("end", "", line, spaced)


@dataclass
class _Reader:
    tokens: list[_Token]
    at: int = 0

    @property
    def now(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def took(self, kind: str) -> bool:
        there = self.now.kind == kind
        self.at += there
        return there

    def skip(self, *kinds: str) -> bool:
        start = self.at
        while self.now.kind in kinds:
            self.at += 1
        return self.at > start

    def table(self, *, braced: bool, depth: int) -> dict[str, Any]:
        """To the brace that ends it, or to the end of the text."""
        found: dict[str, Any] = {}
        close = "}" if braced else "end"
        self.skip("line", ",")
        while self.now.kind != close:
            path = self.name()
            self.skip("line")
            if self.now.kind != "{" and not (self.took("=") or self.took(":")):
                raise self.now.refuse("= or : or {")
            self.skip("line")
            _put(found, path, self.value(depth + 1))
            if not self.skip("line", ",") and self.now.kind != close:
                raise self.now.refuse("a comma, a new line or the end of the table")
        self.at += braced
        return found

    def name(self) -> list[str]:
        token = self.take()
        if token.kind == "quoted":
            return [str(json.loads(token.text))]
        if token.kind != "bare" or token.text == "include":
            raise token.refuse("a name (other files are not read)")
        return token.text.split(".")

    def value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError(f"line {self.now.line} is more than {DEEPEST} tables deep")
        if self.took("{"):
            return self.table(braced=True, depth=depth)
        if self.took("["):
            return self.items(depth)
        token = self.take()
        if token.kind in ("quoted", "text"):
            if self.now.kind in ("quoted", "text", "bare"):
                raise self.now.refuse("a comma or a new line")
            return json.loads(token.text) if token.kind == "quoted" else token.text[3:-3]
        if token.kind != "bare":
            raise token.refuse("a value")
        words = token.text
        while self.now.kind == "bare":
            words += " " * self.now.spaced + self.take().text
        return _plain(words)

    def items(self, depth: int) -> list[Any]:
        found = []
        self.skip("line", ",")
        while not self.took("]"):
            found.append(self.value(depth + 1))
            if not self.skip("line", ",") and self.now.kind != "]":
                raise self.now.refuse("a comma, a new line or ]")
        return found


def _plain(words: str) -> Any:
    if words in WORDS:
        return WORDS[words]
    if not NUMBER.fullmatch(words):
        return words
    return float(words) if re.search(r"[.eE]", words) else int(words)


def _put(table: dict[str, Any], path: list[str], value: Any) -> None:
    """A later table of the same name adds to it, another value takes its place."""
    for name in path[:-1]:
        inner = table.get(name)
        table[name] = inner if isinstance(inner, dict) else {}
        table = table[name]
    old = table.get(path[-1])
    if isinstance(old, dict) and isinstance(value, dict):
        for name, one in value.items():
            _put(old, [name], one)
    else:
        table[path[-1]] = value
