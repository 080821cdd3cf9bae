"""Seeded faults: `python -m tests.stateful.mutations [word ...]`.

Each mutation (of those whose name has one of the words) is made in a copy of the package, and what
should notice it is run against that: the state machine, or a test by name where a machine on one
thread cannot see it. Prints what killed which, and exits with 1 if one survives. A mutation whose
text is not found exactly once is an error: it must follow the code. Before that all of it runs
against a copy without a fault, which nothing may find fault with.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.stateful.faults import MUTATIONS
from tests.stateful.mutation import Mutation

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 5
"""So often a machine runs, each time from another seed, before a mutation has survived it."""


class Verdict(NamedTuple):
    """Who noticed it (`None`: nobody), and the last line of what was said."""

    killer: str | None
    said: str


def mutated(package: Path, mutation: Mutation) -> tuple[Path, str]:
    """The file of the package that gets the fault, and its text with that. Raises `LookupError`
    where the fault's text is not there exactly once."""
    made: list[tuple[Path, str]] = []
    times = 0
    for path in package.glob(mutation.file):
        source = path.read_text(encoding="utf-8")
        text, here = re.subn(mutation.pattern, mutation.replacement, source)
        if here:
            times += here
            made.append((path, text))
    if times != 1:
        raise LookupError(
            f"mutation {mutation.name!r}: its text is found {times} times in {mutation.file}, not "
            f"once: {mutation.pattern}"
        )
    return made[0]


def command_of(killer: str, share: int) -> list[str]:
    """How a killer is run: a machine by its name, a share of its number of runs, and the number
    of steps; else a test."""
    if "Machine" in killer:
        machine, whole, steps = killer.split()
        runs = str(int(whole) // share)
        return [sys.executable, "-m", "tests.stateful.statistics", runs, steps, machine]
    return [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", killer]


def run(folder: Path, killer: str, share: int = 1) -> tuple[bool, str]:
    """Whether the killer is content, and the last line that it said, an assertion if possible."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "BUNQUEUE_CHECK_LOCKS": "1"}
    try:
        done = subprocess.run(
            command_of(killer, share),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, "it never ended"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(E  +)?(\w+\.)*\w*(Error|Transition)\b", line)]
    return done.returncode == 0, (errors or lines or ["nothing"])[0][:100]


def verdict(folder: Path, mutation: Mutation) -> Verdict:
    """Makes the mutation in the folder, runs what should notice it, and takes it back."""
    path, text = mutated(folder / "bunqueue_py", mutation)
    source = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    try:
        for killer in mutation.killers:
            for _ in range(ROUNDS if "Machine" in killer else 1):
                content, said = run(folder, killer)
                if not content:
                    return Verdict(killer, said)
        return Verdict(None, "SURVIVES")
    finally:
        path.write_text(source, encoding="utf-8")


def main(words: Sequence[str]) -> int:
    """Runs them all; the number of survivors is the exit code's business."""
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    for mutation in MUTATIONS:
        mutated(ROOT / "bunqueue_py", mutation)
    survivors = 0
    with TemporaryDirectory() as place:
        folder = Path(place)
        for part in ("bunqueue_py", "tests", "pyproject.toml"):
            whole = ROOT / part
            if whole.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
                shutil.copytree(whole, folder / part, ignore=ignored)
            else:
                shutil.copy(whole, folder / part)
        for killer in sorted({killer for mutation in chosen for killer in mutation.killers}):
            content, said = run(folder, killer, share=4)
            if not content:
                raise SystemExit(f"without any fault, {killer} finds one: {said}")
        for number, mutation in enumerate(chosen, 1):
            found = verdict(folder, mutation)
            survivors += found.killer is None
            print(f"{number:2} {mutation.name:<45} {found.killer or '-'}: {found.said}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
