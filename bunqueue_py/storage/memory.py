"""The storage that keeps nothing beyond the process."""

from __future__ import annotations


class MemoryStorage:
    """Everything stays in memory and ends with the process; the default of `QueueManager`.

    >>> MemoryStorage().persistent
    False
    """

    persistent = False

    def __repr__(self) -> str:
        return "MemoryStorage()"
