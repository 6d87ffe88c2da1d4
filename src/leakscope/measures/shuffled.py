"""The null calibration of an audit: the same answers, held against secrets that were shuffled or drawn anew.

Such secrets have nothing to do with what was released, so that whatever a measure finds in them it would find
in nothing. The lower end of an interval at 95% may then be above nothing in one of forty; if it is much more
often, intervals or baselines of this audit are wrong, and its findings with them. What goes wrong before the
guess, such as a secret that slips into the view, it cannot see: for that there are `Silent` and `Plain`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from scipy import stats

from leakscope.core.errors import require
from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.success import advantage

SHUFFLES = 100
DOUBT = 1e-4  # the chance of so many false alarms by bad luck, below which the check fails


@dataclass(frozen=True)
class SelfCheck:
    """A null calibration: over so many ``shuffles``, how many false ``alarms``, how many are ``expected``,
    and below what 95% of shuffles stay."""

    measure: str
    shuffles: Annotated[int, Field(ge=1)]
    alarms: int
    expected: float
    largest: float
    p: float
    passed: bool


def shuffled(
    transcript: Transcript,
    measure: Callable[[Transcript], Estimate] = advantage,
    *,
    rng: torch.Generator,
    null: float = 0.0,
    tail: float = 0.025,
    shuffles: int = SHUFFLES,
    drawn: bool = False,
) -> SelfCheck:
    """How often the lower limit of ``measure``, too high with chance ``tail``, is above ``null``, and how
    large the measure gets, over ``shuffles`` of the secrets; and the share of shuffles that reach what was
    measured (the permutation test's p, which counts the measurement itself). A measure that is held against
    the chances of the secrets needs them ``drawn`` anew from the prior: a shuffle keeps how often each came
    up, and with it the luck of an answer that is always the same."""
    require(shuffles >= 1, "shuffled.shuffles", "at least 1", shuffles)
    found = measure(transcript)
    every, n, prior = [], len(transcript.secrets), transcript.prior.double()
    for _ in range(shuffles):
        anew = torch.multinomial(prior, n, replacement=True, generator=rng) if drawn else None
        secrets = transcript.secrets[torch.randperm(n, generator=rng)] if anew is None else anew
        every.append(measure(replace(transcript, secrets=secrets)))
    values = torch.tensor([one.value for one in every], dtype=torch.float64)
    alarms = sum(one.low > null for one in every)
    return SelfCheck(
        measure=found.name,
        shuffles=shuffles,
        alarms=alarms,
        expected=tail * shuffles,
        largest=float(values.quantile(0.95)),
        p=(1 + int((values >= found.value).sum())) / (1 + shuffles),
        passed=bool(stats.binom.sf(alarms - 1, shuffles, tail) >= DOUBT),
    )
