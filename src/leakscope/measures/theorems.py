"""What papers 003 and 004 prove about a representation r, made exact, and what is not so as printed.

Theorems 1 and 2 of paper 003 (membership and property inference) and theorem 2 of paper 004 (attributes) are
one: from H(u|r) to the best accuracy. Information is in nats; the papers' bits are converted where their
formula needs bits. Every bound here wants the *true* H(u|r), I(x; r) or advantage. Measured on an adversary
they err on the side of comfort: an adversary's log loss is above H(u|r), so a bound fed with it says how far
this adversary got and certifies nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from scipy import optimize, special
from torch import Tensor

from leakscope.core.errors import require
from leakscope.core.nouns import Estimate
from leakscope.guards.estimators import mean_of
from leakscope.measures.bounds import Chances, entropy, fano_accuracy
from leakscope.measures.information import log_losses


def inference_accuracy(conditional_entropy: float, *, values: int = 2) -> float:
    """The best accuracy of any adversary who sees r, from H(u|r) nats: 1 - e for the smallest e with
    H(u|r) <= H2(e) + e log(values - 1).

    What theorems 1 and 2 of paper 003 and theorem 2 of paper 004 approximate by `inference_accuracy_closed`.
    Attained when every r leaves the same odds, all but one value alike."""
    require(values >= 2, "inference_accuracy.values", "at least 2", values)
    most = math.log(values)
    _entropy("inference_accuracy", conditional_entropy, most=most)
    return fano_accuracy(max(most - conditional_entropy, 0.0), [1 / values] * values)


def inference_accuracy_closed(conditional_entropy: float) -> float:
    """1 - H / (2 log2(6 / H)), H in bits, as printed in theorems 1 and 2 of paper 003 and theorem 2 of
    paper 004; never below `inference_accuracy`. From the inverse of the binary entropy, h^-1(s) >= s /
    (2 log2(6 / s)) (Calabro, thesis, San Diego 2009).

    For secrets of two values only, though paper 004 uses it for seven: of four values with chances .645 and
    .355 / 3 each, H = 1.5 bits, and saying the likeliest is right in .645 of cases where the formula allows
    .625; of seven with equal odds it allows -.28. At H = 1 bit, where nothing is known, it says .81."""
    _entropy("inference_accuracy_closed", conditional_entropy, most=math.log(2))
    bits = min(conditional_entropy / math.log(2), 1.0)
    return 1 - bits / (2 * math.log2(6 / bits)) if bits > 0 else 1.0


def conditional_entropy(guesses: Tensor, secrets: Tensor, *, level: float = 0.95) -> Estimate:
    """H(u|r) from above, in nats: the mean log loss of an adversary's posteriors (t, m) on secrets (t,) that
    it was not trained on.

    E[-log q(u|r)] = H(u|r) + E KL(truth || q). It is an UPPER estimate, so the accuracy that
    `inference_accuracy` finds for it, even for ``low``, is no certificate: a better adversary may exceed it,
    and the net inside a guard's training usually is exceeded. Interval: normal approximation of the mean,
    which cannot see confident mistakes so rare that no trial shows one."""
    require(0 < level < 1, "conditional_entropy.level", "between 0 and 1", level)
    losses = log_losses(guesses, secrets, "conditional_entropy")
    method = "held-out log loss: above H(u|r), no certificate; normal approximation"
    return replace(mean_of(losses, level=level, method=method), name="conditional entropy")


def reconstruction_risk(mutual_information: float, log_chance: float) -> float:
    """The least probability that a reconstruction of x misses by more than a radius, from I(x; r) nats and
    the log of the chance that the best guess without r is within it.

    Theorem 3 of paper 003 made exact and for every distribution: "within the radius" has probability p when
    reconstruction and x are joint and at most q = e^log_chance when they are independent, so d(p || q) <= I,
    the divergence of two coins (Duchi and Wainwright, 2013, have its weaker form); 1 - p for the largest p.
    ``log_chance`` because q is beyond floating point in many dimensions: for x uniform on a set it is at most
    `log_ball` - log volume of the set."""
    _nonnegative("reconstruction_risk.mutual_information", mutual_information)
    require(log_chance <= 0, "reconstruction_risk.log_chance", "at most 0", log_chance)
    if mutual_information >= -log_chance:
        return 0.0
    chance, log_rest = math.exp(log_chance), math.log(-math.expm1(log_chance))

    def excess(p: float) -> float:
        coins = float(special.entr(p) + special.entr(1 - p)) + p * log_chance + (1 - p) * log_rest
        return -coins - mutual_information

    if excess(chance) >= 0:  # no information, or less than rounding
        return 1 - chance
    return 1 - float(optimize.brentq(excess, chance, 1.0, xtol=1e-15))


def reconstruction_risk_closed(mutual_information: float, log_chance: float) -> float:
    """1 - (I + log 2) / -log_chance: theorem 3 of paper 003 with volumes; never above `reconstruction_risk`.

    The paper prints the volumes of *boundaries*, of X and of the ball inside X. That is no bound: on the unit
    square in the Euclidean norm, with radius 1.2 and I = 0, X's boundary is 4 long and an arc of that radius
    inside X at most .48, so the printed risk is at least .67; the centre of the square misses by .71 at most.
    It also leaves out that x must be uniform on X: of a constant x nothing is missed, whatever X is."""
    _nonnegative("reconstruction_risk_closed.mutual_information", mutual_information)
    require(log_chance < 0, "reconstruction_risk_closed.log_chance", "below 0", log_chance)
    return max(1 + (mutual_information + math.log(2)) / log_chance, 0.0)


def log_ball(dimensions: int, radius: float, *, p: float = 2.0) -> float:
    """The log of the volume of a ball in the l_p norm: (2 r Gamma(1 + 1/p))^n / Gamma(1 + n/p)."""
    require(dimensions >= 1, "log_ball.dimensions", "at least 1", dimensions)
    require(0 < radius < math.inf, "log_ball.radius", "finite and above 0", radius)
    require(p >= 1, "log_ball.p", "at least 1", p)
    one = math.log(2 * radius) + math.lgamma(1 + 1 / p)
    return dimensions * one - math.lgamma(1 + dimensions / p)


def squared_error(conditional_entropy: float, dimensions: int) -> float:
    """The least mean squared error a dimension of any reconstruction: e^(2 h(x|r) / n) / (2 pi e), from the
    differential entropy h(x|r) = h(x) - I(x; r) nats of x in n dimensions.

    Not in the papers, but in the unit they measure reconstructions with; Cover and Thomas, theorem 8.6.6, the
    Gaussian having the largest entropy. Attained by Gaussian noise on a white Gaussian x."""
    require(dimensions >= 1, "squared_error.dimensions", "at least 1", dimensions)
    return math.exp(2 * conditional_entropy / dimensions - 1) / (2 * math.pi)


def task_error(gap: float, advantage: float, prior: Chances) -> float:
    """The least error of any classifier of a binary label y that sees r: min(prior) (gap - advantage).

    Theorem 1 of paper 004 (equation 9) for the error it names. ``gap`` is |P(y=1 | u=0) - P(y=1 | u=1)|,
    ``advantage`` equation 8's max over A of |P(A=1 | u=1) - P(A=1 | u=0)|, ``prior`` (2,) that of u. A task
    classifier is itself one of these A, so its own difference between the groups is at most the advantage;
    the rest of the gap is error, in one group or the other (`group_errors`)."""
    chances = torch.as_tensor(prior, dtype=torch.float64)
    entropy(prior)  # which refuses what is no prior
    require(len(chances) == 2, "task_error.prior", "the chances of two values", len(chances))
    return float(chances.min()) * group_errors(gap, advantage)


def group_errors(gap: float, advantage: float) -> float:
    """The least *sum* of a task classifier's error rates in the two groups u = 0 and u = 1: gap - advantage.

    Equation 9 of paper 004 prints gap - 2 R C advantage, for representations of norm at most R and a
    classifier of Lipschitz constant C, as a bound on the error. (1) It is none: for y = u at equal odds and
    a constant r, gap = 1 and advantage = 0, and the error is 1/2, not 1. It bounds the sum over groups.
    (2) R and C are not needed: a classifier into {0, 1} with 2 R C < 1 is constant, and otherwise what is
    printed is weaker than this."""
    for name, value in (("gap", gap), ("advantage", advantage)):
        require(0 <= value <= 1, f"group_errors.{name}", "between 0 and 1", value)
    return max(gap - advantage, 0.0)


def _nonnegative(argument: str, value: float) -> None:
    require(value >= 0, argument, "at least 0", value)


def _entropy(function: str, value: float, *, most: float) -> None:
    holds = 0 <= value <= most * (1 + 1e-9)
    require(holds, f"{function}.conditional_entropy", f"between 0 and {most:.4g} nats", value)
