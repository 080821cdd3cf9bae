"""A shard: the queues that hash to it, under one lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from ..errors import ForkedManagerError, ManagerClosedError
from ..model.spread import Spread
from ..sync import SHARD, make_lock
from .deadlines import Deadlines
from .dirty import Dirty
from .stalls import CONFIRM_MS

if TYPE_CHECKING:
    from .queue_state import QueueState
    from .tally import Tally
    from .waiters import Waiter

OPEN, BROKEN, CLOSED, FORKED, INERT = range(5)


class Shard:
    """One lock and what it guards.

    `gate` is OPEN while all is well. A critical section sets it to BROKEN before its first change
    and back to OPEN after its last, so that an exception which lands between (Ctrl-C, MemoryError)
    leaves a mark, and whoever comes next rebuilds first. CLOSED, FORKED and INERT refuse everybody.
    `completions` counts completions ever, `finished` and `finished_bytes` the completed jobs that
    are kept; `watched` maps job ids to those who wait for their outcome.
    """

    __slots__ = (
        "after",
        "careful_ms",
        "completions",
        "confirm_ms",
        "counting",
        "deadlines",
        "dirty",
        "finished",
        "finished_bytes",
        "gate",
        "heads",
        "index",
        "lock",
        "queues",
        "tallies",
        "times",
        "watched",
    )

    def __init__(self, index: int, confirm_ms: int = CONFIRM_MS) -> None:
        self.index = index
        #: so long a suspected run may still speak up
        self.confirm_ms = confirm_ms
        self.lock = make_lock(f"shard {index}", SHARD + index)
        self.gate = OPEN
        self.queues: dict[str, QueueState] = {}
        self.deadlines = Deadlines()
        self.completions = 0
        self.finished = 0
        #: until when a recovered job starts on disk first; 0: it need not
        self.careful_ms = 0
        #: `None` where nothing is kept beyond the process
        self.dirty: Dirty | None = None
        #: `None` unless `measure_times` asks for it
        self.times: Times | None = None
        self.finished_bytes = 0
        self.heads = FinishedHeads()
        #: the queues with ends counted that are not marked for storage yet
        self.counting: dict[QueueState, None] = {}
        #: the counts of queues that were let go, by name; the oldest make room
        self.tallies: dict[str, Tally] = {}
        self.watched: dict[str, list[Watcher]] = {}
        self.after: deque[Callable[[], None]] = deque()

    def call_after(self) -> None:
        """Makes the calls that wait for the lock's release; called without it."""
        while self.after:
            try:
                call = self.after.popleft()
            except IndexError:  # another thread made it
                return
            call()

    def refuse(self) -> None:
        """Raises what a closed or forked shard answers."""
        if self.gate == FORKED:
            raise ForkedManagerError(
                "this manager was opened before the process forked; open a new QueueManager in "
                "the child"
            )
        if self.gate == INERT:
            raise ForkedManagerError(
                'this process runs the handlers of a worker with executor="process", and the '
                "manager that the module opens here only stands for the one in the parent. In a "
                "handler, return the result and let the parent add jobs; at the top of a module, "
                'put what uses the manager under `if __name__ == "__main__":`'
            )
        if self.gate == CLOSED:
            raise ManagerClosedError("this manager is closed; open a new QueueManager")


class Times:
    """How long the runs that ended had waited, and took, in milliseconds. Guarded.

    `at_once` are those that did both within one millisecond, as most do where many jobs run."""

    __slots__ = ("at_once", "runs", "waits")

    def __init__(self) -> None:
        self.at_once = 0
        self.waits = Spread()
        self.runs = Spread()


class FinishedHeads:
    """Which queue of the shard has the oldest completed job. Guarded.

    A lazy heap of (moment, number, queue): every queue with completed jobs has an entry that is no
    later than its oldest. O(log n) a change, and none of the queues is visited to find the first.
    `old` is the heap that was, while a new one is made, queue by queue.
    """

    __slots__ = ("heap", "numbers", "old")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, QueueState]] = []
        self.old: list[tuple[int, int, QueueState]] = []
        self.numbers = count(1)

    def __len__(self) -> int:
        return len(self.heap) + len(self.old)

    def push(self, queue: QueueState) -> None:
        """Notes the queue's oldest completed job, if it has one."""
        record = queue.completed.oldest()
        if record is not None:
            heappush(self.heap, (record.entered_ms, next(self.numbers), queue))

    def pop(self) -> QueueState | None:
        """Takes out the queue with the oldest completed job; `push` it back if some stay."""
        while heap := self._first():
            noted, _, queue = heappop(heap)
            oldest = queue.completed.oldest()
            if oldest is None:
                continue
            if oldest.entered_ms <= noted:
                return queue
            heappush(self.heap, (oldest.entered_ms, next(self.numbers), queue))
        return None

    def next_ms(self) -> int | None:
        """A moment no later than that of the oldest completed job; `None` if there is none."""
        heap = self._first()
        return heap[0][0] if heap else None

    def begin_anew(self) -> None:
        """A new heap is made: `push` every queue, then `end_anew`. One that was broken off goes
        on."""
        if not self.old:
            self.old, self.heap = self.heap, []

    def end_anew(self) -> list[tuple[int, int, QueueState]]:
        """Every queue has been pushed; returns the heap that was, for the caller to let go."""
        before, self.old = self.old, []
        return before

    def _first(self) -> list[tuple[int, int, QueueState]]:
        heap, old = self.heap, self.old
        return old if old and (not heap or old[0] < heap[0]) else heap


class Watcher:
    """One who waits for a job's outcome; resolved once, under the shard's lock.

    `outcome` is then ("completed", encoded result or None), ("evicted", None),
    ("failed", Failure), ("removed", None) or ("closed", None). A thread waits on `waiter`; for a
    coroutine `loop_call` wakes its loop, which is foreign code: it is left in the shard's `after`
    for whoever releases the lock.
    """

    __slots__ = ("loop_call", "outcome", "waiter")

    def __init__(self, waiter: Waiter | None, loop_call: Callable[[], None] | None = None) -> None:
        self.waiter = waiter
        self.loop_call = loop_call
        self.outcome: tuple[str, object] | None = None

    def resolve(self, shard: Shard, kind: str, value: object) -> None:
        """Sets the outcome and wakes whoever waits."""
        if self.outcome is None:
            self.outcome = (kind, value)
            if self.waiter is not None:
                self.waiter.wake()
            if self.loop_call is not None:
                shard.after.append(self.loop_call)
