"""Whether the code still gives the golden numbers, bit for bit.

    python benchmarks/golden.py            every difference; ends with 1 if there is any
    python benchmarks/golden.py --record   write the numbers anew

Runs the tiny cells of tests/golden/cells.toml, about half a minute of one core, and compares every number
with tests/golden/numbers.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from golden_numbers import differences, record, recorded, run


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the golden numbers with those of this code.")
    parser.add_argument("--record", action="store_true", help="write the numbers anew")
    again = parser.parse_args().record
    with tempfile.TemporaryDirectory() as folder:
        rows = run(Path(folder) / "results")
    if again:
        record(rows)
        print(f"{len(rows)} numbers written")
        return 0
    old = recorded()
    found = differences(old, rows)
    for difference in found:
        print(difference)
    added = sum(not difference.old for difference in found)
    print(f"{len(old) + added} numbers, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
