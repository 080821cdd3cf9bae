"""Jobs of one queue that failed for good. Guarded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ..model.job import FAILED, JobRecord

MAX_ENTRIES = 10_000


class DeadLetters:
    """Failed records in the order in which they failed, at most `MAX_ENTRIES`."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records: OrderedDict[str, JobRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: JobRecord) -> JobRecord | None:
        """Takes a failed record; returns the oldest one where that is now one too many."""
        self.records[record.id] = record
        if len(self.records) > MAX_ENTRIES:
            return next(iter(self.records.values()))
        return None

    def remove(self, record: JobRecord) -> None:
        """Takes it out."""
        del self.records[record.id]

    def entries(self, *, newest_first: bool = False) -> Iterator[JobRecord]:
        """The records, oldest failure first unless asked otherwise."""
        return iter(reversed(self.records.values()) if newest_first else self.records.values())

    def check(self) -> None:
        """Asserts its invariants."""
        assert len(self.records) <= MAX_ENTRIES, "too many dead letters"
        for job_id, record in self.records.items():
            assert record.id == job_id and record.state == FAILED, "a dead letter that lives"
            assert record.side is not None and record.side.failure is not None, "no failure kept"
