"""The one answer of a search, kept beside its results: the page opens with it, the terminal ends with it."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from leakscope.core.errors import StoreError
from leakscope.core.files import inside, read, write
from leakscope.results.scores import FrozenModel

ANSWER = "answer.json"


class Answer(FrozenModel):
    """What was searched, what was found, and what it rests on."""

    question: str
    sentence: str
    notes: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()  # how to run what was found: commands and settings

    @property
    def lines(self) -> list[str]:
        return [self.question, self.sentence, *self.notes, *self.steps]


def keep(folder: Path, answer: Answer) -> None:
    write(inside(folder, ANSWER), answer.model_dump_json(indent=1))


def load(folder: Path) -> Answer | None:
    """The answer that a folder keeps, if it has one."""
    path = inside(folder, ANSWER)
    try:
        return Answer.model_validate(json.loads(read(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, ValidationError):
        raise StoreError(
            f"{str(path)!r} is not an answer of leakscope tune; delete it and search again."
        ) from None
