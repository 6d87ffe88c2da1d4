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
from leakscope.report.pages import interval, number, percent, say_error, short
from leakscope.results.chapter import LEAKS, Verdict

VACUOUS = 10.0  # epsilon from which local differential privacy is said to promise next to nothing
FAR = 0.05  # how far below a fresh attack a stale one is said to be misleading, in AUROC or success


def give_verdict(page: GuardPage) -> Verdict:
    """The answer about one secret: what is left of it by the guard with the best trade-off."""
    about, anchor = f"What a guard leaves of {page.title}", f"guards-{page.number}"
    failed = [f"{one.label}: {text}" for one in page.settings for text in one.failures]
    if page.best is None:
        unknown = "It is not known: the measurement failed."
        return Verdict("failed", about, page.data, unknown, tuple(failed), anchor)
    one, judged = page.best
    attack = judged.tried.strongest
    gain = attack.scores.advantage or attack.scores.ssim
    notes = (*_place(page, one, judged), *_doubt_guard(page, judged), *_doubt_attacks(page, one, judged))
    return Verdict(
        severity=page.severity,
        about=about,
        data=page.data,
        sentence=describe(page, one, judged),
        notes=(*notes, *failed),
        anchor=anchor,
        order=gain.low if gain else 0.0,
        attack=attack.name,
        measure=page.measure,
        average=judged.tried.attack(page.measure),
        guessing=page.known.chance,
        defense=one.label,
        utility=judged.tried.worth,
        task=judged.tried.task.word,
    )


def name_attack(attack: AttackAverage) -> str:
    """How it asks, and by how many seeds it was chosen."""
    often = "" if attack.queries == 1 else f", {attack.queries} draws of the noise averaged"
    some = f" by {attack.chosen} of {attack.seeds} seeds" if attack.chosen < attack.seeds else ""
    return f"fresh{often}" + (f", chosen on rehearsals{some}" if attack.chosen else "")


def describe(page: GuardPage, one: GuardSetting, judged: JudgedAverage) -> str:
    """What the strongest fresh attacker finds in spite of one guard, and what the task is worth."""
    attack, task = judged.tried.strongest, judged.tried.task
    if attack.scores.success is None:
        names = {"ssim": "SSIM", "psnr": "PSNR", "mse": "mean squared error"}
        like = [f"{names[n]} {interval(a, short)}" for n, a in attack.estimates.items() if n in names]
        text = f"rebuilds records with {', '.join(like)}"
    else:
        column = page.column or "the secret"
        verbs = {
            "membership": "tells who was trained on",
            "property": f"tells the share of {column} in a group",
        }
        guess = f"; guessing: {attack.guessing:.1%}" if attack.guessing is not None else ""
        auroc = attack.scores.auroc
        ranked = f"; AUROC {interval(auroc, number)}" if auroc else ""
        right = f"right in {interval(attack.scores.success, percent)} of cases"
        text = f"{verbs.get(page.secret, f'tells {column}')} {right}{guess}{ranked}"
    worth = ""
    if task.main:
        common = f"; always {task.constant}: {task.majority:.1%}" if task.majority is not None else ""
        error = f"; {say_error(task)}" if task.mae else ""
        worth = f"Task {task.word} {interval(task.main, percent)}{common}{error}. "
    level = next(iter(attack.estimates.values())).level
    return (
        f"With {one.label}, the strongest fresh attacker ({attack.name}) {text}. {worth}"
        f"In brackets: {level:.0%} intervals."
    )


def _place(page: GuardPage, one: GuardSetting, judged: JudgedAverage) -> Iterator[str]:
    """Why this guard is shown, and everything that needs no guard, no guard at all first."""
    several = len(page.judged)
    if several > 1:
        yield (
            f"Shown: the guard with the best trade-off of {several}. No other guard that was tried leaves "
            "less of the secret, to whoever holds most, and keeps as much of the task."
        )
    if one.told:
        yield f"{one.told}, then and later: guards that are not told it are judged without."
    if several > 1 and one.lam == 0:
        yield "λ=0 is plain training: every guard beside it leaves more of the secret, and keeps no more."
    free = page.free if page.free and page.free.tried is not judged.tried else None
    rest = [one for one in page.baselines if free is None or one.name != free.name]
    parts = [f"{one.name}: {_in_short(page, one.tried)}" for one in ([free] if free else []) + rest]
    if parts:
        yield f"Without a guard: {'; '.join(parts)}."
    else:
        yield "Nobody measured what leaks without a guard."


def _in_short(page: GuardPage, tried: TriedAverage) -> str:
    """An attack and a utility in few words."""
    worth = f", task {tried.task.word} {tried.worth.value:.1%}" if tried.worth else ""
    return f"{_found(page, tried.strongest)}{worth}"


def _found(page: GuardPage, attack: AttackAverage) -> str:
    """What one attack finds, without its interval."""
    scores = attack.scores
    parts = [f"{scores.success.value:.1%} right"] if scores.success else []
    parts += [f"AUROC {scores.auroc.value:.3f}"] if scores.auroc else []
    if page.secret == "reconstruction" and (like := attack.estimates.get(page.measure)):
        parts.append(f"{page.known.title} {like.value:.3g}")
    return ", ".join(parts)


def _doubt_guard(page: GuardPage, judged: JudgedAverage) -> Iterator[str]:
    """Why the word is stronger than what the strongest attacker finds, where it is; whether the guard is
    shown to hide anything; and what does as well without one."""
    strongest, worth = judged.tried.strongest, judged.tried.worth
    if page.severity in LEAKS and read(strongest) != page.severity:
        worst = next(attack for attack in judged.every if read(attack) == page.severity)
        who = f"{worst.name} on {worst.queries} draws of the noise" if worst.queries > 1 else worst.name
        who += " on single records" if worst in judged.single else ""
        held = next((row.title for row in judged.rows if row.attack is worst), "")
        who += f" on {held}" if held and worst.queries == 1 else ""
        yield (
            f"The strongest attacker on one release, chosen on rehearsals, shows less than another: {who}, "
            f"{_found(page, worst)}. The word above is for that one."
        )
    if judged.tried.task.idle:
        yield (
            f"The task is done no better than by always saying {judged.tried.task.constant}. What hides "
            "everything hides a secret too. Train for more epochs, on more records, or with a lower λ."
        )
    free = page.free.tried.attack(page.measure) if page.free else None
    own = judged.tried.attack(page.measure)
    overlap = free and own and (own.low <= free.high if page.known.falls else own.high >= free.low)
    if overlap and free is not own:
        yield "This does not show that the guard hides anything: with it and without, the intervals overlap."
    needless = [
        one.name
        for one in page.baselines
        if worth
        and one.tried.worth
        and found_by(one.tried.strongest, page.measure) <= found_by(strongest, page.measure)
        and one.tried.worth.value >= worth.value
    ]
    if needless:
        once = " in one release" if judged.rows else ""
        yield (
            f"A guard is not needed for this: {' and '.join(needless)} hides as much{once} and keeps as much."
        )


def _doubt_attacks(page: GuardPage, one: GuardSetting, judged: JudgedAverage) -> Iterator[str]:
    """Which numbers mislead: those of a stale network, of one release, of groups, of the attack that was
    chosen, and those that an estimated bound promises."""
    yield from _mislead(page)
    own, strongest = judged.tried.attack(page.measure), judged.tried.strongest
    best = _best(judged.asked_again, page.measure)
    if best and own and found_by(best, page.measure) > (-own.low if page.known.falls else own.high):
        yield (
            f"Whoever asks {best.queries} times and averages the noise gets {_found(page, best)}. This guard "
            "holds for one release only, so fix one draw for each record."
        )
    if judged.narrow:
        yield (
            "Only single releases were attacked, without their labels. Nobody tried labels, several "
            "releases, a second encoder or the key. Audit with rows = true."
        )
    yield from _beyond_label(page, judged)
    yield from _hold(page, judged)
    if alone := _best(judged.single, "auroc"):
        guess = f", guessing {alone.guessing:.1%}" if alone.guessing is not None else ""
        yield (
            f"Whoever sees single records, not the group, learns {page.column} of each: {_found(page, alone)}"
            f"{guess}. The guard protects the group only."
        )
    stronger = [
        f"{attack.name} ({_found(page, attack)})"
        for attack in judged.once
        if own and strongest.chosen
        if (estimate := attack.estimates.get(page.measure)) and estimate.low > own.high
    ]
    if stronger:
        yield f"Clearly stronger, though rehearsals did not choose it: {', '.join(stronger)}."
    yield from filter(None, [refute(judged.theorem, one.label)])


def _beyond_label(page: GuardPage, judged: JudgedAverage) -> Iterator[str]:
    """What is told with the label, and how much of it the label tells alone."""
    alone, both = judged.row("nothing", labelled=True), judged.row("once", labelled=True)
    if alone and both:
        yield (
            f"Labels travel with representations. With the label: {_found(page, both.attack)}. The label "
            f"alone: {_found(page, alone.attack)}."
        )
        every = (row for row in judged.rows if row.usual and row.labelled and row is not alone)
        worst = max(every, key=lambda row: found_by(row.attack, page.measure))
        if worst is not both:
            yield f"Most is told with the label by who holds {worst.title}: {_found(page, worst.attack)}."


def _hold(page: GuardPage, judged: JudgedAverage) -> Iterator[str]:
    """The worst of what is told, without the label, from more than one release; and with the key."""
    worst = max(
        (row for row in judged.rows if row.usual and not row.labelled and row.holding != "again"),
        key=lambda row: found_by(row.attack, page.measure),
        default=None,
    )
    own = judged.tried.attack(page.measure)
    if worst and own and found_by(worst.attack, page.measure) > own.high:
        yield f"More is told by whoever holds more ({worst.title}): {_found(page, worst.attack)}."
    if keyed := judged.row("keyed"):
        yield f"Whoever gets the key takes the noise off: {_found(page, keyed.attack)}. Keep it."


def _mislead(page: GuardPage) -> Iterator[str]:
    """Of the setting whose stale attacker is furthest below a fresh one, if that is far."""
    pairs = [(one, judged, judged.stale) for one, judged in page.judged if judged.stale]

    def gap(pair: tuple[GuardSetting, JudgedAverage, AttackAverage]) -> float:
        fresh, stale = pair[1].tried.strongest, pair[2]
        return max(found_by(fresh, name) - found_by(stale, name) for name in ("auroc", "success"))

    furthest = max(pairs, key=gap, default=None)
    if furthest and gap(furthest) >= FAR:
        one, judged, stale = furthest
        yield (
            f"{one.label}: the network trained along with the encoder finds less ({_found(page, stale)}) "
            f"than a fresh one ({_found(page, judged.tried.strongest)}). The papers report the first, so the "
            "guard looks safer than it is."
        )


def _best(attacks: Sequence[AttackAverage], measure: str) -> AttackAverage | None:
    known = [attack for attack in attacks if measure in attack.estimates]
    return max(known, key=lambda attack: found_by(attack, measure), default=None)


def refute(theorem: TheoremAverage | None, label: str) -> str:
    """Where a measured attack exceeds the theorem's number, that it is no bound."""
    if theorem is None or theorem.bound is None or not theorem.refuted:
        return ""
    seeds = f" with {theorem.refuted} of {theorem.seeds} seeds" if theorem.seeds > 1 else ""
    return (
        f"{label}: the estimated bound on accuracy, {theorem.bound:.1%} from the estimated H(u|r), is wrong"
        f"{seeds}: an attack measured here exceeds it."
    )


def promise(judged: JudgedAverage) -> Iterator[str]:
    """What the other theorems say, each with what it rests on."""
    error, risk, local = judged.least_error, judged.risk, judged.local
    if error:
        yield (
            f"The label's share differs by {error.gap:.1%} between the groups. If no attacker had more than "
            f"the measured advantage, {error.advantage:.1%}, every task head would be wrong in at least "
            f"{error.least:.1%} of cases; the one here is in {error.measured:.1%} (paper 004, theorem 1)."
        )
    if risk:
        yield (
            f"The noise lets through at most {risk.information:.3g} nats. A reconstruction misses by more "
            f"than {risk.radius:.3g}, half the records' spread, in at least {risk.least:.1%} of cases "
            f"(paper 003, theorem 3), if a guess without it hits in {risk.chance:.1%}."
        )
    if local and local.epsilon is None:
        yield f"Local differential privacy: none, since {local.reason}."
    elif local and local.epsilon is not None:
        empty = " That promises next to nothing." if local.epsilon > VACUOUS else ""
        yield (
            f"Local differential privacy of one release: epsilon {local.epsilon:.3g} at delta "
            f"{local.delta:g}.{empty}"
        )
