"""One attribute's epsilon in one step of DP-SGD: trials put a floor under it, theory a ceiling over it."""

from __future__ import annotations

from functools import partial

import torch

from leakscope.audits.mechanism.canary import AttributeAudit, Crafted, simulated
from leakscope.audits.mechanism.found import Certified, Histogram
from leakscope.audits.world import defend, describe_model, split, train_victim
from leakscope.core.errors import LeakscopeError, PlanError
from leakscope.core.nouns import Transcript
from leakscope.core.rng import seeded
from leakscope.core.tables import construct
from leakscope.defenses.dpsgd import DPSGD
from leakscope.measures import epsilon
from leakscope.measures.shuffled import shuffled
from leakscope.results.kind import Measured, World

BINS = 60  # of the histogram of a test statistic
SURER = 0.999  # for who holds several limits against one audit


def mechanism_of(world: World) -> DPSGD:
    """The mechanism whose step is audited; no other has one."""
    defense = defend(world)
    if not isinstance(defense, DPSGD) or not defense.noise:
        raise PlanError("the audit of an attribute needs the defense DPSGD with noise above 0.")
    return defense


def check(world: World) -> None:
    """Refuse a mechanism without noise, or an attribute that is not among the inputs."""
    mechanism_of(world)
    audit: AttributeAudit = construct(world.cell.game, "audit", trusted=world.trusted)
    split(world).train.positions(audit.attribute)


def run(world: World) -> Measured[Certified]:
    """What DP-SGD's step at the model after the last round gives away about one attribute."""
    audit: AttributeAudit = construct(world.cell.game, "audit", trusted=world.trusted)
    defense, parts = mechanism_of(world), split(world)
    victim = train_victim(world, parts.train, defense)
    rng = seeded(world.seed, "canary")
    crafted = audit.record(victim.model, victim.history[-1], parts.train, clip=defense.clip, rng=rng)
    found = play_audit(
        audit,
        crafted,
        defense,
        trials=world.cell.trials,
        rng=seeded(world.seed, "play"),
        values=parts.records.told_names(audit.attribute),
    )
    net = describe_model(world, victim.model, parts.train, test=parts.test)
    return Measured(found, parts.described, net)


def play_audit(
    audit: AttributeAudit,
    crafted: Crafted,
    defense: DPSGD,
    *,
    trials: int,
    rng: torch.Generator,
    values: tuple[str, ...] = (),
) -> Certified:
    """The audit game, simulated exactly, and what it certifies beside what the mechanism promises; a bound
    above the guarantee is an error.

    Two records that differ in an attribute are up to twice the clip apart, which is what ``exact``
    takes; ``exact_added`` and the classical formula take the clip, as for a record added or removed.
    """
    std, delta = defense.deviation(1), audit.delta
    transcript = simulated(crafted, std=std, trials=trials, rng=rng, statistic=audit.statistic)
    least = partial(epsilon.epsilon_lower_bound, delta=delta)
    found = Certified(
        attribute=audit.attribute,
        values=values,
        statistic=audit.statistic,
        delta=delta,
        crafted=audit.crafted,
        distance=crafted.distance,
        clip=defense.clip,
        std=std,
        dimensions=crafted.dimensions,
        trials=len(transcript.secrets),
        point=epsilon.epsilon_point(transcript, delta=delta),
        certified=least(transcript),
        gaussian=least(transcript, trade_off="gaussian"),
        sure=least(transcript, level=SURER),
        saturation=epsilon.saturation(len(transcript.secrets), delta),
        classical=epsilon.classical_epsilon(defense.clip, std, delta),
        exact=epsilon.gaussian_epsilon(2 * defense.clip / std, delta),
        exact_added=epsilon.gaussian_epsilon(defense.clip / std, delta),
        histogram=_histogram(transcript),
        selfcheck=shuffled(transcript, least, tail=0.05, rng=rng),
    )
    exact_test = audit.statistic == "likelihood ratio"
    for bound in (found.certified, found.gaussian) if exact_test else (found.certified,):
        if bound.low > found.exact + 1e-9:
            raise LeakscopeError(
                f"the trials certify epsilon {bound.low:.3f}, above the mechanism's own {found.exact:.3f}; "
                f"the mechanism does not do what it says: report this."
            )
    return found


def _histogram(transcript: Transcript) -> Histogram:
    scores = transcript.guesses.double()
    low, high = float(scores.min()), float(scores.max())
    width = (high - low) / BINS or 1.0
    counts = [scores[transcript.secrets == b].histc(BINS, low, low + BINS * width).tolist() for b in (0, 1)]
    edges = tuple(low + i * width for i in range(BINS + 1))
    return Histogram(edges=edges, h0=tuple(counts[0]), h1=tuple(counts[1]))
