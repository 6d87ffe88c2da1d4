"""What is said of guards: what a fresh attacker still tells, at which cost, and which numbers mislead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.audits.guards.page.measures import (
    AttackAverage,
    JudgedAverage,
    TheoremAverage,
    TriedAverage,
    found_by,
)
from leakscope.audits.guards.page.pages import GuardPage, GuardSetting, read
from leakscope.report.pages import interval, number, percent, short
from leakscope.results.chapter import LEAKS, Verdict
from leakscope.results.scores import MEASURES

FAR = 0.05  # how far below a fresh attack a stale one is said to be misleading, in AUROC or success


def give_verdict(page: GuardPage) -> Verdict:
    """The answer about one secret: what is left of it by the guard with the best trade-off."""
    about, anchor = f"What a guard leaves of {page.title}", f"guards-{page.number}"
    failed = tuple(f"{one.label}: {text}" for one in page.settings for text in one.failures)
    if page.best is None:
        return Verdict("failed", about, page.data, "It is not known: the measurement failed.", failed, anchor)
    one, judged = page.best
    found = judged.tried.attack(page.measure)
    return Verdict(
        severity=page.severity,
        about=about,
        data=page.data,
        sentence=describe(page, one, judged),
        notes=tuple(list_notes(page)) + failed,
        anchor=anchor,
        order=_order(judged.tried.strongest),
        attack=judged.tried.strongest.name,
        measure=page.measure,
        average=found,
        guessing=page.guessing,
        defense=one.label,
        utility=judged.tried.accuracy,
    )


def _order(attack: AttackAverage) -> float:
    gain = attack.scores.advantage or attack.scores.ssim
    return gain.low if gain else 0.0


def list_notes(page: GuardPage) -> Iterator[str]:
    """Why this guard is shown, what needs no guard, then every reason for doubt."""
    if page.best is None:
        return
    one, judged = page.best
    others = len(page.judged) - 1
    if others:
        yield (
            f"Shown: the guard with the best trade-off of {others + 1}. It keeps most of the task for what "
            "it leaves of the secret, and no other guard that was tried leaves less and keeps as much."
        )
    if others and one.lam == 0:
        yield "λ=0 is plain training: every guard beside it leaves more of the secret, and keeps no more."
    yield _beside(page, judged)
    doubts = (
        _found_by_others(page, judged),
        _hides_nothing(page, judged),
        _needless(page, judged),
        _misleading(page),
        _asked_again(page, judged),
        _alone(page, judged),
        _stronger(page, judged),
        refute(judged.theorem, one.label),
    )
    yield from (text for text in doubts if text)


def name_attack(attack: AttackAverage) -> str:
    """How it asks, and by how many seeds it was chosen."""
    often = "" if attack.queries == 1 else f", {attack.queries} draws of the noise averaged"
    some = f" by {attack.chosen} of {attack.seeds} seeds" if attack.chosen < attack.seeds else ""
    return f"fresh{often}" + (f", chosen on rehearsals{some}" if attack.chosen else "")


def _aim(page: GuardPage) -> str:
    """What an attacker tells."""
    column = page.column or "the secret"
    verbs = {
        "membership": "tells who was trained on",
        "property": f"tells the share of {column} in a group",
    }
    return verbs.get(page.secret, f"tells {column}") + " right"


def describe(page: GuardPage, one: GuardSetting, judged: JudgedAverage) -> str:
    """What the strongest fresh attacker finds in spite of one guard, and what the task is worth."""
    attack = judged.tried.strongest
    level = next(iter(attack.estimates.values())).level
    chosen = f"the strongest fresh attacker ({attack.name})"
    if attack.scores.success is None:
        text = f"{chosen} rebuilds records with {_likeness(attack)}"
    else:
        guess = f"; guessing: {attack.guessing:.1%}" if attack.guessing is not None else ""
        right = interval(attack.scores.success, percent)
        auroc = attack.scores.auroc
        ranked = f"; AUROC {interval(auroc, number)}" if auroc else ""
        text = f"{chosen} {_aim(page)} in {right} of cases{guess}{ranked}"
    return f"With {one.label}, {text}. {_worth(judged.tried)}In brackets: {level:.0%} intervals."


def _likeness(attack: AttackAverage) -> str:
    names = {"ssim": "SSIM", "psnr": "PSNR", "mse": "mean squared error"}
    return ", ".join(f"{names[n]} {interval(a, short)}" for n, a in attack.estimates.items() if n in names)


def _worth(tried: TriedAverage) -> str:
    if tried.accuracy is None:
        return ""
    common = tried.task.majority
    beside = f"; always the most common label: {common:.1%}" if common is not None else ""
    return f"Task accuracy {interval(tried.accuracy, percent)}{beside}. "


def _beside(page: GuardPage, judged: JudgedAverage) -> str:
    """Everything that needs no guard, no guard at all first."""
    free = page.free if page.free and page.free.tried is not judged.tried else None
    rest = [one for one in page.baselines if free is None or one.name != free.name]
    parts = [f"{one.name}: {_in_short(page, one.tried)}" for one in ([free] if free else []) + rest]
    return (
        f"Without a guard: {'; '.join(parts)}."
        if parts
        else "What no guard gives away was not measured beside it."
    )


def _in_short(page: GuardPage, tried: TriedAverage) -> str:
    """An attack and a utility in few words."""
    parts = [_found(page, tried.strongest)]
    if tried.accuracy:
        parts.append(f"task accuracy {tried.accuracy.value:.1%}")
    return ", ".join(parts)


def _found(page: GuardPage, attack: AttackAverage) -> str:
    """What one attack finds, without its interval."""
    scores = attack.scores
    parts = [f"{scores.success.value:.1%} right"] if scores.success else []
    parts += [f"AUROC {scores.auroc.value:.3f}"] if scores.auroc else []
    if page.secret == "reconstruction" and (like := attack.estimates.get(page.measure)):
        parts.append(f"{MEASURES[page.measure].title} {like.value:.3g}")
    return ", ".join(parts)


def _found_by_others(page: GuardPage, judged: JudgedAverage) -> str:
    """Why the word is stronger than what the strongest attacker finds, where it is."""
    if page.severity not in LEAKS or read(judged.tried.strongest) in LEAKS:
        return ""
    worst = next(attack for attack in judged.every if read(attack) == page.severity)
    who = f"{worst.name} on {worst.queries} draws of the noise" if worst.queries > 1 else worst.name
    who += " on single records" if worst in judged.single else ""
    return (
        f"The strongest attacker, chosen on rehearsals, does not show a leak, but another one does: {who}, "
        f"{_found(page, worst)}. The word above is for that one."
    )


def _hides_nothing(page: GuardPage, judged: JudgedAverage) -> str:
    """Where the guard's interval reaches that of no guard."""
    free = page.free.tried.attack(page.measure) if page.free else None
    own = judged.tried.attack(page.measure)
    if free is None or own is None or free is own:
        return ""
    overlap = own.low <= free.high if page.falls else own.high >= free.low
    return (
        "The guard is not shown to hide anything: with it and without, the intervals overlap."
        if overlap
        else ""
    )


def _needless(page: GuardPage, judged: JudgedAverage) -> str:
    """Baselines that leave no more to the attacker and no less to the task."""
    worth = judged.tried.accuracy
    if worth is None:
        return ""
    own = found_by(judged.tried.strongest, page.measure)
    names = [
        one.name
        for one in page.baselines
        if one.tried.accuracy
        and found_by(one.tried.strongest, page.measure) <= own
        and one.tried.accuracy.value >= worth.value
    ]
    return (
        f"No guard is needed for this: {' and '.join(names)} hides as much and keeps as much."
        if names
        else ""
    )


def _misleading(page: GuardPage) -> str:
    """The setting whose stale attacker is furthest below a fresh one, if that is far."""
    gaps = [(_gap(judged, "auroc"), _gap(judged, "success"), one, judged) for one, judged in page.judged]
    *_, one, judged = max(gaps, key=lambda entry: max(entry[:2]))
    if judged.stale is None or max(_gap(judged, "auroc"), _gap(judged, "success")) < FAR:
        return ""
    stale, fresh = _found(page, judged.stale), _found(page, judged.tried.strongest)
    return (
        f"{one.label}: the network trained along with the encoder finds less ({stale}) than a fresh one "
        f"({fresh}). The papers report the former, which looks safer than the guard is."
    )


def _gap(judged: JudgedAverage, measure: str) -> float:
    """How far the stale attacker is below the strongest fresh one."""
    if judged.stale is None:
        return 0.0
    return found_by(judged.tried.strongest, measure) - found_by(judged.stale, measure)


def _asked_again(page: GuardPage, judged: JudgedAverage) -> str:
    best, own = _best(judged.asked_again, page.measure), judged.tried.attack(page.measure)
    if best is None or own is None:
        return ""
    if found_by(best, page.measure) <= (-own.low if page.falls else own.high):
        return ""
    return (
        f"Whoever may ask {best.queries} times and averages the noise gets {_found(page, best)}: this guard "
        "holds for one release, so freeze one draw for each record."
    )


def _alone(page: GuardPage, judged: JudgedAverage) -> str:
    best = _best(judged.single, "auroc")
    if best is None:
        return ""
    guess = f", guessing {best.guessing:.1%}" if best.guessing is not None else ""
    return (
        f"Whoever sees single records, not the group, tells {page.column} of each: {_found(page, best)}"
        f"{guess}. What was guarded is the group only."
    )


def _stronger(page: GuardPage, judged: JudgedAverage) -> str:
    """Attacks that were not chosen and yet are clearly above the one that was."""
    own = judged.tried.attack(page.measure)
    if own is None or not judged.tried.strongest.chosen:
        return ""
    names = [
        f"{attack.name} ({_found(page, attack)})"
        for attack in judged.once
        if (estimate := attack.estimates.get(page.measure)) and estimate.low > own.high
    ]
    return f"Not chosen on rehearsals, and yet clearly stronger: {', '.join(names)}." if names else ""


def _best(attacks: Sequence[AttackAverage], measure: str) -> AttackAverage | None:
    known = [attack for attack in attacks if measure in attack.estimates]
    return max(known, key=lambda attack: found_by(attack, measure), default=None)


def refute(theorem: TheoremAverage | None, label: str) -> str:
    """Where a measured attack exceeds the theorem's number, that it is no bound."""
    if theorem is None or not theorem.refuted:
        return ""
    seeds = f" with {theorem.refuted} of {theorem.seeds} seeds" if theorem.seeds > 1 else ""
    return (
        f"{label}: the estimate of a bound on accuracy, {theorem.bound:.1%} from the estimated H(u|r), is "
        f"refuted{seeds}: an attack measured here exceeds it."
    )
