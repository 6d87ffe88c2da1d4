"""What the audit of a guard found."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from leakscope.core.nouns import Estimate
from leakscope.games.releases import Holding
from leakscope.guards.hidden import Secret
from leakscope.measures.shuffled import SelfCheck
from leakscope.results.scores import FrozenModel, RebuiltPicture, Scores, Worth

Needless = Literal["raw", "without", "plain", "noise", "early"]


class Attacked(FrozenModel):
    """One attack on one encoder. ``queries``: how many draws of a record's noise it averaged. ``chosen``: it
    is the one that rehearsals chose. ``guessing`` is the success rate without the release."""

    name: str
    attack: str  # with its settings
    queries: int
    scores: Scores[Estimate]
    chosen: bool = False
    guessing: float | None = None
    selfcheck: SelfCheck | None = None
    roc: tuple[tuple[float, float], ...] = ()


class Row(FrozenModel):
    """What is told by whoever holds more, or less, than one release of a record: ``attack`` is the one that
    rehearsals chose for it. ``labelled``: the task's label is held too. ``count``: how many draws or queries
    there were. ``usual``: it takes no more than ordinary use; else the owner has lost something."""

    holding: Holding
    labelled: bool = False
    count: int = 1
    attack: Attacked

    @property
    def title(self) -> str:
        """What the row is called."""
        name = TITLES[self.holding].format(self.count)
        if not self.labelled:
            return name
        return "label alone" if self.holding == "nothing" else f"{name} and the label"

    @property
    def usual(self) -> bool:
        return self.holding != "keyed"


TITLES: dict[Holding, str] = {
    "once": "one draw",
    "again": "{} draws",
    "beside": "two encoders",
    "near": "{} neighbouring queries",
    "stepped": "{} queries a grid step away",
    "changed": "changed record",
    "named": "changed record of a named person",
    "keyed": "key known",
    "nothing": "nothing",
}


class TaskWorth(FrozenModel):
    """The task, by a ``fresh`` head on the representations, or by the head that is ``released`` with them;
    and by the guard's ``own`` head, where it has one."""

    head: Literal["fresh", "released"]
    task: Worth[Estimate]
    own: Worth[Estimate] | None = None


class Tried(FrozenModel):
    """Representations, by what they are worth and by what attacks find in them."""

    utility: TaskWorth
    attacks: tuple[Attacked, ...]

    @property
    def strongest(self) -> Attacked:
        """The attack that rehearsals chose; of reconstructions, which are not chosen, the likest."""
        once = [attack for attack in self.attacks if attack.queries == 1]
        return next((attack for attack in once if attack.chosen), max(once, key=_likeness))


def _likeness(attack: Attacked) -> float:
    ssim, error = attack.scores.ssim, attack.scores.mse
    return ssim.value if ssim else -error.value if error else 0.0


class Baseline(Tried):
    """What needs no guard, measured alike: the records as they are, without the secret's column, plain
    training, plain training with the guard's noise, or one that stops early."""

    name: str
    needless: Needless


class Theorem(FrozenModel):
    """The papers' bound on an attacker's accuracy, if H(u | r) were what one attacker's loss says it is. That
    is an estimate: the bound is no certificate. ``measured`` is how often that same attacker is right. An
    attacker that is badly calibrated, by so many nats (``miscalibrated``), gives no ``bound`` at all."""

    entropy: Estimate  # nats
    bound: float | None
    measured: Estimate
    miscalibrated: float | None = None


class LeastError(FrozenModel):
    """The least error of a task that goes with the secret (paper 004, theorem 1), if no attacker had a larger
    ``advantage`` than was measured; ``gap`` is how much the label's share differs between the groups."""

    gap: float
    advantage: float
    least: float
    measured: float


class RebuildingRisk(FrozenModel):
    """The least chance that a reconstruction misses by more than a ``radius`` (paper 003, theorem 3), from
    the most ``information`` in nats that the noise lets through and the ``chance`` of a guess without it."""

    information: float
    radius: float
    chance: float
    least: float


class LocalPrivacy(FrozenModel):
    """Local differential privacy of one release; without ``epsilon`` there is none, for a ``reason``."""

    delta: float
    sensitivity: float | None = None
    epsilon: float | None = None
    reason: str = ""


class Information(FrozenModel):
    """An estimate of I(u; r) in nats. ``lower``: its method is a lower bound."""

    estimate: Estimate
    lower: bool


class Cloud(FrozenModel):
    """Representations in two or three dimensions; ``codes`` are places among the values of the secret."""

    points: tuple[tuple[float, ...], ...]
    codes: tuple[int, ...]


class SecretMap(FrozenModel):
    """Representations of plain training and of the guard."""

    before: Cloud
    after: Cloud


class Judged(Tried):
    """One secret that an encoder is to hide. ``stale`` is the network that the guard was trained with;
    ``single`` are attacks on single records where a mean is guarded; ``rows`` what is told by whoever holds
    something else than one release."""

    secret: Secret
    column: str | None
    values: tuple[str, ...]
    stale: Attacked | None = None
    single: tuple[Attacked, ...] = ()
    rows: tuple[Row, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    theorem: Theorem | None = None
    least_error: LeastError | None = None
    risk: RebuildingRisk | None = None
    local: LocalPrivacy | None = None
    information: dict[str, Information] = Field(default_factory=dict)
    map: SecretMap | None = None

    @property
    def title(self) -> str:
        """What numbers call the secret."""
        return self.column or self.secret


class Seconds(FrozenModel):
    """Of training the guard, and of plain training for as many epochs, where it has a task head."""

    guard: float
    plain: float | None


class Tuning(FrozenModel):
    """A guard's ``strength`` that was sought: ``measured`` is what it has at ``value``, ``target`` what the
    other guard has, ``reached`` whether that lies within the interval. Utilities are compared record by
    record: ``difference`` is that of both guards, and ``alike`` are the other strengths that were tried and
    whose difference cannot be told from 0 either."""

    to: Literal["privacy", "utility"]
    strength: str = ""
    target: float
    value: float
    measured: Estimate
    reached: bool
    tried: dict[str, float]
    difference: Estimate | None = None
    alike: tuple[str, ...] = ()


class GuardsFound(FrozenModel):
    """An audit of a guard; ``judged`` holds one entry for each secret. ``history`` is what was seen in each
    epoch of the guard's training. ``told`` is the column that whoever encodes must know of each record."""

    judged: tuple[Judged, ...]
    lam: float | None = None
    history: tuple[dict[str, float], ...] = ()
    seconds: Seconds
    pictures: tuple[RebuiltPicture, ...] = ()
    tuned: Tuning | None = None
    told: str | None = None

    @property
    def utility(self) -> Worth[Estimate]:
        """What the task is worth: an encoder that keeps none of it hides a secret with ease."""
        return self.judged[0].utility.task

    @property
    def narrow(self) -> tuple[str, ...]:
        """The attributes that were sought in single releases only: not beside labels, nor in several."""
        return tuple(one.title for one in self.judged if one.secret == "attribute" and not one.rows)
