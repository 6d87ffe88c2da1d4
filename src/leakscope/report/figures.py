"""The pictures of a page on their own: each with the page's colours and fonts inside it, and nothing else."""

from __future__ import annotations

import re
from html import escape, unescape

from leakscope.core.errors import ArgumentError
from leakscope.report.pages import fill

DRAWN = re.compile(r'<svg ([^>]*) data-figure="(\w+)">(<title>(.*?)</title>.*?)</svg>', re.DOTALL)
UNFIT = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # letters that XML has not


class Figure(str):
    """A picture as SVG: text to write into a file, and in a notebook the picture itself."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def titles_of(html: str) -> dict[str, str]:
    """The pictures of a page, in its order: name -> what is drawn. The second of a kind is called "roc 2"."""
    return {name: unescape(match[4]) for name, match in _found(html).items()}


def cut_out(html: str, name: str) -> Figure:
    """One picture of a page, with all that it needs."""
    found = _found(html)
    if name not in found:
        known = ", ".join(map(repr, found)) or "and it has none"
        raise ArgumentError(f"figure must be one of this report's, {known}, got {name!r}.")
    attributes, _, drawing, _ = found[name].groups()
    drawing = UNFIT.sub("\N{REPLACEMENT CHARACTER}", drawing)
    style = f"<style><![CDATA[\n{fill('/style.css')}]]></style>"
    return Figure(f'<svg xmlns="http://www.w3.org/2000/svg" {attributes}>{style}{drawing}</svg>\n')


def _found(html: str) -> dict[str, re.Match[str]]:
    figures: dict[str, re.Match[str]] = {}
    for match in DRAWN.finditer(html):
        kind, n = match[2], 1
        while (name := kind if n == 1 else f"{kind} {n}") in figures:
            n += 1
        figures[name] = match
    return figures


def frame_page(html: str, title: str) -> str:
    """A page inside another one, such as a notebook, neither of which changes how the other looks."""
    size = "width: 100%; height: 48rem; border: 0"
    return f'<iframe title="{escape(title)}" sandbox style="{size}" srcdoc="{escape(str(html))}"></iframe>'
