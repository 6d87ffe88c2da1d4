"""What a person sees while cells are run, in a terminal and in a notebook: a bar, the time left, one line for
each finished cell."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakscope.core.errors import printable
from leakscope.results import store
from leakscope.results.cell import Plan
from leakscope.results.kind import headline
from leakscope.results.result import Result
from leakscope.run import sweep
from leakscope.run.engines import Engine, beat

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def bar(*, quiet: bool = False) -> Progress:
    """A bar with the time spent and left, on standard error; where that is no terminal and no notebook, lines
    only; ``quiet``: nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True, soft_wrap=True, quiet=quiet)
    words = TextColumn("{task.description}")
    columns = words, BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    shown = console.is_terminal or console.is_jupyter
    # Rich forgets what is older than 30 seconds, and says nothing of the time left where steps are longer.
    return Progress(*columns, console=console, disable=quiet or not shown, speed_estimate_period=math.inf)


def say(progress: Progress, words: str) -> None:
    progress.console.print(f"  {printable(words)}", highlight=False, markup=False)


def run_plan(
    plan: Plan,
    text: str,
    folder: Path,
    *,
    jobs: int | None = None,
    trusted: Sequence[str] = (),
    engine: Engine | None = None,
    quiet: bool = False,
) -> list[Result[Any]]:
    """Run a plan under a progress bar: every cell and seed is checked before anything is computed."""
    asked = store.asked(plan)
    names = {key: f"{cell.id or cell.game_name}, seed {seed}" for key, (cell, seed) in asked.items()}
    with bar(quiet=quiet) as progress:
        task = progress.add_task("checking the plan", total=None)
        tried = sweep.check(plan, trusted=trusted)
        store.claim(folder, text, plan.digest)
        if sentence := sweep.look(plan, folder).sentence:
            say(progress, sentence)
        progress.update(task, description=f"{len(names)} cells")

        def step(finished: sweep.SweepStep) -> None:
            progress.update(task, completed=finished.done, total=finished.total)
            if finished.partly:
                return
            told = f"failed: {finished.said}" if finished.said else headline(finished.result)
            say(progress, f"{names[finished.result.key]}: {told}")

        with _beating(progress, names) as beats:
            return sweep.run(
                plan,
                folder,
                text=text,
                jobs=jobs,
                trusted=trusted,
                progress=step,
                tried=tried,
                engine=engine,
                beats=beats,
            )


@contextmanager
def _beating(progress: Progress, names: Mapping[str, str]) -> Iterator[Path]:
    """A folder in which workers say how far they have come inside a cell, and a line of the bar for each."""
    ended = threading.Event()

    def watch(folder: Path) -> None:
        shown: dict[str, TaskID] = {}
        while not ended.wait(0.3):
            show_beats(progress, folder, names, shown)

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=watch, args=(Path(folder),), daemon=True)
        if not progress.disable:
            thread.start()
        try:
            yield Path(folder)
        finally:
            ended.set()
            if thread.is_alive():
                thread.join()


def show_beats(progress: Progress, folder: Path, names: Mapping[str, str], shown: dict[str, TaskID]) -> None:
    """Bring the lines of the bar to what workers have said in the folder; ``shown`` are the lines by file."""
    for file in folder.iterdir():
        if (reached := beat(file)) is None:
            continue
        if file.name not in shown:
            key = file.name.partition("-")[0]  # of parts of a cell more follows
            shown[file.name] = progress.add_task(f"  inside {printable(names.get(key, ''))}")
        done, total = reached
        progress.update(shown[file.name], completed=done, total=total, visible=done < total)
