"""Where cells are run: in processes of this machine, or by the workers of a Ray cluster.

An engine yields the results of cells as they finish. A cell computes with one thread of torch and BLAS,
whatever the machine, because sums depend on how they are split; forests may use the idle cores, which does
not change them.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor

from leakscope.core.errors import ArgumentError, LeakscopeError, MissingExtra, require
from leakscope.core.fingerprints import keyed
from leakscope.core.trust import Foreign
from leakscope.results.cell import Cell
from leakscope.results.result import Result

if TYPE_CHECKING:
    from torch import nn

    from leakscope.core.dataset import Dataset


class CellTask(NamedTuple):
    """A cell and its seed, or, where they are named, some parts of it; see `results.kind.Division`."""

    cell: Cell
    seed: int
    names: tuple[str, ...] = ()
    facts: Any = None

    @property
    def beat(self) -> str:
        """The name of the file in which it says how far it has come."""
        key = self.cell.key(self.seed)
        return f"{key}-{hashlib.sha256(self.names[0].encode()).hexdigest()[:12]}" if self.names else key


@dataclass(frozen=True)
class Finished:
    """A cell that has been run: its result, the files that belong to it, and what an error says on the
    screen, which may quote records and is not kept. Of ``parts`` of a cell the result says nothing yet."""

    result: Result[Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    said: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0  # of the parts


Results = Generator[Finished, None, None]
DIGEST = "digest"  # under this key lent records have their fingerprint
ATTEMPTS = 3  # workers that a cell may cost before it counts as failed
FEW_CELLS = 12  # that are begun in this process
SOON = 20  # seconds that the rest may take in this process: others would hardly have started
SHORT = 24  # characters of a folder for temporary files in which Ray's sockets can have their place
PATIENCE = 5  # seconds in which a cluster must answer
# Workers are started by a module's name, which Python would otherwise look for in the current folder first:
# a joblib.py that came with somebody's plan would run.
_SAFE = {"PYTHONSAFEPATH": "1"}


class Engine(Protocol):
    """Who runs cells."""

    def results(
        self,
        tasks: Sequence[CellTask],
        *,
        jobs: int | None,
        trusted: tuple[str, ...],
        beats: Path | None = None,
    ) -> Results:
        """The results of the tasks as they finish, at most ``jobs`` at the same time. Where workers share
        the disk, the folder ``beats`` holds how far each has come with a long cell."""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chosen(name: str, *, address: str | None = None) -> Engine:
    """The engine of that name, refused at once where it is not installed or nobody answers at ``address``."""
    require(name in ("loky", "ray"), "engine", "loky or ray", name)
    if name == "ray":
        _imported(address)
        if address is not None:
            _answered(address)
        return Ray(address)
    if address is not None:
        raise ArgumentError(f"--address {address} is of a Ray cluster; give --engine ray with it.")
    return Loky()


def run_task(
    cell: Cell,
    seed: int,
    *,
    trusted: tuple[str, ...],
    spare: int,
    records: Dataset | None = None,
    beats: Path | None = None,
    net: nn.Module | None = None,
    names: tuple[str, ...] = (),
    facts: Any = None,
    parts: Mapping[str, str] | None = None,
) -> Finished:
    """One cell in the process it is called in, or the parts of it that are named; ``parts`` are those that
    are done. What the user can put right is kept as the cell's error, never as a result; anything else is a
    defect and ends the sweep."""
    import torch
    from threadpoolctl import threadpool_limits

    from leakscope.run import experiment

    torch.set_num_threads(1)
    begun = time.perf_counter()
    try:
        named = f"model {cell.model['name']!r}, or another part of the user's own, fails"
        limits = threadpool_limits(1), parallel_config("threading", n_jobs=spare)
        with limits[0], limits[1], Foreign(named, trusted):
            file = beats / CellTask(cell, seed, names).beat if beats and beats.is_dir() else None
            kept: dict[str, bytes] = {}
            world = experiment.enter(
                cell,
                seed,
                records=records,
                trusted=trusted,
                watch=partial(_beat, file) if file else None,
                keep=kept.__setitem__,
                net=net,
                facts=facts,
                parts=parts or {},
            )
            if names:
                found = experiment.run_parts(world, names)
                return Finished(_blank(cell, seed), parts=found, seconds=time.perf_counter() - begun)
            return Finished(experiment.run_in(world, begun), kept)
    except LeakscopeError as error:
        return _fail(cell, seed, str(error), error.public)
    finally:
        _give_back()


def _give_back() -> None:
    """Return freed memory to the machine, for the cells beside this one and after it: glibc keeps whatever
    lies below a block that is still in use, which can be more than the records take."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def _beat(file: Path, done: int, total: int) -> None:
    file.write_text(f"{done} {total}")


def beat(file: Path) -> tuple[int, int] | None:
    """How far the worker behind this file has come: done, of; None while it is being written."""
    try:
        done, total = map(int, file.read_text().split())
    except (OSError, ValueError):
        return None
    return done, total


def _blank(cell: Cell, seed: int, error: str = "") -> Result[Any]:
    return Result[Any](key=cell.key(seed), seed=seed, kind=cell.kind, cell=cell, error=error)


def _fail(cell: Cell, seed: int, said: str, kept: str = "") -> Finished:
    return Finished(_blank(cell, seed, kept or said), said=said)


def _bound(parent: int) -> None:
    """End this worker when the sweep's process is gone, however it went: there is nobody to work for."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@dataclass(frozen=True)
class Loky:
    """Processes of this machine; each cell loads its own records.

    Of a few cells the first is run in this process, unless it is said how many ``jobs`` there are to be, and
    so are the others while all that are left, cells or parts of them, would take less than `SOON` seconds,
    were each as slow as the slowest so far: starting a process takes as long."""

    def results(
        self,
        tasks: Sequence[CellTask],
        *,
        jobs: int | None,
        trusted: tuple[str, ...],
        beats: Path | None = None,
    ) -> Results:
        tasks = [CellTask(*task) for task in tasks]
        few = jobs is None and len({task.cell.key(task.seed) for task in tasks}) <= FEW_CELLS
        slowest = 0.0 if few else SOON
        while tasks and slowest * len(tasks) < SOON:
            begun, (task, *tasks) = time.perf_counter(), tasks
            yield run_task(**task._asdict(), trusted=trusted, spare=cores(), beats=beats)
            slowest = max(slowest, time.perf_counter() - begun)
        if tasks:
            yield from self._in_processes(tasks, jobs=jobs, trusted=trusted, beats=beats)

    def _in_processes(
        self, tasks: Sequence[CellTask], *, jobs: int | None, trusted: tuple[str, ...], beats: Path | None
    ) -> Results:
        jobs = min(jobs or cores(), len(tasks)) or 1
        os.environ.update(_SAFE)
        shared: Any = {"trusted": trusted, "spare": max(1, cores() // jobs), "beats": beats}
        calls = (delayed(run_task)(**task._asdict(), **shared) for task in tasks)
        backend: Any = {"backend": "loky", "initializer": _bound, "initargs": (os.getpid(),)}
        with parallel_config(n_jobs=jobs, **(backend if jobs > 1 else {})):
            parallel = Parallel(return_as="generator_unordered", batch_size=1)
        try:
            yield from parallel(calls)
        except (KeyboardInterrupt, GeneratorExit):
            if jobs > 1:  # the workers must not go on without us
                get_reusable_executor().shutdown(wait=False, kill_workers=True)
            raise


@dataclass(frozen=True)
class Ray:
    """The Ray cluster at ``address``, or one of this machine's own for as long as the work takes.

    Records are loaded here and lie in the cluster's object store once, for all cells; results come back
    here. A cell whose worker or machine dies is given to another, `ATTEMPTS` times in all; then it has
    failed, and the others go on. joblib's backend for Ray tells no result before the last one is there,
    and with one cell that no worker survives it loses them all, so cells are Ray's own tasks.
    """

    address: str | None = None

    def results(
        self,
        tasks: Sequence[CellTask],
        *,
        jobs: int | None,
        trusted: tuple[str, ...],
        beats: Path | None = None,
    ) -> Results:
        if tasks:
            ray = _imported(self.address)
            with _connected(ray, self.address, cpus=min(jobs or cores(), len(tasks))):
                yield from _finished(ray, tasks, at_once=jobs or len(tasks), trusted=trusted, beats=beats)


def _finished(
    ray: Any, tasks: Sequence[CellTask], *, at_once: int, trusted: tuple[str, ...], beats: Path | None
) -> Results:
    run = ray.remote(num_cpus=1, max_retries=0)(_on_worker)  # Ray's own retries may have no end
    waiting = deque((CellTask(*task), 1) for task in tasks)  # and which attempt it is
    running: dict[Any, tuple[CellTask, int]] = {}
    lent: dict[str, Any] = {}
    facts: dict[int, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                task, attempt = waiting.popleft()
                name = repr(task.cell.data)
                if name not in lent:
                    lent[name] = ray.put(lendable(task.cell))
                if id(task.facts) not in facts:
                    facts[id(task.facts)] = ray.put(task.facts)
                shared = facts[id(task.facts)], lent[name], beats
                running[run.remote(task._replace(facts=None), trusted, Path.cwd(), *shared)] = task, attempt
            (done,), _ = ray.wait(list(running), num_returns=1)
            task, attempt = running.pop(done)
            try:
                yield ray.get(done)
            except ray.exceptions.RayTaskError:  # what the cell itself raised
                raise
            except ray.exceptions.RayError as error:  # its worker is gone
                if attempt < ATTEMPTS:
                    waiting.appendleft((task, attempt + 1))
                    continue
                words = f"its worker died in each of {ATTEMPTS} attempts, at last by {type(error).__name__}"
                yield _fail(task.cell, task.seed, f"{words}; lower --jobs or give it more memory.")
    finally:  # a cluster that is not ours would go on with them
        for begun in running:
            ray.cancel(begun, force=True)


def _on_worker(
    task: CellTask,
    trusted: tuple[str, ...],
    here: Path,
    facts: Any,
    lent: Mapping[str, Any] | None,
    beats: Path | None,
) -> Finished:
    """A cell on whichever machine; the paths in a plan begin where the command was given."""
    with chdir(here) if here.is_dir() else nullcontext():
        records = None if lent is None else borrowed(lent)
        own = task._replace(facts=facts)._asdict()
        finished = run_task(**own, trusted=trusted, spare=1, records=records, beats=beats)
        made = finished.result.made
        if lent is None or made.records is None:
            return finished
        known = made.records.model_copy(update={"digest": lent[DIGEST]})  # under the user's own key
        stamped = made.model_copy(update={"records": known})
        return replace(finished, result=finished.result.model_copy(update={"made": stamped}))


def lendable(cell: Cell) -> dict[str, Any] | None:
    """The fields of a cell's records, arrays for tensors: those Ray shares among workers without copies.
    Records that cannot be loaded are left to the cell, which tells why."""
    from leakscope.data import tabled

    try:
        records = tabled(cell.data)
    except LeakscopeError:
        return None
    private = {name: codes.numpy() for name, codes in records.private.items()}
    arrays = {"x": records.x.numpy(), "y": records.y.numpy(), "private": private}
    known = {DIGEST: keyed(records.digest)}
    return {field.name: getattr(records, field.name) for field in fields(records)} | arrays | known


def borrowed(lent: Mapping[str, Any]) -> Dataset:
    """The records in the memory they share with other workers: to read, not to write."""
    import torch

    from leakscope.core.dataset import Dataset

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        private = {name: torch.from_numpy(codes) for name, codes in lent["private"].items()}
        tensors = {"x": torch.from_numpy(lent["x"]), "y": torch.from_numpy(lent["y"]), "private": private}
    return Dataset(**{key: value for key, value in lent.items() if key != DIGEST} | tensors)


def _split(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{address.removeprefix('ray://')}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise ArgumentError(
            f"--address must be HOST:PORT or ray://HOST:PORT of a Ray cluster, got {address!r}."
        )
    return host, port


def _imported(address: str | None) -> Any:
    """Ray, which reads these settings while it is imported."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if address is not None:
        quiet |= {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_py_gcs_connect_timeout_s": str(PATIENCE)}
    if address is None or _split(address)[0] in ("localhost", "127.0.0.1", "::1"):
        # so that the loopback address stays one; otherwise Ray takes and opens the machine's public one
        quiet |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    os.environ.update(_SAFE)
    if address is None and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        # so that no other user of this machine can read or command it; Ray reads these once, when imported
        os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    try:
        import ray
    except ImportError as error:
        raise MissingExtra('--engine ray needs Ray; run: pip install "leakscope[ray]"') from error
    return ray


def _answered(address: str) -> None:
    try:
        socket.create_connection(_split(address), timeout=PATIENCE).close()
    except OSError as error:
        raise _unreachable(address, error) from None


def _unreachable(address: str | None, error: Exception) -> LeakscopeError:
    where = f"no Ray cluster at --address {address}" if address else "Ray cannot be started on this machine"
    return LeakscopeError(f"{where} ({error}); start one with: ray start --head")


@contextmanager
def _connected(ray: Any, address: str | None, *, cpus: int) -> Iterator[None]:
    """Ray for as long as the body runs; one that the caller has started is used and left alone."""
    if ray.is_initialized():
        yield
        return
    heard = signal.getsignal(signal.SIGTERM)
    with _private_folder() as folder:
        own: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": str(folder / "ray")}
        try:
            try:
                with chdir(folder):  # Ray lets its workers look for modules where it is started
                    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
                    ray.init(address or "local", **quiet, **(own if address is None else {}))
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise _unreachable(address, error) from None
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, heard)  # Ray's own would end the process without a word
            yield
        finally:
            ray.shutdown()


@contextmanager
def _private_folder() -> Iterator[Path]:
    """An empty folder that only this user can enter (Ray opens its own inside to all), and that is taken
    away, whoever still writes to it."""
    usual = tempfile.gettempdir()
    short = usual if len(usual) <= SHORT else "/tmp"  # the path of a socket in it has 107 bytes at most
    folder = Path(tempfile.mkdtemp(prefix="leakscope-", dir=short))
    try:
        yield folder
    finally:
        for _ in range(20):  # processes that are being ended may still write
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)
