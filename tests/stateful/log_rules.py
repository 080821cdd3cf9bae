"""Rules of the machine: handlers write into the logs of their jobs."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.stateful.base import Base, needs
from tests.stateful.choices import HOW, PICK


class LogRules(Base):
    """`add_log`, `job_logs`."""

    def _add_log(self, job_id: str, token: str | None) -> None:
        self.serial += 1
        text = f"line {self.serial}"
        self.both(
            "add_log",
            lambda: self.manager.add_log(job_id, text, token=token),
            lambda: self.model.add_log(job_id, token, text),
        )

    @needs(1, "active")
    @rule(pick=PICK, lines=st.sampled_from([1, 1, 2, 60]))
    def log(self, pick: int, lines: int) -> None:
        self.tick()
        held = self.held(pick)
        for _ in range(lines):
            self._add_log(*held)

    @needs(1)
    @rule(pick=PICK, how=HOW)
    def log_without_a_lock(self, pick: int, how: str) -> None:
        self.tick()
        self._add_log(*self.not_held(pick, how))

    @invariant()
    def logs_agree(self) -> None:
        if not hasattr(self, "manager"):
            return
        logs = self.manager._state.logs
        logs.check()
        assert len(logs) == self.model.logged(), "logs of jobs that are gone"
        for job_id in list(logs.jobs):
            page = self.manager.job_logs(job_id, limit=1000)
            found = [entry.text for entry in page.entries], page.total
            assert found == self.model.log_of(job_id), f"the log of {job_id}"
