"""What was found of records behind gradients or uploads, for every number of them."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from leakscope.core.nouns import Count, Estimate
from leakscope.measures.shuffled import SelfCheck
from leakscope.results.scores import FrozenModel, Worth


class ColumnFound(FrozenModel):
    """The share of cells of one column that are right, and that would be by its commonest value."""

    name: str
    right: Estimate
    mode: Estimate


class ConfidentCells(FrozenModel):
    """Of records that are not certified: the share of all cells that are ``called``, with a confidence
    ``above`` this, and the share of these that are ``right``."""

    above: float
    called: Estimate
    right: Estimate


class Search(FrozenModel):
    """How far the search came in so many ``batches``: in how many it ``ended`` by itself, was ``stopped`` at
    too many branches, found fewer dimensions than records (``short``), had dimensions ``left`` that
    categories do not fix, or a space that something ``disturbed`` and did not drown, or ``fitted`` records
    that it could not prove; and medians of the ``rank`` and of the ``gap`` below it."""

    batches: Count
    ended: Count
    stopped: Count
    short: Count
    left: Count
    disturbed: Count = 0
    fitted: Count = 0
    rank: float
    gap: float

    @property
    def whole(self) -> bool:
        """Whether what was not found was not there to be found by this attack."""
        return self.ended == self.batches


class RebuiltRecord(FrozenModel):
    """A record and what was said of it, as (column, original, said): private."""

    status: str
    exact: bool
    cells: tuple[tuple[str, str, str], ...]


class SizeFound(FrozenModel):
    """What came back of ``records`` behind one release. ``guessing``: the share that is exact if as many
    public records are said; ``false``: certificates of records that were not there, for each release. Of a
    recording: what came back of a ``client``, from its releases in so many ``rounds`` together, each of
    so many ``clients``, of whose records so many are ``known`` to the audit."""

    records: Count
    exact: Estimate
    certified: Estimate
    false: Estimate
    guessing: float
    cells: Estimate
    mode: Estimate
    columns: tuple[ColumnFound, ...]
    search: Search
    selfcheck: SelfCheck
    confident: ConfidentCells | None = None
    shown: tuple[RebuiltRecord, ...] = ()
    client: str = ""
    rounds: Count = 1
    known: Count = 0
    clients: Count = 0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.certified.value > self.exact.value + 1e-9:
            raise ValueError("no more records can be exact and certified than are exact")
        return self


class RecordsFound(FrozenModel):
    """What came back from one release, for every number of records behind it, the smallest first. ``clients``
    whose releases were summed; ``uploads``: after local training, else gradients; ``epochs`` that the model
    had been trained for before. ``recorded``: these are the releases of a recording themselves, which are
    counted and stand for no others, with ``remarks`` on it. ``unread``: why nothing was read at all."""

    sizes: tuple[SizeFound, ...]
    uploads: bool
    clients: Count
    epochs: Count
    public: Count
    utility: Worth[Estimate] | None = None
    recorded: bool = False
    remarks: tuple[str, ...] = ()
    unread: str = ""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if bool(self.sizes) == bool(self.unread):
            raise ValueError("either records of at least one size were asked for, or it is said why not")
        return self
