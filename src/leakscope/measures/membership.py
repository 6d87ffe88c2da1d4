"""Tests an auditor accepts: thresholds and p-values from records that are known to be no members.

A record's p-value is its rank among held-out non-members. If those were drawn as the record was, the
p-value of a non-member is at most α with a chance of at most α, whatever the score, the model or the
number of held-out records: no asymptotics, no assumption on the scores' distribution.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.success import proportion, tpr_at_fpr


def plr_at_fpr(transcript: Transcript, *, fpr: float = 0.01, level: float = 0.95) -> Estimate:
    """The positive likelihood ratio TPR / FPR at a false positive rate: 1 by chance, 1 / FPR at best.

    Of all thresholds with at most this rate the one that finds most, never inside a tie (paper 002).
    """
    found = tpr_at_fpr(transcript, fpr=fpr, level=level)
    name = f"PLR at {fpr:.1%} FPR".replace(".0%", "%")
    value, low, high = (end / fpr for end in (found.value, found.low, found.high))
    return replace(found, name=name, value=value, low=low, high=high, basis=None)  # the basis is of the rate


def p_values(transcript: Transcript) -> Tensor:
    """Each trial's chance, were it no member, to score as high: (1 + how many held-out non-members
    score at least as high) / (1 + how many there are). Finite-sample valid."""
    null = _null(transcript).double().sort().values
    above = len(null) - torch.searchsorted(null, transcript.guesses.double(), side="left")
    return (1 + above).double() / (1 + len(null))


def t_test_as_printed(
    transcript: Transcript, *, rounds: int, fpr: float = 0.01, level: float = 0.95
) -> tuple[Estimate, Estimate]:
    """The paper's test as it is printed: scores are Student's t of a record's ``rounds`` against 0
    (`Cosine(over="t")`), and a p-value of at most ``fpr`` calls a member. The rates among non-members and
    among members that this has in fact. The first is far above ``fpr``, on location30 9 and 13% at a nominal
    1%: a record's cosines lie to one side in all rounds alike, members' and others', so that they are no
    independent draws around 0."""
    require(rounds >= 2, "t_test_as_printed.rounds", "at least 2", rounds)
    require(0 < fpr < 1, "t_test_as_printed.fpr", "between 0 and 1", fpr)
    called = torch.from_numpy(stats.t.sf(transcript.guesses.double().numpy(), rounds - 1)) <= fpr
    return _rates(transcript, called, fpr, level)


def conformal(transcript: Transcript, *, fpr: float = 0.01, level: float = 0.95) -> tuple[Estimate, Estimate]:
    """What calling every record with a p-value of at most ``fpr`` a member finds: the rate among
    non-members, which is at most ``fpr`` on average over held-out sets, and among members."""
    null = _null(transcript)
    require(0 < fpr < 1, "conformal.fpr", "between 0 and 1", fpr)
    needed = int(np.ceil(1 / fpr * (1 - 1e-12))) - 1
    if len(null) < needed:
        raise DataError(
            f"a false positive rate of {fpr:g} needs at least {needed} held-out non-members, got "
            f"{len(null)}; give more, or ask for a rate of at least {1 / (len(null) + 1):.3g}."
        )
    return _rates(transcript, p_values(transcript) <= fpr * (1 + 1e-12), fpr, level)


def _rates(transcript: Transcript, called: Tensor, fpr: float, level: float) -> tuple[Estimate, Estimate]:
    """Among non-members, and among members."""
    names = f"false positive rate at nominal {fpr:.0%}", f"true positive rate at nominal {fpr:.0%}"
    groups = called[transcript.secrets == 0], called[transcript.secrets == 1]
    return _share(names[0], groups[0], level), _share(names[1], groups[1], level)


def discoveries(p: Tensor, *, rate: float = 0.05) -> Tensor:
    """The records to call members when many are asked about: Benjamini and Hochberg's procedure keeps
    the expected share of false ones among them at most ``rate``."""
    require(0 < rate < 1, "discoveries.rate", "between 0 and 1", rate)
    if len(p) == 0:
        return torch.zeros(0, dtype=torch.bool)
    adjusted = stats.false_discovery_control(p.double().numpy(), method="bh")
    return torch.from_numpy(adjusted <= rate)


def _null(transcript: Transcript) -> Tensor:
    if transcript.null is None or len(transcript.null) == 0:
        raise ArgumentError("a p-value needs held-out non-members; give Membership.held.")
    return transcript.null


def _share(name: str, called: Tensor, level: float) -> Estimate:
    n, hits = len(called), int(called.sum())
    if n == 0:
        raise ArgumentError(f"{name} needs at least one trial of its kind; play more trials.")
    method = "Clopper-Pearson, given the held-out records"
    return replace(proportion(name, hits, n, level=level), method=method, basis=None)
