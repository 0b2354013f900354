"""What grows over many runs: memory, descriptors, processes, threads, folders, cache entries of a server.

    python benchmarks/soak.py [--runs 1000]

Prints a table with a line for each moment. Between them, the runs are back to back, four at once at the end of each.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from bench import call, environment_of, prims, pss, servers, tree
from mcp.client import Client

Seen = dict[str, float]

CODE = """
import os, sys
print("x" * 1000)
with open("output/same.txt", "w") as file: file.write(str(os.getpid()))
with open("/tmp/scratch", "w") as file: file.write("x" * 10_000)
len(sys.modules)
"""


def look(server: int, state: Path, cache: Path) -> Seen:
    """Everything of a server that could grow, now."""
    named = [p for p in tree(server) if b"prims_kernel/parent.py" in Path(f"/proc/{p}/cmdline").read_bytes()]
    parent = max(named, key=pss, default=server)  # the others of that name are what walls it in
    return {
        "server MB": round(pss(server), 1),
        "parent MB": round(pss(parent), 1),
        "descriptors": len(os.listdir(f"/proc/{server}/fd")),
        "threads": len(os.listdir(f"/proc/{server}/task")),
        "processes": len(tree(server)),
        "parent's descriptors": len(os.listdir(f"/proc/{parent}/fd")),
        "folders": sum(len(folders) for _, folders, _ in os.walk(state)),
        # What a session remembers of its runs has a limit of its own.
        "files": sum(len(files) for path, _, files in os.walk(state) if not path.endswith("/history")),
        "cache entries": sum(len(folders) + len(files) for _, folders, files in os.walk(cache)),
    }


async def settled(server: int, state: Path, cache: Path) -> Seen:
    """A look when nothing is being made or removed: the same twice, a second apart."""
    before: Seen = {}
    for _ in range(30):
        await asyncio.sleep(1)
        now = look(server, state, cache)
        if {k: v for k, v in now.items() if "MB" not in k} == {k: v for k, v in before.items() if "MB" not in k}:
            break
        before = now
    return now


async def soak(client: Client, moments: list[int]) -> dict[int, Seen]:
    """Runs up to each of `moments`, and what is seen then."""
    [server] = servers()
    env = environment_of(server)
    state = Path(env["PRIMS_STATE_DIR"])
    cache = Path(env.get("PRIMS_CACHE_DIR") or Path.home() / ".cache" / "prims") / "layers"
    seen: dict[int, Seen] = {}
    done = 0
    for moment in moments:
        while done < moment:
            at_once = 4 if moment - done <= 8 else 1
            at_once = min(at_once, moment - done)
            await asyncio.gather(*(call(client, CODE) for _ in range(at_once)))
            done += at_once
        seen[done] = await settled(server, state, cache)
        print(f"  {done}: {seen[done]}", file=sys.stderr, flush=True)
    return seen


def growth(table: dict[int, Seen]) -> dict[str, tuple[float, float]]:
    """What was seen first and last."""
    first, last = table[min(table)], table[max(table)]
    return {what: (first[what], last[what]) for what in first}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="pb-") as cache:
        async with prims(PRIMS_CACHE_DIR=cache) as client:
            table = await soak(client, sorted({m for m in (10, 100, 500, runs) if m <= runs}))
    print(f"{'':22}" + "".join(f"{moment:>10}" for moment in table))
    for what in next(iter(table.values())):
        print(f"{what:22}" + "".join(f"{seen[what]:>10g}" for seen in table.values()))


if __name__ == "__main__":
    asyncio.run(main())
