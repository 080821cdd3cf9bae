"""Which shard a queue belongs to, and how several shards are taken together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from .queue_state import QueueState
from .shard import Shard, Times
from .stalls import CONFIRM_MS


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

    @contextmanager
    def locked(self, wanted: Iterable[Shard]) -> Iterator[list[Shard]]:
        """Holds the locks of those shards, taken in ascending order."""
        shards = sorted(wanted, key=_index)
        with ExitStack() as stack:
            for shard in shards:
                stack.enter_context(shard.lock)
            yield shards

    @contextmanager
    def all_locked(self) -> Iterator[tuple[Shard, ...]]:
        """Holds every shard's lock, taken in ascending order."""
        with ExitStack() as stack:
            for shard in self.shards:
                stack.enter_context(shard.lock)
            yield self.shards


def _index(shard: Shard) -> int:
    return shard.index
