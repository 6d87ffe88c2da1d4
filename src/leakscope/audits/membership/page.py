"""What a page says of federations: who was trained on, told by which attack, how surely, and what the
adversary was assumed to see and know."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from markupsafe import Markup

from leakscope.audits.membership import rows
from leakscope.audits.membership.brief import brief
from leakscope.audits.membership.found import MembershipFound
from leakscope.audits.membership.recorded import RecordingAudit
from leakscope.audits.membership.seeds import FEWEST, count_intervals, watches
from leakscope.audits.membership.view import (
    CHANCE,
    SEVERE,
    SUBSTANTIAL,
    ClientReading,
    Federation,
    Site,
    Watch,
    is_by_site,
)
from leakscope.report import plot
from leakscope.report.pages import fill, marked, number, percent, plural, spoken
from leakscope.results.averages import Average, needed
from leakscope.results.cell import Cell, capitalise
from leakscope.results.chapter import LEAKS, SEVERITIES, Chapter, Verdict
from leakscope.results.result import Result

ABOUT = "who was trained on"
FIGURES = 12  # federations that get a figure, the worst first, so that a large grid stays one readable page
LEAST = 99  # held-out records, so that one in a hundred can be told apart
RULES = {
    "severe": f"the lower limit of the members found at 1% false alarms is {SEVERE:.0%} or more: drawn at "
    f"equal odds, ten of eleven records it names are members",
    "substantial": f"the lower limit is between {SUBSTANTIAL:.0%} and {SEVERE:.0%}",
    "ranking": "the interval includes 1%, or too few non-members were judged to tell, but that of AUROC does "
    "not include 0.5",
    "slight": f"the lower limit is above 1%, what guessing finds, and below {SUBSTANTIAL:.0%}",
    "inconclusive": f"the interval includes 1% and reaches {SUBSTANTIAL:.0%} or more; or fewer than {FEWEST} "
    f"non-members were judged; or members differ from non-members in more than who was trained on; or "
    f"there is a doubt about the set-up",
    "none": f"the interval includes 1% and stays below {SUBSTANTIAL:.0%}",
    "failed": "there is no measurement, so nothing can be said",
}
CHOICE = (
    "Who was trained on: by the strongest attack that knows no member, or by one that knows some if no other "
    "finds any; in the mean over clients, or at a client whose word is worse"
)
ASSUMED = (
    '<p class="soft">Who was trained on: each federation above says what its adversary sees and knows.</p>'
)
LIMITS = (
    "Members were compared with records of the same kind. Records of another kind could be told apart by "
    "what they are. Where a test shows such a difference there is no number, but a small one can escape it.",
    "The numbers are averages over a client's records. An unusual record can be easier to find.",
    "The page shows the strongest of several attacks. Its word and the intervals of single clients allow for "
    "the choice. The table of attacks does not.",
)


def tell(results: Sequence[Result[MembershipFound]]) -> Chapter:
    """The federations of all results, the worst dataset first."""
    every = watches(results)
    federations = [federation for watch in every for federation in watch.federations]
    lost = sum(not federation.attacks for federation in federations)
    failed = f"; {plural(lost, 'federation')} failed" if lost else ""
    ordered = sorted(federations, key=lambda federation: federation.worst_first)
    drawn = list(dict.fromkeys(one.number for one in (*(watch.worst for watch in every), *ordered)))[:FIGURES]
    return Chapter(
        lead=f"{plural(len(federations), 'federation')} audited for {ABOUT}{failed}.",
        verdicts=tuple(_verdict(watch, f"members-{i}") for i, watch in enumerate(every, 1)),
        body=fill("membership/page.html", watches=every, rows=rows, drawn=drawn, roc=marked(plot.roc)),
        rules=(CHOICE, RULES),
        assumed=Markup(ASSUMED),
        limits=LIMITS,
        remarks=tuple(dict.fromkeys(remark for result in results for remark in _remarks(result))),
        settings=len(federations),
        brief=brief(every),
    )


def _verdict(watch: Watch, anchor: str) -> Verdict:
    """What the worst federation on one dataset gives away, and what the best defense leaves of it."""
    worst = watch.worst
    deciding = worst.deciding
    if deciding is None:
        sentence = f"Nothing is known about {ABOUT} in this federation: the measurement failed."
        return Verdict("failed", ABOUT, watch.data, sentence, tuple(_notes(watch)), anchor)
    whole = Verdict(deciding.severity, ABOUT, watch.data, _sentence(worst), tuple(_notes(watch)), anchor)
    if not deciding.alike:
        return replace(whole, defense=worst.shield, utility=worst.utility.main)
    return replace(
        whole,
        order=-deciding.worst_first[1],
        attack=deciding.attack,
        measure="auroc" if deciding.ranks else "tpr_at_1%",
        average=deciding.auroc if deciding.ranks else deciding.found,
        guessing=0.5 if deciding.ranks else CHANCE,
        defense=worst.shield,
        utility=worst.utility.main,
        task=worst.utility.word,
    )


def _sentence(federation: Federation) -> str:
    """What the strongest attack finds in the mean, and at the worst client where that is worse."""
    attack, site, judged = federation.strongest, federation.exposed, federation.first.judged
    someone = f"With {federation.defense}, someone" if federation.defense else "Someone"
    taught = " and knows half of the members" if attack.taught else ""
    whose = "their" if federation.seen != "uploads" and not attack.first.clients else "its"
    whose = "a client's" if whose == "its" and _sees_more(federation) else whose
    found = _finding(attack, f"{whose} {_own(federation)} records", judged)
    sentence = f"{someone} who sees {_watcher(federation)}{taught} {found}"
    if site:
        lead = "Most at client" if site.severity in LEAKS else "Least is known of client"
        told = ", which knows half of the members," if site.taught else ""
        finding = _finding(site, f"its {plural(site.members, 'record')}", site.judged)
        sentence += f" {lead} {site.client}: {site.attack}{told} {finding}"
    if federation.by_site and federation.sites:
        sites = sorted(federation.sites, key=lambda site: site.client)
        sentence += f" By site: {'; '.join(map(_brief, sites))}."
    return sentence


def _brief(site: Site) -> str:
    """One site in a line."""
    if not site.alike:
        return f"{site.client} no number, its members differ from its others"
    a = site.auroc
    between = f"{number(a.low, 2)} to {number(a.high, 2)}"
    if site.severity in LEAKS:
        return f"{site.client} AUROC {number(a.value, 2)} ({between})"
    evidence = "nothing found" if site.severity == "none" else rows.NOT_ENOUGH
    return f"{site.client} {evidence} (AUROC {between})"


def _finding(reading: ClientReading, records: str, judged: int) -> str:
    """What is found, or that too few non-members were judged to say it; and the ranking where that tells."""
    if not reading.alike:
        return (
            f"may find some of {records} or none: this audit cannot say it. Members differ from non-members "
            f"in more than who was trained on, which was seen before any update was looked at, and an attack "
            f"would tell that difference. Take non-members from where the members come from; if a column "
            f"says from where, name it (--site)."
        )
    if reading.few:
        text = (
            f"finds an unknown share of {records}. There is {rows.NOT_ENOUGH}: 1% false alarms need {FEWEST} "
            f"judged non-members, and there were {judged}."
        )
    else:
        right, between, chance = spoken(reading.found, CHANCE)
        text = (
            f"finds {right} of {records} ({_level(reading.found)} interval {between}) while wrongly naming 1 "
            f"in 100 others; guessing finds {chance}."
        )
    if reading.severity == "ranking":
        a = reading.auroc
        text += (
            f" Its ranking tells members from others: AUROC {number(a.value)} ({_level(a)} "
            f"interval {number(a.low)} to {number(a.high)})."
        )
    return text


def _notes(watch: Watch) -> Iterator[str]:
    """What belongs to the verdict of one dataset."""
    worst, best = watch.worst, watch.best_defended
    yield from map(capitalise, worst.failures)
    if worst.severity not in LEAKS:
        yield from worst.doubts
    if worst.attacks and not worst.sites and worst.strongest.games > 1:
        yield "The findings for single clients were not kept. One may leak more than the mean: audit again."
    if best and best.number != worst.number:
        least = f" That is the least of {len(watch.defended)} defended federations seen in the same way."
        free, cost = watch.undefended(best), ""
        if best.utility.main and free and free.utility.main:
            kept, whole = (percent(one.utility.main.value) for one in (best, free) if one.utility.main)
            cost = f" Task {best.utility.word} {kept}, without defense {whole}."
        yield (
            f"{_sentence(best)} Reading: {SEVERITIES[best.severity].lower()}."
            f"{least if len(watch.defended) > 1 else ''}{cost}"
        )
    lost = len(watch.federations) - len(watch.measured)
    if lost and worst.attacks:
        are = "is" if lost == 1 else "are"
        yield f"{plural(lost, 'more federation')} failed and {are} not counted."


def _sees_more(federation: Federation) -> bool:
    """Whether the strongest attack is about one client, and looks at more than its updates."""
    return federation.seen != "uploads" or federation.strongest.first.uses == "all updates"


def _watcher(federation: Federation) -> str:
    found = federation.first
    rounds = plural(found.rounds, "round")
    if found.seen == "sum":
        return f"only the sum of {plural(found.clients, 'client')}' updates of {rounds}"
    if found.seen == "broadcast":
        return f"only the global models of {rounds}"
    return (
        f"all clients' updates of {rounds}" if _sees_more(federation) else f"one client's updates of {rounds}"
    )


def _own(federation: Federation) -> str:
    """How many records a member is sought among: one client's, or all of them."""
    found = federation.first
    if found.seen != "uploads" and not federation.strongest.first.clients:
        return f"{found.members:,}"
    dealt = not federation.recorded and federation.cell.game.get("how", "iid") == "iid"
    roughly = "" if found.clients == 1 or dealt else "roughly "
    return f"{roughly}{round(found.members / found.clients):,}"


def _level(average: Average) -> str:
    return f"{100 * average.level:.4g}%"


def _remarks(result: Result[MembershipFound]) -> Iterator[str]:
    """What is easily overlooked about the audit of a federation."""
    found, cell = result.found, result.cell
    if cell.note:
        yield cell.note
    if found is None or result.error:
        return
    yield from found.remarks
    if found.server:
        yield f"the recorded steps show this server: {found.server}."
    worth = found.utility
    if worth.idle:
        yield (
            f"the model of the federation is not clearly better than always saying {worth.constant}. Once it "
            f"has learned more, it may give away more."
        )
    if found.held < LEAST:
        yield (
            f"the test at 1% was left out: its threshold needs {LEAST} records of nobody, and there were "
            f"{found.held}{_in_all(cell, LEAST, held=True)}."
        )
    wanted = needed(1 - 0.05 / count_intervals(found.attacks), 0.01)
    if found.judged < wanted:
        yield (
            f"a lower limit at 1% false alarms needs {wanted} judged records of nobody for each client, and "
            f"there were {found.judged}{_judge_more(found, cell, wanted)}."
        )


def _judge_more(found: MembershipFound, cell: Cell, wanted: int) -> str:
    """How so many records of nobody are judged for each client: more trials help where there are as many."""
    short = found.others < wanted * (found.clients if is_by_site(cell) else 1)
    ways = [_in_all(cell, wanted, held=False) or "; give more records"] if short else []
    few = cell.trials - cell.trials // 2 < wanted
    return "".join([*ways, *([f"; raise --trials to {2 * wanted}"] if few else [])])


def _in_all(cell: Cell, wanted: int, *, held: bool) -> str:
    """How many candidates of nobody the audit of a recording needs for so many held out, or judged."""
    if "recording" not in cell.game:
        return ""
    known, kept = (cell.game.get(name, getattr(RecordingAudit, name)) for name in ("known", "held"))
    share = kept if held else 1 - known - kept
    return f"; give {math.ceil(wanted / share - 1e-9)} candidates of nobody or more"
