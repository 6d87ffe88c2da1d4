"""Many runs on one page: of each the number that matters most, its defense, what the model is worth, and
whether it keeps to a declared risk appetite."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from leakscope import gating, store, svg
from leakscope.averages import Average, Json
from leakscope.errors import LeakscopeError, StoreError
from leakscope.federations import CHANCE, watches
from leakscope.guard_pages import GuardPage, guard_pages
from leakscope.layer_maps import LayerMap, layer_maps
from leakscope.pages import marked, number, percent, template
from leakscope.sections import attributes, secrets, words
from leakscope.summary import SEVERITIES, audits, summarise

DECLARED = "appetite.toml"  # a risk appetite that lies in a results folder, or beside it
HEADER = [
    "run",
    "about",
    "reading",
    "strongest attack",
    "interval",
    "guessing",
    "defense",
    "task accuracy",
    "gate",
]
MEASURES = {"auroc": "AUROC", "success": "success rate", "ssim": "SSIM", "mse": "mean squared error"}
SHARES = ("success rate", "hits at 1% false alarms")  # said in percent


@dataclass(frozen=True)
class Headline:
    """The strongest attack on what a run is about. A certified epsilon has no severity and no guessing."""

    about: str
    data: str
    severity: str
    attack: str
    measure: str
    found: Average | None
    guessing: float | None
    defense: str
    utility: Average | None

    @property
    def shown(self) -> tuple[str, str, str]:
        """Value, interval and guessing in words."""
        if self.found is None:
            return "–", "", "–"
        say = percent if self.measure in SHARES else number
        if self.measure == "epsilon":
            return f"at least {number(self.found.low)}", f"at {self.found.level:.0%} confidence", "–"
        between = f"{say(self.found.low)} to {say(self.found.high)}"
        return say(self.found.value), between, say(self.guessing)

    @property
    def worst_first(self) -> tuple[int, float]:
        place = SEVERITIES.index(self.severity) if self.severity else len(SEVERITIES)
        return place, -self.found.low if self.found else 0.0


@dataclass(frozen=True)
class Run:
    """One results folder: its worst headline of ``settings`` in all. Without a headline nothing was run."""

    title: str
    folder: str
    link: str  # of its report, from where the page lies; empty if there is none
    headline: Headline | None
    settings: int
    failed: int  # results
    results: int
    gate: str = ""  # the verdict, in a word


def run(folder: Path, *, page: Path) -> Run:
    """A results folder, seen from a page."""
    try:
        plan = tomllib.loads(store.plan(folder))
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"its plan.toml is not valid TOML ({error}); run the plan again.") from None
    found = store.results(folder)
    report = folder / "report.html"
    link = os.path.relpath(report.resolve(), page.resolve().parent) if report.exists() else ""
    every = sorted(headlines(found), key=lambda one: one.worst_first)
    return Run(
        title=str(plan.get("name", folder.name)),
        folder=folder.resolve().name,
        link=quote(Path(link).as_posix()) if link else "",
        headline=every[0] if every else None,
        settings=len({str(result["cell"]) for result in found}),
        failed=sum(bool(result.get("error")) for result in found),
        results=len(found),
    )


def runs(folders: Sequence[Path], *, page: Path) -> tuple[list[Run], list[str]]:
    """Every folder that can be read, and a sentence for each that cannot, or whose appetite cannot."""
    found: list[Run] = []
    bad: list[str] = []
    for folder in folders:
        try:
            found.append(run(folder, page=page))
            found[-1] = replace(found[-1], gate=_gate(folder))
        except LeakscopeError as error:
            named = str(folder) in str(error)
            bad.append(str(error) if named else f"{folder}: {error}")
    return found, bad


def headlines(results: Sequence[Json]) -> Iterator[Headline]:
    """One for every secret, federation, model, guard or attribute that results tell of."""
    for secret in secrets(summarise(results)):
        s = secret.worst.section
        yield Headline(
            about=secret.title,
            data=secret.data,
            severity=s.severity,
            attack=words(s.cell.get("attack") or {}),
            measure="success rate",
            found=s.estimates.get("success"),
            guessing=s.guessing,
            defense=secret.worst.defense,
            utility=s.utility.get("accuracy"),
        )
    for watch in watches(results):
        one, strongest = watch.worst, watch.worst.strongest
        yield Headline(
            about="who was trained on",
            data=watch.data,
            severity=one.severity,
            attack=strongest.name if strongest else "",
            measure="hits at 1% false alarms",
            found=strongest.estimates["tpr_at_1%"] if strongest else None,
            guessing=CHANCE,
            defense=one.defense or one.shield.removeprefix("none"),
            utility=one.utility.get("accuracy"),
        )
    yield from map(_layered, layer_maps(results))
    yield from map(_guarded, guard_pages(results))
    for attribute in attributes(audits(results)):
        bounds = [(audit, audit.certified("any")) for audit in attribute.measured]
        known = [(audit, bound) for audit, bound in bounds if bound]
        if known:
            audit, bound = max(known, key=lambda pair: pair[1].low)
            yield Headline(
                about=attribute.name,
                data=attribute.data,
                severity="",
                attack=f"{audit.fact('statistic', '')}, {audit.record} record",
                measure="epsilon",
                found=bound,
                guessing=None,
                defense=words(audit.cell.get("defense") or {}),
                utility=None,
            )


def _layered(one: LayerMap) -> Headline:
    """By the layer, or all of them, that gives the largest advantage for sure."""
    views = [
        (risk.advantage, f"{latent.secret}, {name}")
        for latent in one.found.latent
        for name, risk in {**latent.layers, "all layers": latent.together}.items()
        if risk and risk.advantage
    ]
    gain, view = max(views, key=lambda pair: pair[0].low, default=(None, ""))
    return Headline(
        about=", ".join(latent.secret for latent in one.found.latent) or "the inputs",
        data=one.data,
        severity=one.severity,
        attack=view,
        measure="advantage",
        found=gain,
        guessing=0.0,
        defense=one.defense,
        utility=one.utility.get("accuracy"),
    )


def _guarded(page: GuardPage) -> Headline:
    """By the guard that the report tells of."""
    setting, judged = page.told or (None, None)
    strongest = judged.tried.strongest if judged else None
    return Headline(
        about=page.title,
        data=page.data,
        severity=page.severity,
        attack=strongest.name if strongest else "",
        measure=MEASURES[page.measure],
        found=judged.tried.attack(page.measure) if judged else None,
        guessing=page.guessing,
        defense=setting.label if setting else "",
        utility=judged.tried.accuracy if judged else None,
    )


def rows(found: Sequence[Run]) -> list[list[str]]:
    """The runs as the terminal shows them."""
    told = []
    for one in found:
        h = one.headline
        if h is None:
            told.append([one.title, "nothing has been run yet", *["–"] * (len(HEADER) - 3), one.gate or "–"])
            continue
        value, between, base = h.shown
        worth = percent(h.utility.value if h.utility else None)
        reading = h.severity or "certified"
        attack, defense, gate = f"{value} {h.measure}", h.defense or "none", one.gate or "–"
        title = f"{one.title} ({one.folder})"
        told.append([title, h.about, reading, attack, between, base, defense, worth, gate])
    return told


def render(found: Sequence[Run], bad: Sequence[str]) -> str:
    """The page. All words from the data are escaped."""
    return template("summary.html").render(
        title="Summary of runs", runs=found, bad=bad, icon=marked(svg.severity), severities=SEVERITIES
    )


def write(folders: Sequence[Path], page: Path) -> tuple[list[Run], list[str]]:
    """The page over all folders that can be read; refused where none can."""
    found, bad = runs(folders, page=page)
    if not found:
        raise StoreError(" ".join(bad) or "a summary needs at least one results folder.")
    store.write(page, render(found, bad))
    return found, bad


def _gate(folder: Path) -> str:
    """By the appetite that is kept with the results, or lies in their folder, or beside it."""
    places = (folder / gating.APPETITE, folder / DECLARED, folder.resolve().parent / DECLARED)
    path = next((place for place in places if place.is_file()), None)
    return gating.verdict(gating.read(path), gating.results(folder)).combined if path else ""
