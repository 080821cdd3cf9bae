"""Rules of the machine: time passes, the wall clock jumps, what is due is done."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import rule

from bunqueue_py.durations import moment_to_ms
from tests.stateful.base import STATISTICS, Base, needs, seldom
from tests.stateful.choices import DIE

MOMENTS = 60
"""So many due moments are stepped through one by one; what is left is due at the end."""


class TimeRules(Base):
    """The timeline, the wall clock, the sweeps."""

    def sweep_both(self) -> None:
        self.manager.run_pending()
        self.model.sweep()
        self.model.mind_groups()

    @needs(1)
    @rule(die=DIE)
    @seldom
    def sweep(self, die: float) -> None:
        self.tick()
        self.model.die = die
        STATISTICS["run_pending"] += 1
        self.sweep_both()

    @needs(1)
    @rule(seconds=st.sampled_from([1, 4, 12, 35]), die=DIE)
    def pass_time(self, seconds: int, die: float) -> None:
        self._pass_time(seconds, die)

    def _pass_time(self, seconds: int, die: float) -> None:
        """Every moment on the way, of either of the two, is met by a sweep of its own."""
        self.tick()
        STATISTICS["time passes"] += 1
        self.model.die = die
        end = self.model.now + seconds * 1000
        self.sweep_both()
        for _ in range(MOMENTS):
            ahead = self.manager.next_due()
            moments = [self.model.next_due(), ahead and moment_to_ms(ahead, "ahead")]
            due = min((m for m in moments if m and m > self.model.now), default=end + 1)
            if due > end:
                break
            self.tick(due - self.model.now)
            self.sweep_both()
        self.tick(max(0, end - self.model.now))
        self.sweep_both()

    @needs(1, "active")
    @rule(seconds=st.sampled_from([2, 20]), die=DIE)
    def live_on(self, seconds: int, die: float) -> None:
        """All that runs gives signs of life, twice."""
        for _ in range(2):
            self.tick()
            for job in [job for job in self.model.jobs if job.state == "active"]:
                self.both(
                    "heartbeat",
                    partial(self.manager.heartbeat, job.id, token=job.token),
                    partial(self.model.heartbeat, job.id, job.token),
                )
            self._pass_time(seconds, die)

    @needs(1)
    @rule(seconds=st.sampled_from([3, 3, 31, 31, 200, 100_000]), die=DIE, sweeps=st.booleans())
    @seldom
    def leap(self, seconds: int, die: float, sweeps: bool) -> None:
        """All that was due meanwhile is met by one sweep, at once or later."""
        self.tick(seconds * 1000)
        STATISTICS["a leap in time"] += 1
        self.model.die = die
        if sweeps:
            self.sweep_both()

    @needs(1)
    @rule(seconds=st.sampled_from([-86_400, -4, 0, 0, 5, 3_600]))
    @seldom
    def set_wall_clock(self, seconds: int) -> None:
        """That much beside the timeline."""
        STATISTICS["set_wall_clock"] += 1
        self.clock.set_wall_clock(self.clock.now + timedelta(seconds=seconds))
