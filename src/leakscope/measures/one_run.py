"""Lower bounds of epsilon from one run with canaries, each put in or left out by the toss of a fair coin.

Whoever trains adds the canaries (records, or whole clients) whose coin says so; an attack scores all of them,
and says "in" of those with the highest scores and "out" of those with the lowest. How many it says that of is
settled beforehand. Neighbours differ by one canary that is added or removed. Logarithms are natural.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from leakscope.core.errors import require
from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.epsilon import gaussian_epsilon

Array = NDArray[np.float64]
SHARE = 6  # one of so many canaries is guessed about where that is not said: best from epsilon 2 to 8
FEWEST = 10  # guesses; fewer certify next to nothing
STEPS, ZOOMS = 16, 6  # of the search for a bound: its last grid is of a millionth of the first
LARGEST = 64.0  # epsilon or mu that is looked for: no run with canaries certifies as much


def one_run_epsilon(
    transcript: Transcript,
    *,
    delta: float,
    level: float = 0.95,
    guesses: int | None = None,
    trade_off: Literal["any", "gaussian"] = "any",
) -> Estimate:
    """The epsilon that one run with canaries certifies: ``low`` is below the true one with chance ``level``.

    ``secrets`` are the coins (1: put in), tossed fairly and on their own; ``guesses`` how many canaries are
    called in or out, half of them each, and of the others nothing is said. None: a sixth of them for
    "gaussian"; for "any" all of them, a half, a quarter and so on, of which the best is taken at a level that
    allows for the choice.

    ``"any"`` is Steinke, Nasr and Jagielski (2023), theorem 5.2: it assumes (epsilon, delta)-DP alone.
    ``"gaussian"`` is Mahloujifar, Melis and Chaudhuri (2025): it assumes that a canary in and the same canary
    out are exactly as hard to tell apart as N(0, 1) and N(mu, 1), and finds the mu that so many right guesses
    rule out; where the assumption fails, so does the bound. Neither assumes that guesses are independent of
    each other. As many right guesses could come of randomised response, so that "any" certifies little of
    what a Gaussian mechanism leaks: of epsilon 4 at delta 1e-5, 39% in the mean at most, from 1,000 canaries
    by the best attack with the best number of guesses. ``value`` is the estimate without limits, ``high`` the
    most that so many guesses could certify, by all being right: not an upper limit of epsilon. ``value`` is
    cut at ``high``."""
    caller = "one_run_epsilon"
    for name, chance in (("delta", delta), ("level", level)):
        require(0 < chance < 1, f"{caller}.{name}", "between 0 and 1", chance)
    require(trade_off in ("any", "gaussian"), f"{caller}.trade_off", "'any' or 'gaussian'", trade_off)
    m = len(transcript.secrets)
    way_out = "give more canaries"
    require(m >= FEWEST, f"{caller}: secrets", f"at least {FEWEST} canaries", m, way_out=way_out)
    require(guesses is None or FEWEST <= guesses <= m, f"{caller}.guesses", f"{FEWEST} to {m}", guesses)
    tried = [guesses or max(m // SHARE, FEWEST)]
    if guesses is None and trade_off == "any":
        tried = [m >> i for i in range(m.bit_length()) if m >> i >= FEWEST]
    error = (1 - level) / len(tried)
    bound = least_epsilon if trade_off == "any" else _gaussian_bound
    counts = [(r, count_right(transcript, r)) for r in tried]
    low, (r, v) = max((bound(m, *count, delta, error), count) for count in counts)
    if trade_off == "any":
        value = _odds(v / r)
    else:
        value = gaussian_epsilon(_separation(count_right(transcript, m) / m), delta)
    high = max(bound(m, r, r, delta, error) for r in tried)
    method = "one run, Steinke et al. 2023" if trade_off == "any" else "one run, Gaussian trade-off assumed"
    return Estimate(f"epsilon at delta {delta:g}", min(value, high), low, high, level, m, method)


def count_right(transcript: Transcript, guesses: int) -> int:
    """How many of so many guesses are right: "in" of the highest scores and "out" of the lowest. Of equal
    scores the first in order come first, which the coins must not decide."""
    scores, coins = transcript.guesses.double().numpy(), transcript.secrets.numpy()
    require(scores.shape == coins.shape, "one run: guesses", "one score for each canary", scores.shape)
    require(not bool(np.isnan(scores).any()), "one run: guesses", "free of NaN", "NaN")
    require(bool(np.isin(coins, (0, 1)).all()), "one run: secrets", "0 or 1", "other values")
    order = np.argsort(-scores, kind="stable")
    inside = (guesses + 1) // 2
    outside = order[len(order) - (guesses - inside) :]
    return int(coins[order[:inside]].sum() + (1 - coins[outside]).sum())


def p_values(m: int, r: int, v: int, epsilons: Array, delta: float) -> Array:
    """For each epsilon: the chance of ``v`` right of ``r`` guesses about ``m`` canaries is at most this under
    (epsilon, delta)-DP (Steinke et al. 2023, theorem 5.2).

    P(B >= v) + 2 m delta max_i P(v - i <= B < v) / i, B binomial of r trials with the chance
    e^epsilon / (1 + e^epsilon) that randomised response is right."""
    q = special.expit(epsilons)
    below = np.cumsum(stats.binom.pmf(np.arange(v - 1, -1, -1), r, q[:, None]), axis=1)
    most = (below / np.arange(1, v + 1)).max(1, initial=0.0)
    return np.asarray(np.minimum(stats.binom.sf(v - 1, r, q) + 2 * m * delta * most, 1.0))


def least_epsilon(m: int, r: int, v: int, delta: float, error: float) -> float:
    """The smallest epsilon that so many right guesses do not rule out with this chance of an ``error``."""

    def excluded(epsilons: Array) -> NDArray[np.bool_]:
        return p_values(m, r, v, epsilons, delta) <= error

    return _first_kept(excluded)


def least_mu(m: int, r: int, v: int, error: float) -> float:
    """The smallest mu for which a mu-GDP training can give ``v`` right of ``r`` guesses about ``m`` canaries
    with a chance of ``error``.

    Let p_i be the chance of i right guesses, and h(x) = Phi(Phi^-1(x) - mu). Whatever is asked of the other
    canaries, P(wrong about j, and it) >= h(P(right about j, and it)) by f-DP and the convexity of h. With
    "at least a others are right", averaged over j: W_a >= h(C_{a+1}), where C_a = sum_{i>=a} i p_i / m and
    W_a = sum_{i>=a} (r - i) p_i / m. The least total chance comes of p_v = error and nothing above it, and
    from there down of every W_a as small as it may be; a mu is ruled out where that total exceeds 1."""

    def excluded(mus: Array) -> NDArray[np.bool_]:
        correct = np.full(mus.shape, error * v / m)
        wrong = np.full(mus.shape, error * (r - v) / m)
        total = np.full(mus.shape, error)
        for a in range(v - 1, -1, -1):
            least = np.maximum(wrong, special.ndtr(special.ndtri(np.minimum(correct, 1.0)) - mus))
            chance = (least - wrong) / (r - a)  # of exactly a, over m
            correct, wrong, total = correct + a * chance, least, total + m * chance
        return np.asarray(total > 1)

    return _first_kept(excluded)


def _first_kept(excluded: Callable[[Array], NDArray[np.bool_]]) -> float:
    """The first number from 0 on that is not excluded, less than it if between two of a grid: a bound may be
    too low, and never too high."""
    low, high = 0.0, LARGEST
    for _ in range(ZOOMS):
        grid = np.linspace(low, high, STEPS + 1)
        kept = np.flatnonzero(~excluded(grid))
        if len(kept) == 0:
            return float(high)
        if kept[0] == 0:
            return float(low)
        low, high = float(grid[kept[0] - 1]), float(grid[kept[0]])
    return low


def _gaussian_bound(m: int, r: int, v: int, delta: float, error: float) -> float:
    return gaussian_epsilon(least_mu(m, r, v, error), delta)


def _odds(share: float) -> float:
    """The epsilon of which randomised response is right so often; infinity where it always is."""
    return max(float(special.logit(share)), 0.0)


def _separation(share: float) -> float:
    """The mu of which the best guess about every canary is right so often."""
    return min(max(2 * float(special.ndtri(share)), 0.0), LARGEST)
