"""One command for all benchmarks: `python tests/benchmarks/run.py`.

Prints one table of medians with their floors and aims. The exit status says
whether the measuring itself worked and never how fast anything was.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from harness import ROOT, Row, Settings, progress, table

BENCHMARKS = {
    "cycle": "cycle",
    "push": "push",
    "workers": "workers",
    "executors": "executors",
    "latency": "latency",
    "schedules": "schedules",
    "memory": "memory",
    "drain": "drain",
    "queue": "backlog",
    "huey": "peer_huey",
    "idle": "idle",
    "metrics": "metrics",
    "writer": "writer",
    "sqlite": "sqlite",
    "sweep": "sweep",
    "flows": "flows",
}
"""Names on the command line, and the modules that do the measuring."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 0, or 1 if a benchmark raised."""
    options = parser().parse_args(arguments)
    rounds = options.rounds or (3 if options.quick else 5)
    settings = Settings(quick=options.quick, rounds=rounds)
    sys.path.insert(0, str(ROOT))  # the checkout's package, installed or not
    about = environment(settings)
    print("  ".join(f"{key} {value}" for key, value in about.items()), flush=True)

    rows: list[Row] = []
    crashed = []
    began = perf_counter()
    for name in options.only or BENCHMARKS:
        try:
            rows += importlib.import_module(BENCHMARKS[name]).measure(settings)
        except Exception:  # one that breaks must not cost the figures of the others
            traceback.print_exc()
            crashed.append(name)
        progress(f"{name}: done after {perf_counter() - began:.0f} s in all")
    print(table(rows))
    for name in crashed:
        print(f"{name}: crashed, see above")
    if options.json is not None:
        write_json(options.json, about, rows)
    return 1 if crashed else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--quick", action="store_true", help="three short rounds, about a minute")
    made.add_argument("--only", nargs="+", choices=list(BENCHMARKS), metavar="NAME")
    made.add_argument("--rounds", type=positive, help="5, or 3 with --quick, unless given")
    made.add_argument("--json", type=Path, metavar="FILE", help="every round's value as well")
    return made


def positive(text: str) -> int:
    """A whole number of at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def environment(settings: Settings) -> dict[str, Any]:
    """What the figures depend on and a reader cannot guess."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "load": round(load, 2),
        "form": "quick" if settings.quick else "full",
        "rounds": settings.rounds,
    }


def write_json(path: Path, about: dict[str, Any], rows: Sequence[Row]) -> None:
    """The table for machines, with the value of each round."""
    listed = [{**asdict(row), "median": row.median, "verdict": row.verdict} for row in rows]
    text = json.dumps({"environment": about, "rows": listed}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
