"""A risk appetite is data: TOML in, frozen and checked limits out.

[[limit]]
secret = "sex"            # a column, "membership", "reconstruction", or "*": every secret
game = "attribute"        # or property, distribution, user, membership, layers, guard; "*" if left out
measure = "advantage"     # or auroc, tpr_at_1%, information (nats), epsilon, or any other of results.csv
at_most = 0.1
confidence = 0.95         # of the verdict
adversary = "adaptive"    # knows of the defense, or there is none; or static; or any
attack = "strongest"      # of several, chosen on public records; or any: one that was named
data = "adult"            # what the results call it; all of them if left out
where = {rounds = 15}     # settings that a result must have, as its plan names them: "game.batch" = 16
defense = "DPSGD"         # a name, a table of settings, or "none"; every one if left out
delta = 1e-5              # of an epsilon; below 1 / the records that it is about
releases = "shown"        # an epsilon of exactly what the adversary saw; or "training": of the whole training
neighbours = "replace"    # one record replaced; or "add or remove"

code = "present"          # results of this version only; or "any" (before the first table)

[declared]                # what the operator's accountant promises of the whole training
epsilon = 3.0
delta = 1e-5
neighbours = "add or remove"  # as accountants have it; or "replace"
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from leakscope.core import files, toml
from leakscope.core.errors import PlanError
from leakscope.results.cell import Table
from leakscope.results.gate.readings import EVERY, Reading
from leakscope.results.scores import MEASURES

EPSILON = "epsilon"
Neighbours = Literal["replace", "add or remove"]
STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Limit(BaseModel):
    """The most that may be learned about a secret, by whom, and how sure one wants to be of it."""

    model_config = STRICT
    secret: str
    measure: str
    at_most: float = Field(ge=0)
    game: str = EVERY
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    adversary: Literal["adaptive", "static", "any"] = "adaptive"
    attack: Literal["strongest", "any"] = "strongest"
    data: str | None = None
    where: Table = Field(default_factory=dict)
    defense: str | Table | None = None
    delta: float = Field(default=1e-5, gt=0, lt=0.01)
    releases: Literal["shown", "training"] = "shown"
    neighbours: Neighbours = "replace"

    @model_validator(mode="after")
    def _reachable(self) -> Limit:
        known = MEASURES.get(self.measure)  # any other must be in the results by this name
        if known and known.falls:
            raise ValueError(f"measure {self.measure} falls as more leaks, so that no at_most limits it")
        if known and self.at_most > known.most:
            raise ValueError(f"at_most should be at most {known.most:g} for {self.measure}")
        return self

    def about(self, reading: Reading) -> bool:
        """Whether the limit is for what was read, whoever attacked."""
        same = self.secret in (EVERY, reading.secret) or reading.secret == EVERY
        kinds = self.game == EVERY or self.game in reading.kinds
        settings = ((reading.settings.get(name, value), value) for name, value in self.where.items())
        alike = all(
            one == value and isinstance(one, bool) == isinstance(value, bool) for one, value in settings
        )
        there = alike and self.data in (None, reading.data)
        return same and kinds and there and self._restricted(reading)

    def _restricted(self, reading: Reading) -> bool:
        if self.defense is None:
            return True
        if self.defense == "none":
            return reading.unprotected
        wanted = {"name": self.defense} if isinstance(self.defense, str) else self.defense
        return any(
            all(shield.get(k) == value for k, value in wanted.items()) for shield in reading.asked.shields
        )

    def faces(self, reading: Reading) -> bool:
        """Whether the adversary was one that the limit is for."""
        return self.adversary == "any" or self.adversary in reading.adversaries


class Declared(BaseModel):
    """What the operator's accountant promises of the whole training."""

    model_config = STRICT
    epsilon: float = Field(ge=0)
    delta: float = Field(ge=0, lt=1)
    neighbours: Neighbours = "add or remove"


class Appetite(BaseModel):
    """Limits, and what is declared beside them."""

    model_config = STRICT
    limit: tuple[Limit, ...] = Field(min_length=1, strict=False)
    code: Literal["present", "any"] = "present"
    declared: Declared | None = None


def read(path: Path) -> Appetite:
    """The risk appetite in a TOML file, checked."""
    try:
        text = files.read(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise PlanError(f"risk appetite {str(path)!r} cannot be read ({reason}); give a TOML file.") from None
    return parse(text, where=str(path))


def parse(text: str, *, where: str = "the risk appetite") -> Appetite:
    """The risk appetite in a TOML text, checked."""
    try:
        document = toml.parsed(text)
    except ValueError as error:
        raise PlanError(f"{where} is not valid TOML: {error}.") from None
    try:
        return Appetite.model_validate(document)
    except ValidationError as error:
        raise PlanError(f"{where}: {_sentence(error)}") from None


def _sentence(error: ValidationError) -> str:
    """The first complaint, in our words."""
    first = error.errors()[0]
    where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    known = Limit if first["loc"][:1] == ("limit",) else Declared
    if first["type"] == "extra_forbidden":
        fields = known.model_fields if len(first["loc"]) > 1 else Appetite.model_fields
        return f"unknown setting {where!r}; known: {', '.join(fields)}."
    if first["type"] == "missing":
        return f"{where} is missing; give it." if len(first["loc"]) > 1 else "it needs a [[limit]] table."
    reason = first["msg"].removeprefix("Value error, ").removeprefix("Input ").lower()
    shown = "" if isinstance(first["input"], dict | list) else f", got {first['input']!r}"
    return f"{where} {reason}{shown}."
