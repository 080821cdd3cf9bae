"""Rules of the machine: the clean-up comes, whatever there is, and `health()` is asked. Neither may
change anything that can be seen."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from bunqueue_py.ops import tidy
from tests.stateful.base import STATISTICS, Base, needs, seldom

ROUNDS = 12


class WatchRules(Base):
    """The watchmen."""

    @needs(1)
    @rule(sweep=st.booleans())
    @seldom
    def clean_up(self, sweep: bool) -> None:
        """All of it, now; with `sweep` even where little is stale."""
        self.tick()
        STATISTICS["clean-up"] += 1
        state = self.manager._state
        before = sorted(state.index)
        task = next(task for task in self.manager._loop._tasks if task.name == "clean-up")
        state.cleanup.arm(self.model.now)
        for _ in range(ROUNDS):
            task.run(self.clock, sturdy=False)
            if state.cleanup.due_ms > self.model.now:
                break
        else:
            raise AssertionError("the clean-up does not come to an end")
        if sweep:
            for shard in state.shards.shards:
                left = True
                begin = True
                while left:
                    _, left = tidy.sweep_deadlines(state, shard, begin=begin)
                    begin = False
        assert sorted(state.index) == before, "the clean-up lost a job"

    @needs(1)
    @rule()
    @seldom
    def ask_how_it_is(self) -> None:
        report = self.manager.health()
        STATISTICS["health"] += 1
        # nobody pulls for minutes on end here, and the checks say so
        wrong = [text for text in report.problems if "none has started since" not in text]
        assert not wrong
        assert report.ok is not bool(report.problems)
        assert all(not task.failures for task in report.tasks), report.tasks
