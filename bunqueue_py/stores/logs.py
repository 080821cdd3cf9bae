"""What handlers wrote into the logs of their jobs. Leaf noun."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

from ..sync import LEAF, make_lock

LINES = 100
"""How many lines of a job are kept, the newest."""
MAX_BYTES = 64 * 1024 * 1024


class Line(NamedTuple):
    """One line of a job's log; `number` counts the job's lines from 0."""

    number: int
    level: str
    at_ms: int
    text: str


class LogStore:
    """The newest 100 lines of each of the `limit` jobs that wrote last, and at most 64 MiB."""

    __slots__ = ("_limit", "_lock", "jobs", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = make_lock("logs", LEAF)
        #: looked into without the lock: whether a job has a log at all
        self.jobs: OrderedDict[str, deque[Line]] = OrderedDict()
        #: about how many bytes the texts have
        self.size = 0

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, job_id: str, level: str, at_ms: int, text: str) -> tuple[Line, dict[str, int]]:
        """Adds a line; returns it, and the jobs whose logs made room for it, with how many lines
        each had."""
        with self._lock:
            lines = self.jobs.get(job_id)
            if lines is None:
                lines = self.jobs[job_id] = deque(maxlen=LINES)
            else:
                self.jobs.move_to_end(job_id)
            if len(lines) == LINES:
                self.size -= _size(lines[0])
            line = Line(lines[-1].number + 1 if lines else 0, level, at_ms, text)
            lines.append(line)
            self.size += _size(line)
            return line, self._make_room()

    def _make_room(self) -> dict[str, int]:
        gone: dict[str, int] = {}
        while len(self.jobs) > self._limit or (self.size > MAX_BYTES and len(self.jobs) > 1):
            job_id, lines = self.jobs.popitem(last=False)
            self.size -= sum(map(_size, lines))
            gone[job_id] = len(lines)
        return gone

    def restore(self, job_id: str, lines: list[Line]) -> dict[str, int]:
        """Takes in what a file has kept of the job, in order; returns what made room, as `add`
        does."""
        with self._lock:
            self.jobs[job_id] = kept = deque(lines, LINES)
            self.size += sum(map(_size, kept))
            return self._make_room()

    def page(self, job_id: str, offset: int, limit: int) -> tuple[list[Line], int]:
        """Up to `limit` of the kept lines from the `offset`-th on, oldest first, and how many the
        job has ever written."""
        with self._lock:
            lines = self.jobs.get(job_id)
            if not lines:
                return [], 0
            return list(lines)[offset : offset + limit], lines[-1].number + 1

    def drop(self, job_id: str) -> int:
        """Forgets the job's log; returns how many lines it had."""
        with self._lock:
            lines = self.jobs.pop(job_id, None)
            if lines is None:
                return 0
            self.size -= sum(map(_size, lines))
            return len(lines)

    def lines(self) -> Iterator[tuple[str, list[Line]]]:
        """Every job with its kept lines, as they are now."""
        with self._lock:
            found = [(job_id, list(lines)) for job_id, lines in self.jobs.items()]
        return iter(found)

    def check(self) -> None:
        """Asserts its invariants."""
        with self._lock:
            assert len(self.jobs) <= max(1, self._limit), "more logs than there may be"
            assert self.size == sum(_size(x) for xs in self.jobs.values() for x in xs), "size"
            for lines in self.jobs.values():
                numbers = [line.number for line in lines]
                first = numbers[0]
                assert numbers == list(range(first, first + len(lines))), "numbers of lines"


def _size(line: Line) -> int:
    return len(line.text) + 100
