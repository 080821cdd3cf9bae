"""What became of each background task: runs, failures in a row, the circuit. Leaf noun."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


class TaskErrors:
    """A line for each background task, in the order in which they came."""

    __slots__ = ("_circuit_failures", "_lines", "_lock")

    def __init__(self, circuit_failures: int) -> None:
        self._circuit_failures = circuit_failures
        self._lock = make_lock("task errors", LEAF)
        self._lines: dict[str, TaskLine] = {}

    def add(self, name: str) -> None:
        """Begins a task's line."""
        with self._lock:
            self._lines[name] = TaskLine(name)

    def drop(self, name: str) -> None:
        """Ends it."""
        with self._lock:
            self._lines.pop(name, None)

    def succeeded(self, name: str, at_ms: int, duration_ms: float, late_ms: int) -> bool:
        """Notes a pass that ended well; says whether it closed the circuit."""
        with self._lock:
            before = self._lines.get(name)
            if before is None:
                return False
            self._lines[name] = replace(
                before,
                runs=before.runs + 1,
                in_a_row=0,
                last_run_ms=at_ms,
                duration_ms=duration_ms,
                late_ms=late_ms,
                open_since_ms=None,
            )
            return before.open_since_ms is not None

    def failed(
        self, name: str, at_ms: int, duration_ms: float, late_ms: int, error: str
    ) -> tuple[TaskLine, bool]:
        """Notes a pass that raised; returns the line, and whether that opened the circuit."""
        with self._lock:
            before = self._lines.get(name, TaskLine(name))
            in_a_row = before.in_a_row + 1
            opens = before.open_since_ms is None and in_a_row >= self._circuit_failures
            line = replace(
                before,
                runs=before.runs + 1,
                failures=before.failures + 1,
                in_a_row=in_a_row,
                last_run_ms=at_ms,
                duration_ms=duration_ms,
                late_ms=late_ms,
                error=error,
                open_since_ms=at_ms if opens else before.open_since_ms,
            )
            if name in self._lines:
                self._lines[name] = line
            return line, opens

    def lines(self) -> tuple[TaskLine, ...]:
        """All of them, as they are now."""
        with self._lock:
            return tuple(self._lines.values())
