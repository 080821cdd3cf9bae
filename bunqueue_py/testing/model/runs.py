"""What is done to runs from outside."""

from __future__ import annotations

from ...errors import JobStateError
from .control import Control
from .jobs import ACTIVE, PENDING


class Runs(Control):
    """Control, and the end of a run by a third party."""

    def cancel(self, job_id: str) -> bool:
        """A running job fails for good, charged; one that has ended is left as it is."""
        job = self.get(job_id)
        if job.state == PENDING:
            raise JobStateError("not running")
        if job.state != ACTIVE:
            return False
        job.attempts_made += 1
        job.history.append("cancelled")
        self.finalize(job, "cancelled")
        return True
