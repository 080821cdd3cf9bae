"""Jobs whose time has not come, by when it comes. Guarded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from sortedcontainers import SortedList

from ..model.job import NOWHERE, PENDING, JobRecord
from .entries import Entries
from .keys import SEQ_BITS
from .ready_queue import Stamped, stamped

_SEQ_MASK = (1 << SEQ_BITS) - 1
_TIDY_AT = 64
"""Fewer that have left than this are let be."""


class DelayedIndex:
    """Pending jobs ordered by `run_at_ms`, which every caller compares with the same clock.

    Two sorted lists, of priority above 0 and not, so that a count of what is due needs one
    bisection and moves nothing. `push` and `remove` are O(log n), counts O(log n), taking n due
    ones O(n). `entries` has the keys in the order in which they came, those that were taken when
    due included, until they are more than half. `tally` is how many there are of each priority.
    """

    __slots__ = ("entries", "members", "plain", "prioritized", "tally")

    def __init__(self) -> None:
        self.plain: SortedList[int] = SortedList()
        self.prioritized: SortedList[int] = SortedList()
        #: in the order in which they came
        self.members: dict[int, JobRecord] = {}
        self.entries = Entries()
        self.tally: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.members)

    def push(self, record: JobRecord, seq: int) -> None:
        """Takes a pending record; `seq` is fresh, and above those of all that came before."""
        key = record.key = record.run_at_ms << SEQ_BITS | seq
        self.members[key] = record
        self.entries.append(key)
        (self.prioritized if record.priority > 0 else self.plain).add(key)
        self.tally[record.priority] = self.tally.get(record.priority, 0) + 1

    def remove(self, record: JobRecord) -> None:
        """Takes the record out."""
        key = record.key
        del self.members[key]
        (self.prioritized if record.priority > 0 else self.plain).remove(key)
        self._uncount(record.priority)
        self.entries.discard(key)
        self._tidy()
        record.key = NOWHERE

    def reprioritize(self, record: JobRecord, priority: int) -> None:
        """Gives the record another priority; it stays where it is in the order of entry."""
        key = record.key
        (self.prioritized if record.priority > 0 else self.plain).remove(key)
        self._uncount(record.priority)
        record.priority = priority
        (self.prioritized if priority > 0 else self.plain).add(key)
        self.tally[priority] = self.tally.get(priority, 0) + 1

    def _tidy(self) -> None:
        if len(self.entries) > _TIDY_AT + 2 * len(self.members):
            self.entries = Entries(self.members)

    def _uncount(self, priority: int) -> None:
        left = self.tally[priority] - 1
        if left:
            self.tally[priority] = left
        else:
            del self.tally[priority]

    def holds(self, record: JobRecord) -> bool:
        """Whether the record stands in here."""
        return self.members.get(record.key) is record

    def next_ms(self) -> int | None:
        """When the earliest comes due; `None` if there is none."""
        heads = [keys[0] for keys in (self.plain, self.prioritized) if keys]
        return min(heads) >> SEQ_BITS if heads else None

    def count_due(self, now: int) -> tuple[int, int]:
        """How many are due: of priority 0 or less, and above 0."""
        bound = now << SEQ_BITS | _SEQ_MASK
        return self.plain.bisect_right(bound), self.prioritized.bisect_right(bound)

    def take_due(self, now: int, limit: int) -> list[JobRecord]:
        """Takes out at most `limit` of those that are due, higher priorities first; each keeps
        its key, which tells its admission number."""
        due: list[JobRecord] = []
        bound = now << SEQ_BITS | _SEQ_MASK
        for keys in (self.prioritized, self.plain):
            n = min(keys.bisect_right(bound), limit - len(due))
            if n <= 0:
                continue
            due += [self.members.pop(key) for key in keys[:n]]
            del keys[:n]
        for record in due:
            self._uncount(record.priority)
        # as entries they stay, passed over like all that is due
        self._tidy()
        return due

    def after(self, key: int, limit: int) -> list[JobRecord]:
        """Up to `limit` of those whose key is above that one, soonest first."""
        keys: list[int] = []
        for each in (self.plain, self.prioritized):
            keys += islice(each.irange(key, inclusive=(False, True)), limit)
        return [self.members[key] for key in sorted(keys)[:limit]]

    def not_due(self, now: int, limit: int) -> list[JobRecord]:
        """Up to `limit` of those that are not due, soonest first."""
        return self.after(now << SEQ_BITS | _SEQ_MASK, limit)

    def due(
        self, now: int, shift: int, *, prioritized: bool, newest_first: bool = False
    ) -> Iterator[Stamped]:
        """Those that are due, stamped with the moment at which they came due (plus `shift`), in
        that order."""
        keys = self.prioritized if prioritized else self.plain
        bound = keys.bisect_right(now << SEQ_BITS | _SEQ_MASK)
        for key in keys.islice(0, bound, reverse=newest_first):
            yield (key >> SEQ_BITS) + shift, key & _SEQ_MASK, self.members[key]

    def waiting(self, now: int, *, newest_first: bool = False) -> Iterator[Stamped]:
        """Those that are not due, in the order in which they came in: the next one in O(log n),
        however many that are due lie between (where a wall clock was set back, what had been taken
        as due is looked at as well)."""
        for key in self.entries.above(now << SEQ_BITS | _SEQ_MASK, newest_first=newest_first):
            record = self.members.get(key)
            if record is not None:
                yield stamped(record)

    def check(self) -> None:
        """Asserts its invariants."""
        keys = [*self.plain, *self.prioritized]
        assert len(keys) == len(self.members) and set(keys) == set(self.members), "members"
        assert list(self.plain) == sorted(self.plain), "order"
        self.entries.check()
        came = [key for key in self.entries.levels[0] if key in self.members]
        assert came == list(self.members), "order of entering"
        assert len(self.entries) <= _TIDY_AT + 2 * len(self.members), "too much that has left"
        assert all(self.members[key].priority > 0 for key in self.prioritized)
        assert all(self.members[key].priority <= 0 for key in self.plain)
        assert self.tally == Counter(r.priority for r in self.members.values()), "tally"
        for key, record in self.members.items():
            assert record.key == key and key >> SEQ_BITS == record.run_at_ms, "key of a member"
            assert record.state == PENDING, "a delayed job that is not pending"
