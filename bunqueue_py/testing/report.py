"""What the harness hands back: reports of runs, timelines of jobs, jobs that were added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..client.job import Job
from ..model.events import JobEvent


@dataclass(frozen=True)
class RunReport:
    """What one call did. `completed` and `failed` (for good) are in the order in which they ended;
    `waits` are the jobs that are pending or active after it, the first 1,000 of `waiting`; `runs`
    counts calls of handlers, those that failed and are tried again included. A job that has left
    its queue by then is as it was when it ran. `str(report)` says what each that waits is waiting
    for."""

    completed: list[Job]
    failed: list[Job]
    waits: list[Job]
    waiting: int
    runs: int
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        told = (
            f"runs: {self.runs}, completed: {len(self.completed)}, failed for good: "
            f"{len(self.failed)}, waiting: {self.waiting}"
        )
        return f"{told}\n{self.text}" if self.text else told


@dataclass(frozen=True)
class CrashReport:
    """What a crash left. `kept`: ids of the jobs that the storage brought back; `lost`: ids of
    those that were pending or active and are gone."""

    kept: list[str]
    lost: list[str]
    in_memory: bool

    def __str__(self) -> str:
        if self.in_memory:
            return (
                "this harness keeps everything in memory, so all is gone; jobs that had not ended: "
                f"{len(self.lost)}. Harness(path) keeps them in a file"
            )
        return f"jobs that are back: {len(self.kept)}, lost: {len(self.lost)}"


class Timeline(list[JobEvent]):
    """All events of one job, over crashes and after its removal; `str` is a line for each."""

    def __str__(self) -> str:
        return "\n".join(f"{event.timestamp.isoformat()} {_told(event)}" for event in self)


def _told(event: JobEvent) -> str:
    parts = [event.type]
    if event.state is not None:
        parts.append(f"as {event.state}")
    if event.attempt is not None:
        parts.append(f"in attempt {event.attempt}")
    if event.percent is not None:
        parts.append(f"{event.percent:g}%")
    if event.type == "failed":
        parts.append("for good" if event.terminal else "")
    text = " ".join(part for part in parts if part)
    if event.error is not None:
        text += f": {event.error}"
    if event.retry_at is not None:
        text += f", to run again at {event.retry_at.isoformat()}"
    if event.result is not None:
        text += f": {event.result!r}"
    return text


class AddedJobs(list[Job]):
    """The jobs that `Harness.added` found, in the order of adding. Empty, it says what was added
    instead: `assert harness.added(...)` then explains itself."""

    def __init__(self, found: Sequence[Job], otherwise: str) -> None:
        super().__init__(found)
        self._otherwise = otherwise

    def __repr__(self) -> str:
        return super().__repr__() if self else f"<{self._otherwise}>"


def matches(actual: Any, wanted: Any) -> bool:
    """Whether the payload has what is wanted: of mappings the wanted keys alone are looked at, at
    any depth; sequences match item by item; the rest must be equal.

    >>> matches({"to": {"name": "ada", "id": 7}, "n": 1}, {"to": {"id": 7}})
    True
    """
    if isinstance(wanted, Mapping):
        return isinstance(actual, Mapping) and all(
            key in actual and matches(actual[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return (
            type(actual) is type(wanted)
            and len(actual) == len(wanted)
            and all(map(matches, actual, wanted))
        )
    return bool(actual == wanted)
