"""How fast PRIMS is beside its peers, on this machine, in one run: a table of rows with ratios and targets.

    python benchmarks/run.py [--quick] [--json] [--only ROW ...] [--list]

All rows take less than ten minutes. Run it when nothing else runs: single figures are noisy even then, so what is
compared is measured in turns, and medians are told. A peer that cannot be had here is named in the table, with why.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time

import rows
from bench import Bench, why

MOST_SECONDS = 180.0  # of one row; one that takes longer is given up, and said so


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--quick", action="store_true", help="a third of the repetitions")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    parser.add_argument("--only", nargs="+", choices=rows.ROWS, metavar="ROW", default=list(rows.ROWS))
    options = parser.parse_args()
    if options.list:
        print(*(f"{name:14} {' '.join((row.__doc__ or '').split())}" for name, row in rows.ROWS.items()), sep="\n")
        return 0
    bench = Bench(quick=options.quick)
    begun = time.monotonic()
    for name in options.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            async with asyncio.timeout(MOST_SECONDS):
                await rows.ROWS[name](bench)
        except Exception as problem:  # the other rows are worth having
            bench.missing(name, why(problem))
    took = time.monotonic() - begun
    if options.json:
        facts = {"python": sys.version.split()[0], "cpus": os.cpu_count(), "seconds": took, "load": os.getloadavg()[0]}
        print(json.dumps({**facts, "rows": bench.lines(), "missing": bench.gone}, indent=2))
    else:
        print(bench.table())
        print(f"\n{took:.0f} s, load {os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} CPUs")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
