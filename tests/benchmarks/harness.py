"""Rounds, medians and the table: what every benchmark module shares.

A benchmark module offers `measure(settings) -> list[Row]`. It gets its figures
from `interleave`, which brackets every measured piece of work by its baseline
in the same round, so that a machine that speeds up or slows down meanwhile
moves both sides of a ratio.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

ROOT = Path(__file__).resolve().parents[2]

PAYLOAD: dict[str, Any] = {"to": "ada@example.com", "n": 12345}
"""The small payload: about 40 bytes of JSON."""

RESULT: dict[str, Any] = {"ok": True, "n": 1}
"""The small result of a job that has one."""

Timed = Callable[[], float]
"""A piece of work that times itself: seconds for one job."""

CHILD_TIMEOUT_S = 900

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """How much to measure: the short form or the long one, and how often."""

    quick: bool
    rounds: int

    def size(self, *, quick: int, full: int) -> int:
        """The amount that goes with the chosen form."""
        return quick if self.quick else full


@dataclass
class Row:
    """One line of the table: a value for each round, and what it is held against.

    `floor` is the promise and `aim` what the design is after; `None` means that
    nothing is promised and the line is there to read the others by.
    """

    name: str
    unit: str
    values: list[float]
    better: Literal["lower", "higher"] = "lower"
    floor: float | None = None
    aim: float | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """The figure itself."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """`OK` or `BELOW` the floor; `-` without one."""
        if self.floor is None:
            return "-"
        kept = self.median <= self.floor if self.better == "lower" else self.median >= self.floor
        return "OK" if kept else "BELOW"


@dataclass(frozen=True)
class Thing:
    """A piece of work and the baseline that it is measured against."""

    name: str
    measured: Timed
    baseline: Timed


@dataclass
class Samples:
    """Seconds for one job, one pair a round."""

    measured: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)

    def add_pieces(self, measured: Timed, baseline: Timed, pieces: int) -> None:
        """One round of many short pieces, each between two runs of the baseline.

        Both sides are summed up over the round. Where the two take about as long,
        whatever else runs on the machine takes its share of both.
        """
        works, brackets = [], [baseline()]
        for _ in range(pieces):
            works.append(measured())
            brackets.append(baseline())
        self.measured.append(statistics.fmean(works))
        self.baseline.append(statistics.fmean(brackets))

    def cost(self) -> list[float]:
        """Measured time in units of the baseline's time: lower is better."""
        return [m / b for m, b in zip(self.measured, self.baseline, strict=True)]

    def speed(self) -> list[float]:
        """Measured rate in units of the baseline's rate: higher is better."""
        return [b / m for m, b in zip(self.measured, self.baseline, strict=True)]


def rounds(settings: Settings, label: str) -> Iterator[int]:
    """The rounds by number, garbage collected before each; the collector stays on."""
    for number in range(settings.rounds):
        progress(f"{label}: round {number + 1} of {settings.rounds}")
        gc.collect()
        yield number


def turned(things: Sequence[T], number: int) -> list[T]:
    """The same things from another one on each round, so that none always comes first."""
    turn = number % len(things)
    return [*things[turn:], *things[:turn]]


def interleave(things: Sequence[Thing], settings: Settings, label: str) -> dict[str, Samples]:
    """Measure all things once a round, each between two runs of its baseline.

    Neighbours with the same baseline share the run between them. The order
    turns from round to round.
    """
    samples = {thing.name: Samples() for thing in things}
    for number in rounds(settings, label):
        last: tuple[Timed, float] | None = None
        for thing in turned(things, number):
            shared = last is not None and last[0] is thing.baseline
            before = last[1] if shared and last is not None else thing.baseline()
            measured = thing.measured()
            after = thing.baseline()
            last = (thing.baseline, after)
            samples[thing.name].measured.append(measured)
            samples[thing.name].baseline.append((before + after) / 2)
    return samples


def each_round(
    label: str, settings: Settings, work: Callable[[], Mapping[str, float]]
) -> dict[str, list[float]]:
    """Values by name, a list with one entry a round, for work that has no baseline."""
    collected: dict[str, list[float]] = {}
    for _ in rounds(settings, label):
        for name, value in work().items():
            collected.setdefault(name, []).append(value)
    return collected


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` per cent of all do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def in_child(script: str, *arguments: object) -> dict[str, float]:
    """Run a module of this folder in a fresh interpreter; what it printed, as JSON.

    What earlier work left behind in this process (arenas, caches, a grown heap)
    cannot flatter or spoil a figure taken there.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=CHILD_TIMEOUT_S,
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def progress(text: str) -> None:
    """Say on standard error what is being measured now."""
    print(f"  {text}", file=sys.stderr, flush=True)


def micros(seconds: Sequence[float]) -> str:
    """The median of seconds, as text in microseconds."""
    return f"{statistics.median(seconds) * 1e6:.1f} µs"


def rate(seconds_per_job: Sequence[float]) -> str:
    """The median of seconds for one job, as text in jobs a second."""
    return f"{1 / statistics.median(seconds_per_job):,.0f}/s"


def table(rows: Sequence[Row]) -> str:
    """All rows, aligned; floors and aims with the direction in which they bind."""
    lines = [("benchmark", "median", "min-max", "unit", "floor", "aim", "", "note")]
    for row in rows:
        sign = "<=" if row.better == "lower" else ">="
        low, high = number(min(row.values)), number(max(row.values))
        lines.append(
            (
                row.name,
                number(row.median),
                f"{low}-{high}",
                row.unit,
                "-" if row.floor is None else f"{sign} {number(row.floor)}",
                "-" if row.aim is None else f"{sign} {number(row.aim)}",
                row.verdict,
                row.note,
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(8)]
    right = {1, 2, 4, 5}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def number(value: float) -> str:
    """Three figures that matter: `0.123`, `2.15`, `512`."""
    if value == 0:
        return "0"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
