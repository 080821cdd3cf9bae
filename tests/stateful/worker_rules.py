"""Rules of the machine: what a worker does to runs that are not its own."""

from __future__ import annotations

from hypothesis.stateful import rule

from tests.stateful.base import Base, needs, seldom
from tests.stateful.choices import PICK


class CancelRules(Base):
    """`Worker.cancel`."""

    @needs(1, "active")
    @rule(pick=PICK)
    def cancel_a_run(self, pick: int) -> None:
        self.tick()
        job_id, _ = self.held(pick)
        self._cancel(job_id)

    @needs(1)
    @rule(pick=PICK)
    @seldom
    def cancel_any(self, pick: int) -> None:
        self.tick()
        self._cancel(self.some_id(pick))

    def _cancel(self, job_id: str) -> None:
        self.both(
            "cancel",
            lambda: self.manager.backend.cancel(job_id, None, "enough"),
            lambda: self.model.cancel(job_id),
        )
