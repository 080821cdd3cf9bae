"""How long push, pull and ack take. Measured only where asked: the calls of one manager are then
replaced by ones that look at the clock, so nobody else pays for the question."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from ..durations import timeout_to_ms
from ..ops import pull as ops_pull
from ..shard.shard import Times
from ..shard.spread import Distribution, Spread, distribution
from ..state import State
from ..sync import LEAF, make_lock

UNIT_NS = 6_250
BUCKETS = 22
"""Bounds from 6.25 microseconds to 13.1 s, 0.1 ms among them."""
SAMPLE = 16
"""Of so many calls in a row the first is timed: looking at the clock twice, and noting the
difference, would cost each call a tenth of what it does itself."""


class Timing:
    """The latencies of one manager's calls. Leaf: locks itself."""

    def __init__(self, elapsed_ns: Callable[[], int]) -> None:
        self._elapsed_ns = elapsed_ns
        self._lock = make_lock("latencies", LEAF)
        self._spreads = {"push": Spread(), "pull": Spread(), "ack": Spread()}

    def distributions(self) -> dict[str, Distribution]:
        """What was measured so far, by operation."""
        with self._lock:
            found = {name: (list(s.counts), s.total) for name, s in self._spreads.items()}
        return {name: distribution([pair], UNIT_NS / 1e9, BUCKETS) for name, pair in found.items()}

    def attach(self, state: State, manager: Any) -> None:
        """Has that manager's calls timed, those that its workers make too."""
        for shard in state.shards.shards:
            shard.times = Times()
        backend = manager.backend
        manager.push = self._timed("push", manager.push)
        manager.ack = self._timed("ack", manager.ack)
        manager.push_batch = self._timed_batch("push", manager.push_batch)
        manager.ack_batch = self._timed_batch("ack", manager.ack_batch)
        backend.settle = self._timed_batch("ack", backend.settle)
        manager.pull = self._pull(manager.pull)
        manager.pull_batch = self._pull_batch(manager.pull_batch)
        backend.claim = self._claim(state, backend.claim)

    def _noting(self, kind: str) -> Callable[[int], None]:
        spread, lock, elapsed_ns = self._spreads[kind], self._lock, self._elapsed_ns

        def note(began_ns: int) -> None:
            units = (elapsed_ns() - began_ns) // UNIT_NS
            with lock:
                spread.note(units)

        return note

    def _timed(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        elapsed_ns, note, numbers = self._elapsed_ns, self._noting(kind), count()

        def timed(what: Any, more: Any = None, **options: Any) -> Any:
            if next(numbers) % SAMPLE:
                # handing on what is not there costs as much as the rest of this
                return call(what, more, **options) if options else call(what, more)
            began_ns = elapsed_ns()
            result = call(what, more, **options)
            note(began_ns)
            return result

        return timed

    def _timed_batch(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        elapsed_ns, note, numbers = self._elapsed_ns, self._noting(kind), count()

        def timed_batch(*args: Any) -> Any:
            if next(numbers) % SAMPLE:
                return call(*args)
            began_ns = elapsed_ns()
            result = call(*args)
            note(began_ns)
            return result

        return timed_batch

    # Of a pull only the look counts that finds a job at once; one that has to wait is let be.

    def _pull(self, call: Callable[..., Any]) -> Callable[..., Any]:
        elapsed_ns, note, numbers = self._elapsed_ns, self._noting("pull"), count()

        def pull(queue: Any, timeout: Any = 0, **options: Any) -> Any:
            if next(numbers) % SAMPLE:
                return call(queue, timeout, **options) if options else call(queue, timeout)
            timeout_to_ms(timeout)  # what is invalid is refused before a job is taken
            began_ns = elapsed_ns()
            job = call(queue, 0, **options)
            if job is not None:
                note(began_ns)
                return job
            return call(queue, timeout, **options)

        return pull

    def _pull_batch(self, call: Callable[..., Any]) -> Callable[..., Any]:
        elapsed_ns, note, numbers = self._elapsed_ns, self._noting("pull"), count()

        def pull_batch(queue: Any, max_jobs: Any, timeout: Any = 0, **options: Any) -> Any:
            if next(numbers) % SAMPLE:
                return call(queue, max_jobs, timeout, **options)
            timeout_to_ms(timeout)
            began_ns = elapsed_ns()
            jobs = call(queue, max_jobs, 0, **options)
            if jobs:
                note(began_ns)
                return jobs
            return call(queue, max_jobs, timeout, **options)

        return pull_batch

    def _claim(self, state: State, call: Callable[..., Any]) -> Callable[..., Any]:
        elapsed_ns, note, numbers = self._elapsed_ns, self._noting("pull"), count()
        look = partial(ops_pull.pull, state, claim=True)

        def claim(queue: str, limit: int, lease_ms: int, owner: str, handle: Any) -> Any:
            if next(numbers) % SAMPLE:
                return call(queue, limit, lease_ms, owner, handle)
            began_ns = elapsed_ns()
            jobs = look(queue, limit, 0, lease_ms, owner, handle)
            if jobs:
                note(began_ns)
                return jobs
            return call(queue, limit, lease_ms, owner, handle)

        return claim
