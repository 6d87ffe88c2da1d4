"""What audits of federations say on the first page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.audits.membership.view import CHANCE, SUBSTANTIAL, Federation, Watch
from leakscope.report.pages import either, interval, listed, percent, plural, say_change, spoken
from leakscope.results.chapter import LEAKS, Brief, Scene, explain

ABOUT = "whose records were trained on"
SENT = {
    "sum": "Sent: the sum of all clients' updates",
    "broadcast": "Sent: the global models",
    "uploads": "Sent: each client's update",
}


def brief(watches: Sequence[Watch]) -> Brief:
    """The first page's part."""
    federations = [one for watch in watches for one in watch.federations]
    return Brief(
        asked=tuple(
            f"Someone sees {either(one.view for one in watch.federations)} in a federation on {watch.data}. "
            f"Can they tell whose records were trained on?"
            for watch in watches
        ),
        meaning=tuple(
            explain(
                watch.worst.severity,
                ABOUT,
                "Whoever has a person's record and sees this learns that the person took part. In a study of "
                "a disease, that alone can be a diagnosis.",
            )
            for watch in watches
        ),
        helps=tuple(sentence for watch in watches for sentence in _help(watch)),
        assumed=tuple(_assume(federations)),
        untested=tuple(_omit(federations)),
        scene=next((_scene(one) for one in federations if one.attacks), None),
    )


def _help(watch: Watch) -> Iterator[str]:
    """The cheapest defense under which little is found; whoever attacked it was not told of it."""
    if not watch.defended:
        return
    holding = [one for one in watch.defended if _holds(one)]
    names = listed(one.defense for one in watch.defended if not _holds(one))
    if not holding:
        yield f"No defense that was tried is shown to hide who was trained on: {names}."
        return
    best = max(holding, key=lambda one: one.utility.main.value if one.utility.main else 0.0)
    right, between, chance = spoken(best.strongest.found, CHANCE)
    free, worth = watch.undefended(best), best.utility.main
    before = free.utility.main if free else None
    cost = (
        f" Its {best.utility.word}: {interval(worth, percent)}; {say_change(before, worth)}."
        if worth and before
        else ""
    )
    yield (
        f"With {best.defense}, these attacks find {right} of members ({between}) at 1% false alarms; "
        f"guessing finds {chance}.{cost} The attacks do not know this defense. One that does may find more."
    )
    if names:
        yield f"Not enough: {names}."


def _holds(one: Federation) -> bool:
    """Whether nothing was found, at any client, and the interval rules out much."""
    return one.severity == "none" and not one.doubts and one.strongest.found.high < SUBSTANTIAL


def _assume(federations: Sequence[Federation]) -> Iterator[str]:
    yield "The adversary follows the protocol. It has the records it asks about, and knows the model."
    if known := either(one.first.known for one in federations if one.attacks):
        yield f"It has {known} records that nobody trained on."
    if any(attack.taught for one in federations for attack in one.attacks):
        yield "Some attacks are also told half of the members, as their rows say."


def _omit(federations: Sequence[Federation]) -> Iterator[str]:
    measured = [one for one in federations if one.attacks]
    if not any(one.defense for one in measured):
        yield "No defense was tried against the question of who was trained on."
    elif any(one.severity not in LEAKS for one in measured if one.defense):
        yield "No attack on members knew which defense is in place."
    if any(one.strongest.few for one in measured):
        yield "There were too few non-members to say how many members are found at 1% false alarms."
    yield from dict.fromkeys(doubt for one in measured for doubt in one.doubts)
    yield "No adversary changed the model or the training, worked with a client, or broke encryption."


def _scene(one: Federation) -> Scene:
    found = one.first
    return Scene(
        holder=f"{plural(found.clients, 'client')} hold{'s' if found.clients == 1 else ''} the records",
        records=(f"{plural(found.members, 'record')} in all. They never leave.",),
        crosses=(SENT[found.seen], f"in {plural(found.rounds, 'round')}", f"Defense: {one.shield}"),
        listener="A curious server, or whoever listens",
        knows=(
            "the model",
            f"{plural(found.known, 'record')} that nobody trained on",
            "the records it asks about",
        ),
        wants="to know which of them were trained on",
    )
