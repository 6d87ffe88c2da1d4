"""What is said of guards: what a fresh attacker still tells, at which cost, and which numbers mislead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from leakscope.averages import Average, Json
from leakscope.guard_pages.measures import Attacked, Guarantee, Judged, Tried
from leakscope.guard_pages.pages import GuardPage, Setting, guard_pages

FAR = 0.05  # how far below a fresh attack a stale one is said to be misleading, in AUROC or success
SAID = 3  # sentences on the terminal for each secret


def sentences(page: GuardPage) -> list[str]:
    """The verdict, what needs no guard beside it, then every reason for doubt."""
    if page.told is None:
        return []
    one, found = page.told
    return [text for text in (_told(page, one, found), _beside(page), *_doubts(page, one, found)) if text]


def lines(results: Iterable[Json]) -> list[str]:
    """What the terminal says: the verdict and what needs no guard, then the first reason for doubt."""
    pages = guard_pages(results)
    return [line for page in pages for line in _lines(page)]


def _lines(page: GuardPage) -> Iterator[str]:
    for one in page.settings:
        yield from (f"{one.label}, seed {seed} failed: {reason}" for seed, reason in one.failures)
    yield from sentences(page)[:SAID]


def between(average: Average, *, percent: bool) -> str:
    """``83.1% (82.4% to 83.8%)`` or ``0.913 (0.905 to 0.921)``."""
    value, low, high = (written(part, percent=percent) for part in (average.value, average.low, average.high))
    return f"{value} ({low} to {high})"


def written(value: float, *, percent: bool) -> str:
    return (f"{value:.1%}" if percent else f"{value:.3f}").replace("-", "−")


def aim(page: GuardPage) -> str:
    """What an attacker tells."""
    column = page.column or "the secret"
    verbs = {
        "membership": "tells who was trained on",
        "property": f"tells the share of {column} in a group",
    }
    return verbs.get(page.secret, f"tells {column}") + " right"


def _told(page: GuardPage, one: Setting, found: Judged) -> str:
    attack = found.tried.strongest
    if attack is None:
        return f"With {one.label}, on {page.data}, no attack has a finite number: what it hides is not known."
    level = next(iter(attack.estimates.values())).level
    chosen = f"the strongest fresh attacker ({attack.name})"
    if page.secret == "reconstruction":
        text = f"{chosen} rebuilds records with {_likeness(attack)}"
    elif "success" in attack.estimates:
        guess = f"; guessing: {attack.guessing:.1%}" if attack.guessing is not None else ""
        right = between(attack.estimates["success"], percent=True)
        text = f"{chosen} {aim(page)} in {right} of cases{guess}{_ranked(attack)}"
    else:
        text = f"{chosen} has{_ranked(attack).lstrip(';')}"
    worth = _worth(found.tried)
    return f"With {one.label}, on {page.data}, {text}. {worth}In brackets: {level:.0%} intervals."


def _ranked(attack: Attacked) -> str:
    auroc = attack.estimates.get("auroc")
    return f"; AUROC {between(auroc, percent=False)}" if auroc else ""


def _likeness(attack: Attacked) -> str:
    names = {"ssim": "SSIM", "psnr": "PSNR", "mse": "mean squared error"}
    parts = [f"{word} {_short(attack.estimates[n])}" for n, word in names.items() if n in attack.estimates]
    return ", ".join(parts)


def _short(average: Average) -> str:
    value, low, high = (f"{v:.3g}".replace("-", "−") for v in (average.value, average.low, average.high))
    return f"{value} ({low} to {high})"


def _worth(tried: Tried) -> str:
    if tried.accuracy is None:
        return ""
    common = tried.worth.majority
    beside = f"; always the most common label: {common:.1%}" if common is not None else ""
    return f"Task accuracy {between(tried.accuracy, percent=True)}{beside}. "


def _beside(page: GuardPage) -> str:
    """Everything that needs no guard, no guard at all first."""
    free = page.free
    rest = [one for one in page.baselines if free is None or one.name != free.name]
    parts = [f"{one.name}: {_found(page, one.tried)}" for one in ([free] if free else []) + rest]
    return f"Without a guard: {'; '.join(parts)}." if parts else "No guard at all was not measured beside it."


def _found(page: GuardPage, tried: Tried) -> str:
    """An attack and a utility in few words."""
    parts = []
    success, ranked = tried.attack("success"), tried.attack("auroc")
    if success:
        parts.append(f"{success.value:.1%}")
    if ranked:
        parts.append(f"AUROC {ranked.value:.3f}")
    if page.secret == "reconstruction" and (like := tried.attack(page.measure)):
        parts.append(f"{'SSIM' if page.measure == 'ssim' else 'mean squared error'} {like.value:.3g}")
    if tried.accuracy:
        parts.append(f"task accuracy {tried.accuracy.value:.1%}")
    return ", ".join(parts)


def _doubts(page: GuardPage, one: Setting, found: Judged) -> Iterator[str]:
    yield _hides_nothing(page, found)
    yield _needless(page, found)
    yield _misleading(page)
    yield _asked_again(page, found)
    yield _alone(page, found)
    yield _stronger(page, found)
    yield refuted(found.guarantee, one.label)


def _hides_nothing(page: GuardPage, found: Judged) -> str:
    """Where the guard's interval reaches that of no guard."""
    free = page.free.tried.attack(page.measure) if page.free else None
    own = found.tried.attack(page.measure)
    if free is None or own is None:
        return ""
    overlap = own.low <= free.high if page.measure == "mse" else own.high >= free.low
    return (
        "The guard is not shown to hide anything: with it and without, the intervals overlap."
        if overlap
        else ""
    )


def _needless(page: GuardPage, found: Judged) -> str:
    """Baselines that leave no more to the attacker and no less to the task."""
    own, worth = found.tried.attack(page.measure), found.tried.accuracy
    if own is None or worth is None:
        return ""
    sign = -1 if page.measure == "mse" else 1
    names = [
        one.name
        for one in page.baselines
        if (attack := one.tried.attack(page.measure))
        and (accuracy := one.tried.accuracy)
        and sign * attack.value <= sign * own.value
        and accuracy.value >= worth.value
    ]
    return (
        f"No guard is needed for this: {' and '.join(names)} hides as much and keeps as much."
        if names
        else ""
    )


def _misleading(page: GuardPage) -> str:
    """The setting whose stale attacker is furthest below a fresh one, if that is far."""
    gaps = [
        (max(differences), i, one, found)
        for i, (one, found) in enumerate(page.judged)
        if (differences := [fresh - stale for _, stale, fresh in _pairs(found)])
    ]
    gap, _, one, found = max(gaps, default=(0.0, 0, None, None), key=lambda entry: (entry[0], -entry[1]))
    if one is None or found is None or gap < FAR:
        return ""
    told = {name: (stale, fresh) for name, stale, fresh in _pairs(found)}
    right, ranked = told.get("success"), told.get("auroc")
    if right and right[1] - right[0] >= FAR:
        text = f"is right in {right[0]:.1%}, a fresh one in {right[1]:.1%}"
        text += f" (AUROC {ranked[0]:.3f} and {ranked[1]:.3f})" if ranked else ""
    else:
        text = f"has AUROC {ranked[0]:.3f}, a fresh one {ranked[1]:.3f}" if ranked else ""
    text = f"the network trained along with the encoder {text}"
    return f"{one.label}: {text}: the former is what the papers report."


def _pairs(found: Judged) -> list[tuple[str, float, float]]:
    """(measure, stale, fresh) of what both attacks have."""
    stale, fresh = found.stale, found.tried.strongest
    if stale is None or fresh is None:
        return []
    shared = [n for n in ("success", "auroc") if n in stale.estimates and n in fresh.estimates]
    return [(name, stale.estimates[name].value, fresh.estimates[name].value) for name in shared]


def _asked_again(page: GuardPage, found: Judged) -> str:
    best, own = _best(found.asked_again, page.measure), found.tried.attack(page.measure)
    if best is None or own is None:
        return ""
    value = best.estimates[page.measure].value
    if (value >= own.low) if page.measure == "mse" else (value <= own.high):
        return ""
    return (
        f"Whoever may ask {best.queries} times and averages the noise gets {_said(page, best)}: this guard "
        "holds for one release, so freeze one draw for each record."
    )


def _alone(page: GuardPage, found: Judged) -> str:
    best = _best(found.single, "auroc") or _best(found.single, "success")
    if best is None:
        return ""
    parts = [f"right in {s.value:.1%}"] if (s := best.estimates.get("success")) else []
    parts += [f"AUROC {a.value:.3f}"] if (a := best.estimates.get("auroc")) else []
    parts += [f"guessing {best.guessing:.1%}"] if best.guessing is not None else []
    return (
        f"Whoever sees single records, not the group, tells {page.column} of each: {', '.join(parts)}. "
        "What was guarded is the group only."
    )


def _stronger(page: GuardPage, found: Judged) -> str:
    """Attacks that were not chosen and yet are clearly above the one that was."""
    own = found.tried.attack(page.measure)
    if own is None or page.secret == "reconstruction":
        return ""
    names = [
        f"{attack.name} ({_said(page, attack)})"
        for attack in found.tried.attacks
        if attack.queries == 1 and (e := attack.estimates.get(page.measure)) and e.low > own.high
    ]
    return f"Not chosen on rehearsals, and yet clearly stronger: {', '.join(names)}." if names else ""


def _best(attacks: Sequence[Attacked], measure: str) -> Attacked | None:
    sign = -1 if measure == "mse" else 1
    known = [attack for attack in attacks if measure in attack.estimates]
    return max(known, key=lambda attack: sign * attack.estimates[measure].value, default=None)


def _said(page: GuardPage, attack: Attacked) -> str:
    if page.secret == "reconstruction":
        return _likeness(attack)
    success = attack.estimates.get("success")
    parts = [f"{success.value:.1%} right"] if success else []
    auroc = attack.estimates.get("auroc")
    return ", ".join(parts + ([f"AUROC {auroc.value:.3f}"] if auroc else []))


def refuted(guarantee: Guarantee | None, label: str) -> str:
    """Where a measured attack exceeds the bound, that the bound is none."""
    if guarantee is None or not guarantee.refuted:
        return ""
    with_seeds = f" with {guarantee.refuted} of {guarantee.seeds} seeds" if guarantee.seeds > 1 else ""
    return (
        f"{label}: the bound on accuracy, {guarantee.bound:.1%} from the estimated H(u|r), is refuted"
        f"{with_seeds}: an attack measured here exceeds it."
    )
