"""What games say on the first page, to a reader who decides: the questions, what they mean, what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.audits.inference.settings import Frontier, FrontierMark, Group, Setting, draw_frontier
from leakscope.report.pages import either, listed, number, percent, plural, say_change, spoken
from leakscope.results.chapter import LEAKS, SLIGHT, Brief, Scene, explain

KINDS = {  # what a game tells, and whose
    "attribute": "the value of a column that is an input",
    "property": "the value of a column that is not an input",
    "distribution": "the share of a value",
    "user": "whose records they are",
}


def brief(groups: Sequence[Group]) -> Brief:
    """The first page's part."""
    return Brief(
        asked=tuple(_ask(group) for group in groups),
        meaning=tuple(_mean(groups)),
        helps=tuple(_help(groups)),
        assumed=tuple(_assume(groups)),
        untested=tuple(_omit(groups)),
        scene=_scene(groups),
    )


def _ask(group: Group) -> str:
    row = group.headline
    seen = plural(row.observed, "update")
    batch = plural(row.secret.batch, "record") if row.secret else "some records"
    who = f"Can a curious server that sees {seen} of {batch}"
    if group.kind == "distribution":
        return f"{who} tell how many of them have {_value(group)}?"
    if group.kind == "user":
        return f"{who} tell which of {plural(group.count, 'person', 'people')} they belong to?"
    inputs = {"attribute": ", which is one of the model's inputs", "property": ", which the model never sees"}
    return f"{who} tell their {group.column}{inputs.get(group.kind, '')}?"


def _value(group: Group) -> str:
    """What a share is of: ``sex = Male``."""
    return group.column if group.value == group.column else f"{group.column} = {group.value}"


def _mean(groups: Sequence[Group]) -> Iterator[str]:
    """Once for each thing that can be learned, by the game that tells most of it."""
    told = set()
    for group in sorted(groups, key=lambda group: group.headline.worst_first):
        about = group.column, group.kind in ("distribution", "user") and group.kind
        if about in told:
            continue
        told.add(about)
        topic, harm = _harm(group)
        yield explain(group.headline.severity, topic, harm)


def _harm(group: Group) -> tuple[str, str]:
    """What can be learned, and what it is to a person when it is."""
    if group.kind == "distribution":
        value = _value(group)
        return f"the share of {value}", (
            f"Whoever sees the updates learns how common {value} is among the people behind them. This is "
            f"about the group, not about one person."
        )
    if group.kind == "user":
        return f"whose records they are ({group.column})", (
            "Whoever sees the updates and has other records of a person learns that the person took part."
        )
    return f"the {group.column} of the people behind an update", (
        f"Whoever sees the updates learns the {group.column} of the people behind them, though no record is "
        f"sent. Here all people behind one update share one value; real batches are mixed."
    )


def _help(groups: Sequence[Group]) -> Iterator[str]:
    """The cheapest defense that holds in every question it was tried on; else that none does."""
    judged = [(group, frontier) for group in groups if (frontier := draw_frontier(group)) and frontier.tried]
    if not judged:
        if any(row.defense for group in groups for row in group.rows):
            yield "No defense was tried against an adversary who knows it, so none is shown to help."
        return
    holding, failing = _sort(judged)
    if holding:
        label, cases = holding[0]
        group, frontier, mark = max(cases, key=lambda case: case[2].advantage.high)
        most = number(mark.advantage.high)
        if mark.row.utility.idle:
            yield (
                f"{label} is no answer yet: it keeps the advantage at {most} or less, but the model is then "
                f"not clearly better than always answering {mark.row.utility.constant}."
            )
        else:
            yield f"{label} holds: the advantage is at most {most}, and {SLIGHT:g} or less counts as held."
        yield _left(mark.row)
        yield _price(group, mark)
        if len(cases) < len(groups):
            yield f"{label} was tried on this only: {listed(group.label for group, *_ in cases)}."
    else:
        yield "No defense that was tried is shown to hold."
        if any(frontier.unlearned for _, frontier in judged):
            yield (
                "Without a defense the model learned nothing. What holds for it may not hold for one that "
                "did learn."
            )
    for label, cases in failing[:2]:
        _, _, mark = max(cases, key=lambda case: case[2].advantage.high)
        shown = "is not enough" if mark.row.severity in LEAKS else "is not shown to be enough"
        yield f"{label} {shown}. {_left(mark.row)}"
    if any(frontier.needless for _, frontier in judged):
        names = listed(group.label for group, frontier in judged if frontier.needless)
        yield f"Even without a defense, this run shows no leak of {names}."
    yield "To search for a cheaper or a stronger defense, use leakscope tune."


Case = tuple[Group, Frontier, FrontierMark]


def _sort(judged: Sequence[tuple[Group, Frontier]]) -> tuple[list[tuple[str, list[Case]]], ...]:
    """Defenses that hold wherever they were tried, of most questions and least cost first; the others."""
    cases: dict[str, list[Case]] = {}
    for group, frontier in judged:
        for mark in frontier.tried:
            cases.setdefault(mark.row.shield, []).append((group, frontier, mark))

    def cost(item: tuple[str, list[Case]]) -> tuple[int, float]:
        return -len(item[1]), max(mark.cost for *_, mark in item[1])

    holding = [
        (name, own)
        for name, own in cases.items()
        if all(mark in frontier.holding for _, frontier, mark in own)
    ]
    names = [name for name, _ in holding]
    failing = [(name, own) for name, own in cases.items() if name not in names]
    return sorted(holding, key=cost), sorted(failing, key=cost)


def _left(row: Setting) -> str:
    """What an adversary who knows a defense still finds."""
    if row.scores.success is None:
        return ""
    right, between, chance = spoken(row.scores.success, row.guessing)
    ranks = row.scores.auroc if row.severity == "ranking" else None
    more = f" Its ranking still tells: AUROC {number(ranks.value)}; chance: 0.5." if ranks else ""
    return (
        f"A server that knows this defense guesses right in {right} of cases ({between}); without the "
        f"updates: {chance}.{more}"
    )


def _price(group: Group, mark: FrontierMark) -> str:
    """What it costs the model."""
    free, worth = group.undefended(mark.row), mark.row.utility.main
    before = free.utility.main if free else None
    if worth is None or before is None:
        return "What it costs was not measured."
    change = f"{percent(worth.value)} instead of {percent(before.value)}: {say_change(before, worth)}"
    return f"The model's {mark.row.utility.word} is {change}."


def _assume(groups: Sequence[Group]) -> Iterator[str]:
    rows = [row for group in groups for row in group.rows]
    public = either(r.made.records.public for row in rows for r in row.runs if r.made.records)
    yield (
        "The server follows the protocol, and is curious. It sees each update. The same records are behind "
        "every update of one case."
    )
    yield f"It has {public or 'some'} public records of the same kind, on which it practises its attack."
    if any(row.defense and row.informed for row in rows):
        yield "It knows each defense and all its settings, but not the noise that was drawn."
    if any(group.known for group in groups):
        yield "It is also told the averages of some columns of the batch."


def _omit(groups: Sequence[Group]) -> Iterator[str]:
    """What these games leave open."""
    rows = [row for group in groups for row in group.rows]
    unasked = [words for kind, words in KINDS.items() if kind not in {group.kind for group in groups}]
    if unasked:
        yield f"Nobody tried to tell {'; '.join(unasked)}."
    aware = {
        group.label for group in groups for row in group.rows if row.defense and row.informed and row.runs
    }
    bare = [group.label for group in groups if group.label not in aware]
    if bare:
        yield f"No defense was tried for {listed(bare)}."
    if any(row.defense and not row.informed for row in rows):
        yield "Some defenses met only an adversary who does not know them. One who knows may learn more."
    open_ = [group.label for group in groups if group.headline.severity == "inconclusive"]
    if open_:
        yield f"Too few trials, or too weak an attack, to decide: {listed(open_)}."
    yield "No adversary changed the model or the training, worked with a client, or broke encryption."


def _scene(groups: Sequence[Group]) -> Scene:
    row, rows = groups[0].headline, [row for group in groups for row in group.rows]
    batch = either(row.secret.batch for row in rows if row.secret)
    public = either(r.made.records.public for row in rows for r in row.runs if r.made.records)
    shields = list(dict.fromkeys(row.defense for row in rows if row.defense))
    defended = f"Under {plural(len(shields), 'defense')} too" if shields else "With no defense"
    columns = listed(group.column for group in groups)
    return Scene(
        holder="A client holds the records",
        records=(f"Data: {listed(group.data for group in groups)}. They never leave.",),
        crosses=(
            f"Sent: an update in each of {plural(row.observed, 'round')}",
            f"computed on {batch or 'some'} records",
            defended,
        ),
        listener="A curious server, or whoever listens",
        knows=("the model", f"{public or 'some'} public records", *(["the defense"] if shields else [])),
        wants=f"{columns} of the people behind the updates",
    )
