"""The clean-up: what has expired, is stale or belongs to nobody is put away, a bite at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from ..ops import tidy
from ..ops.archive import is_kept
from ..ops.retention import trim
from ..shard.shard import Shard
from ..state import State
from .give_way import press_on
from .scheduler import Report

COMPLETIONS = 256
"""So many completions in a shard are worth a look at what they have left behind."""

BITES = 64
"""So many holds of a lock one pass takes at most; what is left comes in the next one, at once."""


class Cleanup:
    """The clean-up of one manager, and how far it has come. Used by the scheduler's thread alone.

    It is armed where something was removed, where a setting ends by itself, and by `consider`,
    after deadlines were judged; a manager in which nothing has happened does not wake for it.
    """

    def __init__(self, state: State, give_way: Callable[[], None] = press_on) -> None:
        self._state = state
        self._give_way = give_way
        self._share = state.config.stale_share
        self._round: Iterator[int] | None = None
        self._completions = [0] * len(state.shards.shards)
        self._empty: dict[str, tuple[tidy.Signature, int]] = {}
        self._stray = 0
        self._next_ms: int | None = None

    def consider(self) -> None:
        """Arms the clean-up if there may be something for it. O(shards), without a lock."""
        state = self._state
        for shard in state.shards.shards:
            fresh = shard.completions - self._completions[shard.index]
            if fresh >= COMPLETIONS or tidy.has_much_stale(shard, self._share):
                state.cleanup.arm(state.now() + state.periods.cleanup_interval)
                return

    def tick(self) -> Report:
        """One pass: at most 64 holds, each of a bounded number of steps."""
        if self._round is None:
            self._next_ms = None
            self._round = self._steps()
        try:
            bites = []
            for done in islice(self._round, BITES):
                bites.append(done)
                self._give_way()
        except BaseException:
            # what broke off is begun anew
            self._round = None
            raise
        if len(bites) == BITES:
            return Report(sum(bites), self._state.now())
        self._round = None
        return Report(sum(bites), self._next_ms)

    def _steps(self) -> Iterator[int]:
        """Each step is one hold, or none; it yields how much it put away."""
        state = self._state
        for shard in state.shards.shards:
            self._completions[shard.index] = shard.completions
            yield from self._sweep(shard)
            yield from self._tidy_heads(shard)
            yield from self._tidy_queues(shard)
            shard.call_after()
        trim(state, self._give_way)
        yield from self._drop_strays()
        yield from self._let_queues_go()

    def _sweep(self, shard: Shard) -> Iterator[int]:
        if not tidy.has_much_stale(shard, self._share):
            return
        gone, left = tidy.sweep_deadlines(self._state, shard, begin=True)
        yield gone
        while left:
            gone, left = tidy.sweep_deadlines(self._state, shard, begin=False)
            yield gone

    def _tidy_heads(self, shard: Shard) -> Iterator[int]:
        if not tidy.has_stale_heads(shard):
            return
        names, begin = iter(list(shard.queues)), True
        while bite := list(islice(names, tidy.KEYS_BITE)):
            tidy.push_heads(self._state, shard, bite, begin=begin)
            begin = False
            yield 0
        yield tidy.end_heads(self._state, shard)

    def _tidy_queues(self, shard: Shard) -> Iterator[int]:
        names = iter(list(shard.queues))
        while bite := list(islice(names, tidy.QUEUES_BITE)):
            again: list[str] = []
            done = 0
            for name, tidied in tidy.tidy_queues(self._state, shard, bite):
                done += tidied.done
                if tidied.again:
                    again.append(name)
                self._look_again(tidied.next_ms)
            yield done
            while again:
                left = tidy.tidy_queues(self._state, shard, again)
                yield sum(tidied.done for _, tidied in left)
                again = [name for name, tidied in left if tidied.again]

    def _drop_strays(self) -> Iterator[int]:
        """Entries of the index whose jobs are gone. Only an exception at a bad moment could leave
        one, so it looks only where the numbers do not agree, twice in a row."""
        state = self._state
        queues = list(state.queues.values())
        stray = len(state.index) - sum(q.admitted - q.departed for q in queues)
        before, self._stray = self._stray, stray
        if stray <= 0:
            return
        if stray != before:
            self._look_again(state.now() + state.periods.cleanup_interval)
            return
        records = iter(list(state.index.values()))
        while bite := list(islice(records, tidy.ENTRIES_BITE)):
            yield tidy.drop_strays(state, bite)

    def _let_queues_go(self) -> Iterator[int]:
        """Queues that have been empty, with nothing set for them, for `empty_queue_after`."""
        state, after = self._state, self._state.periods.empty_queue_after
        if after is None or is_kept(state) or not tidy.can_let_queues_go():
            # the file may have jobs of a queue of which memory has none
            return
        noted, self._empty = self._empty, {}
        for shard in state.shards.shards:
            for name in list(shard.queues):
                now = state.now()
                seen = None
                if not state.workers.of_queue(name):
                    seen = tidy.signature_if_empty(state, shard, name)
                if seen is None:
                    yield 0
                    continue
                before, since = noted.get(name, (seen, now))
                if before != seen:
                    since = now
                if now - since >= after:
                    if tidy.let_go(state, shard, name, seen):
                        yield 1
                        continue
                    since = now
                self._empty[name] = (seen, since)
                self._look_again(since + after)
                yield 0

    def _look_again(self, moment_ms: int | None) -> None:
        if moment_ms is not None and (self._next_ms is None or moment_ms < self._next_ms):
            self._next_ms = moment_ms
