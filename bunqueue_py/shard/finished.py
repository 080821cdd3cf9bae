"""The completed jobs of one queue, in the order in which they ended. Guarded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

from ..model.job import COMPLETED, JobRecord

CHUNK = 256


class Finished:
    """Completed records by id, oldest first, in dictionaries of at most 256.

    What ends is nearly always added at one end and let go at the other, when all of it has long
    been out of every cache: a small dictionary is soon warm again, one of all of them never.
    No dictionary but `newest`, the last one, is empty.

    `add` and `oldest` are O(1), `discard` O(log n) (O(n) in steps of 256 where all ended in one
    millisecond), `pop_oldest` O(1) a record.
    """

    __slots__ = ("_chunks", "newest", "size")

    def __init__(self) -> None:
        self.newest: dict[str, JobRecord] = {}
        self._chunks: deque[dict[str, JobRecord]] = deque([self.newest])
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def add(self, record: JobRecord) -> None:
        """Takes a record that ended no earlier than any that is here."""
        self.newest[record.id] = record
        self.size += 1
        if len(self.newest) >= CHUNK:
            self.turn()

    def turn(self) -> None:
        """The newest dictionary is full: begins another."""
        self.newest = {}
        self._chunks.append(self.newest)

    def discard(self, record: JobRecord) -> bool:
        """Takes the record out; says whether it was here."""
        chunks, job_id = self._chunks, record.id
        low, high = 0, len(chunks)
        while low < high:
            middle = (low + high) // 2
            if _first_ms(chunks[middle], record.entered_ms + 1) <= record.entered_ms:
                low = middle + 1
            else:
                high = middle
        for i in range(low - 1, -1, -1):
            chunk = chunks[i]
            if chunk.get(job_id) is record:
                del chunk[job_id]
                self.size -= 1
                if not chunk and chunk is not self.newest:
                    del chunks[i]
                return True
            if _first_ms(chunk, record.entered_ms) < record.entered_ms:
                break
        return False

    def oldest(self) -> JobRecord | None:
        """The record that ended first; `None` if there is none."""
        for record in self._chunks[0].values():
            return record
        return None

    def pop_oldest(self, records: list[JobRecord]) -> None:
        """Takes out the records, which are the oldest, in order."""
        chunks = self._chunks
        for record in records:
            first = chunks[0]
            del first[record.id]
            if not first and first is not self.newest:
                chunks.popleft()
        self.size -= len(records)

    def values(self, *, newest_first: bool = False) -> Iterator[JobRecord]:
        """The records in order, or against it."""
        if newest_first:
            return chain.from_iterable(reversed(c.values()) for c in reversed(self._chunks))
        return chain.from_iterable(chunk.values() for chunk in self._chunks)

    def first(self, limit: int) -> list[JobRecord]:
        """The oldest `limit` of them."""
        return list(islice(self.values(), limit))

    def check(self) -> None:
        """Asserts its invariants."""
        chunks = self._chunks
        assert chunks[-1] is self.newest, "the newest is not the last"
        assert all(list(chunks)[:-1]), "an empty chunk"
        assert all(len(chunk) <= CHUNK for chunk in chunks), "a chunk too large"
        records = list(self.values())
        assert self.size == len(records), "count of completed"
        assert all(chunk[r.id] is r for chunk in chunks for r in chunk.values()), "key"
        assert all(r.state == COMPLETED for r in records), "completed"
        moments = [r.entered_ms for r in records]
        assert moments == sorted(moments), "order of ending"


def _first_ms(chunk: dict[str, JobRecord], empty: int) -> int:
    """When the first of the chunk ended; `empty` if there is none."""
    for record in chunk.values():
        return record.entered_ms
    return empty
