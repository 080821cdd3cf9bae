"""The reference model's logs of jobs."""

from __future__ import annotations

from ...errors import LockError
from .control import Control

KEPT = 100


class Logs(Control):
    """What handlers have written, by job. The bound on the number of jobs is not modelled."""

    logs: dict[str, list[str]]

    def add_log(self, job_id: str, token: str | None, text: str) -> None:
        """A line comes in."""
        job = self.get(job_id)
        if self.refusal(job, token) is not None:
            raise LockError("lost")
        self.__dict__.setdefault("logs", {}).setdefault(job_id, []).append(text)

    def log_of(self, job_id: str) -> tuple[list[str], int]:
        """The lines that are kept, and how many there ever were."""
        if self.find(job_id) is None:
            return [], 0
        lines = self.__dict__.get("logs", {}).get(job_id, [])
        return lines[-KEPT:], len(lines)

    def logged(self) -> int:
        """How many jobs have a log."""
        return sum(1 for job in self.jobs if self.log_of(job.id)[1])
