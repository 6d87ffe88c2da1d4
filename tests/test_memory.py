"""Memory is bounded by what is kept, however many rows a table or records an attack has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="Linux tells the high-water mark"
)
ROWS = 500_000
SLACK = 200e6  # bytes that libraries take of their own on the way: pieces of a file, buffers, code


def peak(code: str, **given: object) -> dict:
    """What a fresh process tells: ``peak()`` in it is the most memory it had so far, in bytes. It is its
    own high-water mark: that of getrusage begins with what the parent had. What is freed goes back at once,
    so that the mark tells of what was held, and not of how the allocator's pools happened to fill."""
    head = "import json, re\nfrom pathlib import Path\n"
    head += "status = lambda: Path('/proc/self/status').read_text()\n"
    head += "peak = lambda: 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', status())[1])\n"
    head += f"given = json.loads({json.dumps(json.dumps(given))})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Half a million rows of ten columns: 34 inputs once encoded, 68 MB."""
    rng, n = np.random.default_rng(0), ROWS
    columns = {f"n{i}": rng.integers(0, 10_000, n) / 10 for i in range(5)}
    columns |= {"ward": rng.choice(list("ABCDEF"), n), "city": rng.choice([f"city{i}" for i in range(20)], n)}
    columns |= {"code": rng.integers(0, 1_000, n)}
    columns |= {"gender": rng.choice(["f", "m"], n), "mark": rng.choice(["yes", "no"], n)}
    path = tmp_path_factory.mktemp("big") / "big.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_half_a_million_rows_are_read_and_split_in_the_copies_that_are_promised(table):
    told = peak(
        """
        from leakscope import from_csv, seeded
        from leakscope.data.files import COPIES

        before = peak()
        data = from_csv(given["path"], label="mark", secrets="gender")
        read = peak()
        parts = data.split(seeded(0, "split"), secret="gender")
        size = data.x.numel() * data.x.element_size()
        sizes = {"size": size, "rows": len(data), "copies": COPIES}
        print(json.dumps({"read": read - before, "split": peak() - before, **sizes}))
        """,
        path=str(table),
    )
    print({name: round(told[name] / told["size"], 2) for name in ("read", "split")}, told)
    assert told["rows"] == ROWS
    assert told["size"] == 34 * 4 * ROWS
    columns = 10 * 8 * ROWS  # a code and a number of every cell, before they are encoded
    assert told["read"] <= told["size"] + columns + SLACK
    assert told["split"] <= told["copies"] * told["size"] + SLACK


@pytest.mark.slow
def test_half_a_million_rows_are_audited_in_a_few_copies_of_the_records(table, tmp_path):
    told = peak(
        """
        import sys
        import leakscope.cli, leakscope.run.experiment, leakscope.report.page, pandas
        before = peak()
        words = ["audit", given["path"], "--label", "mark", "--secret", "gender", "--trials", "200"]
        words += ["--rehearsals", "200", "--rounds", "1", "--jobs", "1", "-o", given["out"]]
        code = leakscope.cli.app(words, standalone_mode=False)
        print()
        print(json.dumps({"audit": peak() - before, "code": code or 0}))
        """,
        path=str(table),
        out=str(tmp_path / "out"),
    )
    size = 34 * 4 * ROWS
    print(f"{told['audit'] / size:.2f} copies of the records")
    assert told["code"] == 0
    assert (tmp_path / "out" / "report.html").exists()
    assert told["audit"] <= 8 * size + SLACK


def test_memory_that_a_cell_has_freed_is_given_back():
    told = peak(
        """
        import torch
        from leakscope.results.cell import Cell
        from leakscope.run import engines, experiment

        def held():
            return 1024 * int(re.search(r"VmRSS:\\s+(\\d+)", status())[1])

        def work(world, begun):
            blocks = [torch.ones(8_192) for _ in range(8_000)]  # 32 KB each, freed below one that stays
            stays.append(torch.ones(8_192))
            most.append(held())

        experiment.run_in, stays, most = work, [], []
        game = {"name": "Inference", "secret": "group", "batch": 2}
        cell = Cell.model_validate({"data": {"name": "synthetic"}, "game": game})
        engines.run_task(cell, 0, trusted=(), spare=1)
        print(json.dumps({"given": most[0] - held()}))
        """
    )
    assert told["given"] >= 200_000_000


MODEL = """
import torch
from torch import nn
from leakscope import gradients, seeded

torch.set_num_threads(1)
widths = given["widths"]
layers = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.ReLU())]
model = nn.Sequential(*layers[:-1])
params = {name: p.detach() for name, p in model.named_parameters()}
size = sum(4 * p.numel() for p in params.values())
rng = seeded(0)
direction = {name: torch.randn(p.shape, generator=rng) for name, p in params.items()}
x = torch.randn(given["records"], widths[0], generator=rng)
y = torch.randint(0, widths[-1], (given["records"],), generator=rng)
before = peak()
"""


def passes(widths: list[int]) -> float:
    """Bytes of one pass: of each of 512 records every layer's input, output and their gradients."""
    return 512 * 4.0 * 4 * sum(widths)


@pytest.mark.slow
@pytest.mark.parametrize("records", [64, 600])
def test_sixty_million_parameters_are_aligned_in_one_copy_of_them(records):
    """However many records: 600 are more than one pass has."""
    widths = [1_000, 7_000, 7_500, 10]
    told = peak(
        MODEL
        + """
found = gradients.alignment(model, params, x, y, direction)
finite = all(bool(part.isfinite().all()) for pair in found.values() for part in pair)
print(json.dumps({"peak": peak() - before, "size": size, "finite": finite}))
""",
        widths=widths,
        records=records,
    )
    print(
        f"{records} records: {told['peak'] / told['size']:.2f} copies of {told['size'] / 4e6:.1f} M parameters"
    )
    assert told["finite"]
    assert told["size"] > 4 * 59e6
    assert (
        told["peak"] <= 1 * told["size"] + passes(widths) + SLACK
    )  # one record's gradient more would not fit twice


@pytest.mark.slow
def test_thirty_million_parameters_are_whitened_in_a_few_copies_of_their_moments():
    """Their moments are 490 MB: one copy more than is allowed would not fit into the slack."""
    widths = [1_024] * 29 + [10]
    told = peak(
        MODEL
        + """
roots = gradients.moments(model, params, x, y)
moments = sum(t.numel() * t.element_size() for part in (roots.inputs, roots.outputs) for t in part.values())
roots = roots.whitening(damping=dict.fromkeys(roots.inputs, 0.1))
whitened = peak() - before
found = gradients.alignment(model, params, x, y, direction, whitening=roots)
finite = all(bool(part.isfinite().all()) for pair in found.values() for part in pair)
print(json.dumps({"whitened": whitened, "peak": peak() - before, "size": size, "moments": moments, "finite": finite}))
""",
        widths=widths,
        records=256,
    )
    print({name: round(told[name] / told["size"], 2) for name in ("whitened", "peak", "moments")})
    assert told["finite"]
    assert told["moments"] > 2 * SLACK
    assert told["whitened"] <= 2 * told["moments"] + told["size"] + passes(widths) + SLACK
    # their inverse roots twice, in double and in single precision; the parameters and the direction again
    assert told["peak"] <= 2 * told["moments"] + 2 * told["size"] + passes(widths) + SLACK
