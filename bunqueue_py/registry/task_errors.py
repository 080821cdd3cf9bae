"""What became of each background task: runs, failures in a row, the circuit. Leaf noun."""

from __future__ import annotations

from dataclasses import dataclass

from ..sync import LEAF, make_lock


@dataclass(frozen=True)
class TaskLine:
    """One task so far, in ms of the timeline. `failures` count from the start, `in_a_row` since
    the last success; `open_since_ms` is when its circuit opened, `None` while it is closed."""

    name: str
    runs: int = 0
    failures: int = 0
    in_a_row: int = 0
    last_run_ms: int | None = None
    duration_ms: float = 0.0
    late_ms: int = 0
    error: str | None = None
    open_since_ms: int | None = None


class Line:
    """A `TaskLine` that changes: a worker's beat may run some hundred times a second."""

    __slots__ = (
        "duration_ms",
        "error",
        "failures",
        "in_a_row",
        "last_run_ms",
        "late_ms",
        "name",
        "open_since_ms",
        "runs",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.runs = self.failures = self.in_a_row = self.late_ms = 0
        self.duration_ms = 0.0
        self.last_run_ms: int | None = None
        self.error: str | None = None
        self.open_since_ms: int | None = None

    def ran(self, at_ms: int, duration_ms: float, late_ms: int) -> None:
        self.runs += 1
        self.last_run_ms = at_ms
        self.duration_ms = duration_ms
        self.late_ms = late_ms

    def copy(self) -> TaskLine:
        return TaskLine(**{part: getattr(self, part) for part in self.__slots__})


class TaskErrors:
    """A line for each background task, in the order in which they came."""

    __slots__ = ("_circuit_failures", "_lines", "_lock")

    def __init__(self, circuit_failures: int) -> None:
        self._circuit_failures = circuit_failures
        self._lock = make_lock("task errors", LEAF)
        self._lines: dict[str, Line] = {}

    def add(self, name: str) -> Line:
        """Begins a task's line, and returns it: while its task has not failed, `ran` may be called
        by whoever runs it, without the lock."""
        with self._lock:
            line = self._lines[name] = Line(name)
        return line

    def drop(self, name: str) -> None:
        """Ends it."""
        with self._lock:
            self._lines.pop(name, None)

    def succeeded(self, name: str, at_ms: int, duration_ms: float, late_ms: int) -> bool:
        """Notes a pass that ended well; says whether it closed the circuit."""
        with self._lock:
            line = self._lines.get(name)
            if line is None:
                return False
            line.ran(at_ms, duration_ms, late_ms)
            if not line.in_a_row:
                return False
            was_open = line.open_since_ms is not None
            line.in_a_row, line.open_since_ms = 0, None
            return was_open

    def failed(
        self, name: str, at_ms: int, duration_ms: float, late_ms: int, error: str
    ) -> tuple[TaskLine, bool]:
        """Notes a pass that raised; returns the line, and whether that opened the circuit."""
        with self._lock:
            line = self._lines.get(name) or Line(name)
            line.ran(at_ms, duration_ms, late_ms)
            line.failures += 1
            line.in_a_row += 1
            line.error = error
            opens = line.open_since_ms is None and line.in_a_row >= self._circuit_failures
            if opens:
                line.open_since_ms = at_ms
            return line.copy(), opens

    def lines(self) -> tuple[TaskLine, ...]:
        """All of them, as they are now."""
        with self._lock:
            return tuple(line.copy() for line in self._lines.values())
