"""Which shard a queue belongs to, and how several shards are taken together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from .queue_state import QueueState
from .shard import Shard, Times
from .stalls import CONFIRM_MS

T = TypeVar("T")


def fnv1a32(data: bytes) -> int:
    """The 32-bit FNV-1a hash (Fowler, Noll, Vo; offset basis 2166136261, prime 16777619).

    >>> hex(fnv1a32(b"a"))
    '0xe40c292c'
    """
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


class ShardMap:
    """All shards; their number is a power of two and never changes."""

    __slots__ = ("_mask", "shards")

    def __init__(self, count: int, confirm_ms: int = CONFIRM_MS, *, measured: bool = False) -> None:
        self.shards = tuple(Shard(i, confirm_ms) for i in range(count))
        for shard in self.shards if measured else ():
            shard.times = Times()
        self._mask = count - 1

    def of(self, queue: str) -> Shard:
        """The shard of a queue name."""
        return self.shards[fnv1a32(queue.encode()) & self._mask]

    def queue(
        self,
        queues: dict[str, QueueState],
        name: str,
        made_now: Callable[[QueueState], None],
    ) -> QueueState:
        """The queue of that (checked) name; if it is new, registers it in `queues` after
        `made_now` was called with it, under the shard's lock, which this takes."""
        shard = self.of(name)
        with shard.lock:
            found = shard.queues.get(name)
            if found is not None:
                queues[name] = found
                return found
            shard.refuse()
            made = QueueState(name, shard)
            shard.queues[name] = made
            made_now(made)
            queues[name] = made
            return made

    def holding(self, wanted: Iterable[Shard], call: Callable[[Sequence[Shard]], T]) -> T:
        """Makes the call with those shards, in ascending order, while their locks are held.

        A call and not a context: each lock is let go by the `with` that took it, which a signal
        cannot part from it, while one could land in an `__exit__` of ours before it let go any.
        """
        shards = sorted(wanted, key=_index)

        def hold(i: int) -> T:
            if i == len(shards):
                return call(shards)
            with shards[i].lock:
                return hold(i + 1)

        return hold(0)

    def holding_all(self, call: Callable[[Sequence[Shard]], T]) -> T:
        """`holding` every shard."""
        return self.holding(self.shards, call)


def _index(shard: Shard) -> int:
    return shard.index
