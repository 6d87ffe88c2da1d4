"""Whether the labels of candidates are coded as the recorded model has them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest
from torch import Tensor

from leakscope.core.errors import DataError
from leakscope.training.recording.index import listed

DOUBT = 1e-3  # the chance that codes which are right are said to be wrong


def check_codes(outputs: Tensor, y: Tensor, names: Sequence[str] = ()) -> None:
    """Refuse labels (n,) of members whose codes are in another order than those of the model's ``outputs``
    (n, classes): another order is found on every second record, and is clearly better on the others than
    the codes as they are, and than the most frequent label alone."""
    guessed, classes = outputs.argmax(1), outputs.shape[1]
    confusion = torch.zeros(classes, classes, dtype=torch.long)
    confusion.index_put_((guessed[::2], y[::2]), torch.tensor(1), accumulate=True)
    order = torch.from_numpy(linear_sum_assignment(confusion.numpy(), maximize=True)[1])
    plain, other = guessed[1::2] == y[1::2], order[guessed[1::2]] == y[1::2]
    gains, losses, n = int((other & ~plain).sum()), int((plain & ~other).sum()), len(plain)
    if n == 0 or binomtest(gains, max(1, gains + losses), 0.5, alternative="greater").pvalue > DOUBT:
        return
    common = float(y[1::2].bincount(minlength=classes).max()) / n
    if common == 1 or binomtest(int(other.sum()), n, common, alternative="greater").pvalue > DOUBT:
        return
    called = [names[code] if code < len(names) else str(code) for code in order.tolist()]
    moved = [f"{i} is {called[i]!r} (code {c})" for i, c in enumerate(order.tolist()) if i != c]
    raise DataError(
        f"the labels of the candidates are coded in another order than the recorded model has them: it is "
        f"right about {float(plain.double().mean()):.0%} of the members as they are, and about "
        f"{float(other.double().mean()):.0%} if its output {listed(moved)}; code them as the clients did."
    )
