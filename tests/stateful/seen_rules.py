"""Rules of the machine: what is told of what happens. Ends are counted by the minute and told as
events; webhooks are registered and stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.stateful.base import STATISTICS, Base, needs, seldom
from tests.stateful.choices import QUEUES

KINDS = ("completed", "failed")


class SeenRules(Base):
    """`minute_counts`, `stats().totals`, the events of ends, `webhooks`."""

    def open(self) -> None:
        super().open()
        self.heard: Counter[tuple[str, str]] = Counter()
        # what ended before, by the time that recovery was through
        self.ended_before = Counter(end[:2] for end in self.model.ends)
        self.ended_at_opening: Counter[tuple[str, str]] = Counter()
        self.ends_seen, self.looks = -1, 0
        # a queue that the clean-up has let go counts from 0 when it is made anew
        self.gone: set[str] = set()
        self.counted_before: Counter[tuple[str, str]] = Counter()
        if not hasattr(self, "hooks"):
            self.hooks: dict[str, bool] = {}

    def hear(self, event: Any) -> None:
        super().hear(event)
        if event.type == "completed" or (event.type == "failed" and event.terminal):
            self.heard[event.queue, event.type] += 1

    @needs(1)
    @rule(what=st.sampled_from(["add", "disable", "enable", "remove"]))
    @seldom
    def change_a_webhook(self, what: str) -> None:
        """It hears a queue that there is not, so nothing is ever sent."""
        self.tick()
        STATISTICS[f"webhook {what}"] += 1
        hooks = self.manager.webhooks
        if what == "add" or not self.hooks:
            found = hooks.add("http://93.184.216.34/", "job.failed", queue="nobody", secret="s")
            self.hooks[found] = True
        elif what == "remove":
            found, _ = self.hooks.popitem()
            assert hooks.remove(found)
        else:
            found = next(iter(self.hooks))
            wanted = what == "enable"
            changed = (hooks.enable if wanted else hooks.disable)(found)
            assert changed is (self.hooks[found] is not wanted)
            self.hooks[found] = wanted

    @invariant()
    def webhooks_agree(self) -> None:
        if hasattr(self, "manager"):
            found = {hook.id: hook.enabled for hook in self.manager.webhooks.list()}
            assert found == self.hooks

    @invariant()
    def ends_agree(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.looks += 1
        self.gone |= {queue for queue in QUEUES if queue not in self.manager._state.queues}
        if len(self.model.ends) == self.ends_seen and self.looks % 4:
            return  # the figures take as long as a step; nothing has ended
        self.ends_seen = len(self.model.ends)
        totals = self.manager.stats().queues
        if self.listens:
            self.manager.events.drain()
        for queue in QUEUES:
            for kind in KINDS:
                points = self.manager.minute_counts(queue, kind)
                found = sum(point.count for point in points)
                assert found == self.model.counted(queue, kind), (queue, kind, points)
                ended = sum(e[:2] == (queue, kind) for e in self.model.ends)
                now = ended - self.ended_before[queue, kind]
                if queue in totals:
                    since = getattr(totals[queue].totals, kind)
                    wanted = now + self.ended_at_opening[queue, kind]
                    if queue in self.gone:
                        assert since <= wanted
                        self.counted_before[queue, kind] = wanted - since
                    assert since + self.counted_before[queue, kind] == wanted, (queue, kind, since)
                if self.listens:
                    assert self.heard[queue, kind] == now, (queue, kind, "events")
        self.gone -= totals.keys()
