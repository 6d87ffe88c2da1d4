"""Pictures of what goes where, put in when the site is built.

    <!-- flow: Client: 64 records -> one upload -> !Server: knows the model -->

Boxes and what passes between them take turns; ``!`` marks the box of an adversary. A box has a name and
words.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

FLOW = re.compile(r"<!-- flow: (.+?) -->", re.DOTALL)


def draw(text: str) -> str:
    """A row of boxes with arrows between them; a column on a narrow screen."""
    parts = [" ".join(part.split()) for part in text.split("->")]
    if len(parts) % 2 == 0:
        raise ValueError(f"a flow begins and ends with a box; this one has {len(parts)} parts: {text}")
    drawn = [_box(part) if i % 2 == 0 else _arrow(part) for i, part in enumerate(parts)]
    return f'<div class="flow">{"".join(drawn)}</div>'


def _box(text: str) -> str:
    name, _, words = text.removeprefix("!").partition(":")
    kind = "foe" if text.startswith("!") else "box"
    return f'<div class="{kind}"><b>{escape(name)}</b><br>{escape(words.strip())}</div>'


def _arrow(text: str) -> str:
    return f'<div class="arrow"><span>{escape(text)}</span></div>'


def on_page_markdown(markdown: str, **_: Any) -> str:
    """ProperDocs' hook: a page before it is rendered."""
    return FLOW.sub(lambda mark: draw(mark[1]), markdown)
