"""The reference model's count of what has ended."""

from __future__ import annotations

from typing import Any

from ...clock import Clock
from ...types import Outcome
from .jobs import ModelJob
from .runs import Runs

HOUR_MS = 3_600_000
HOURS = 14 * 24


class Seen(Runs):
    """Counts each end of a job when it comes."""

    def __init__(self, clock: Clock, keep_results: int) -> None:
        super().__init__(clock, keep_results)
        self.ends: list[tuple[str, str, int]] = []

    def ack(self, job_id: str, token: str | None, result: Any) -> Outcome:
        """The run ended well."""
        job = self.find(job_id)
        outcome = super().ack(job_id, token, result)
        if outcome.applied and job is not None:
            self.ends.append((job.queue.name, "completed", self.now))
        return outcome

    def finalize(self, job: ModelJob, reason: str) -> None:
        """The job has failed for good."""
        super().finalize(job, reason)
        self.ends.append((job.queue.name, "failed", self.now))

    def counted(self, queue: str, kind: str) -> int:
        """How many ended so in 14 days; an hour is kept whole."""
        since = self.now // HOUR_MS - HOURS
        wanted = (queue, kind)
        return sum(end[:2] == wanted and end[2] // HOUR_MS >= since for end in self.ends)

    def forget_ends(self, queue: str, kind: str, n: int) -> None:
        """The last n of those ends are counted no longer: a kill came before they were on disk."""
        for end in [e for e in reversed(self.ends) if e[:2] == (queue, kind)][:n]:
            self.ends.remove(end)
