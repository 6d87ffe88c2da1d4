"""What audits of a mechanism say on the first page."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.report.pages import listed, significant
from leakscope.results.chapter import Brief, Scene, Verdict, explain


def brief(names: Sequence[str], verdicts: Sequence[Verdict], exact: float | None, crafted: bool) -> Brief:
    """Of these attributes; ``exact`` is the largest epsilon that a step promises, if any does."""
    columns = listed(names)
    promise = f" The step itself promises epsilon = {significant(exact)}." if exact is not None else ""
    return Brief(
        asked=(f"How large is the epsilon of one DP-SGD step at least, for {columns} of one record?",),
        meaning=tuple(
            explain(
                verdict.severity,
                f"{name} in one step",
                f"One noisy step tells something about the {name} of one person. Epsilon says how much: at 0 "
                f"nothing, and each unit lets the odds of a guess grow by a factor of up to 2.7.",
            )
            for name, verdict in zip(names, verdicts, strict=True)
        ),
        helps=(f"More noise or a smaller clip lowers epsilon. Nothing else was tried.{promise}",),
        assumed=("The auditor chooses the record, and knows the model, the clip and the law of the noise.",),
        untested=(
            "Only one step was audited. Many steps give away more.",
            "Only the records that were tried. Another record can give a larger epsilon.",
        ),
        scene=Scene(
            holder="A client holds one record",
            records=(
                f"{'Crafted' if crafted else 'Sampled'} by the auditor, with one of two values of {columns}.",
            ),
            crosses=("Sent: one gradient", "clipped, with noise"),
            listener="The auditor",
            knows=("the model and the record", "the clip and the law of the noise"),
            wants=f"which of the two values of {columns} it has",
        ),
    )
