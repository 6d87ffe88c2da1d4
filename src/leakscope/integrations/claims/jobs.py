"""NVFlare's job config of a client: which filters act on what it sends after training, and what passes by."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from leakscope.core.errors import DataError, refuse_all

TRAIN = "train"  # NVFlare looks for filters by the whole name of a task: "*" is no task
LISTS = ("task_result_filters", "task_data_filters")
MODEL = "submit_model"  # asks a client for its best model, as it is


def read_filters(name: str, found: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The filters of training results and those that act elsewhere; and what must not be asked of a client
    beside training."""
    if "workflows" in found:
        raise DataError(
            f"{name} is a server's job config: its filters act on what has reached the server. Give that of "
            f"a client."
        )
    inside: list[Mapping[str, Any]] = []
    elsewhere: list[str] = []
    tasks: set[str] = set()
    for group, sent in _groups(name, found):
        out = str(group.get("direction") or "out").lower() in ("out", "inout")
        acts = sent and out and TRAIN in group.get("tasks", [])
        for one in group["filters"]:
            if acts and one.get("disabled") is not True:
                inside.append(one)
                tasks |= {str(task) for task in group["tasks"]}
            else:
                elsewhere.append(str(one.get("path") or one.get("name")).rsplit(".", 1)[-1])
    if not inside:
        raise DataError(f"{name} has no filter on results of training: updates go out as they are.")
    return {"listed": inside, "elsewhere": tuple(elsewhere)}, _beside(name, found, tasks)


def _groups(name: str, found: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Each group of filters, and whether it is of results."""
    listed = {key: found.get(key, []) for key in LISTS}
    bad = [
        f"{name}: {key} must be a list of groups of filters, got {reprlib.repr(groups)}."
        for key, groups in listed.items()
        if not isinstance(groups, list)
    ]
    refuse_all(bad, name)
    for group, sent in [(group, key == LISTS[0]) for key in LISTS for group in listed[key]]:
        shaped = isinstance(group, Mapping) and isinstance(group.get("filters"), list)
        if not shaped or not all(isinstance(one, Mapping) for one in group["filters"]):
            raise DataError(f"{name}: each group of filters must have 'filters', a list of tables.")
        if not isinstance(group.get("tasks", []), list):
            raise DataError(
                f"{name}: tasks of a group must be a list of names, got {reprlib.repr(group['tasks'])}."
            )
        yield group, sent


def _beside(name: str, found: Mapping[str, Any], tasks: set[str]) -> tuple[str, ...]:
    """What a client also does for the server, by its executors, without these filters."""
    executors = found.get("executors", [])
    asked = [
        str(task)
        for one in (executors if isinstance(executors, list) else [])
        if isinstance(one, Mapping) and isinstance(one.get("tasks"), list)
        for task in one["tasks"]
    ]
    if asked and not any(fnmatchcase(task, pattern) for task in tasks for pattern in asked):
        raise DataError(
            f"{name} has filters on {', '.join(sorted(tasks))}, and its executors do {', '.join(asked)}: "
            f"what they send goes out as it is."
        )
    bare = [task for task in dict.fromkeys(asked or [MODEL]) if task not in tasks]
    words = " or ".join(bare)
    return (f"the server never asks for {words}, whose results pass by these filters",) if bare else ()
