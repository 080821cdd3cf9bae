"""What has changed in a shard and was not handed to the writer yet. Guarded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..model.job import PENDING, Delivery, JobRecord
from ..model.rows import (
    DATA,
    ID,
    INLINE_BYTES,
    RESULT,
    RESULT_SIZE,
    JobRow,
    Marks,
    full_row,
    no_marks,
    with_result_of,
)

GROUP_KIND = "group"
HELD_KIND = "held_key"


def group_name(queue: str, group: str) -> str:
    """What the settings of a group are called on disk. A queue's name has no NUL."""
    return f"{queue}\0{group}"


def held_name(queue: str, key: str) -> str:
    """What a key that a job which is gone holds is called on disk. A queue's name has no NUL."""
    return f"{queue}\0{key}"


def minutes_name(queue: str, hour: int) -> str:
    """What the counts of one hour of a queue are called on disk."""
    return f"{queue}\0{hour}"


class Dirty:
    """The latest value of everything that changed since the last cut. Each verb is O(1).

    `began` is called with the first mark after a cut, under the shard's lock: memory only.
    `fresh` are the jobs of which nothing was ever handed to the writer, so that one which comes and
    goes between two cuts leaves nothing behind. `ended`: see `Marks`. `starts` are runs that have
    begun, `freed` jobs that wait for nobody any more, and `ties` jobs with many edges some of which
    have changed, whose rows are still to be made (`ops.mark`, `ops.outcomes`).
    """

    __slots__ = (
        "began",
        "ended",
        "freed",
        "fresh",
        "jobs",
        "payloads",
        "rest",
        "results",
        "starts",
        "ties",
        "touched",
    )

    def __init__(self, began: Callable[[], None]) -> None:
        self.began = began
        self.fresh: set[str] = set()
        self.touched = False
        self.starts: deque[Delivery] = deque()
        self.freed: deque[JobRecord] = deque()
        self.ties: dict[str, JobRecord] = {}
        self.jobs, self.payloads, self.results, self.rest, self.ended = no_marks()

    def add(self, row: JobRow, data: bytes) -> None:
        """A job has come in; `data` is its payload."""
        if not self.touched:
            self.begin()
        job_id = row[ID]
        # in this order: an exception between must not leave a mark that no removal takes back
        self.fresh.add(job_id)
        if row[DATA] is None:
            self.payloads[job_id] = data
        self.jobs[job_id] = row

    def add_new(self, record: JobRecord, queue: str, seq: int, now: int) -> None:
        """`add` for a record that has just been admitted, at that moment, as a plain job. With
        what is known of it, its row takes half as long."""
        if not self.touched:
            self.begin()
        job_id, data = record.id, record.data
        self.fresh.add(job_id)
        if len(data) > INLINE_BYTES:
            self.payloads[job_id] = data
        elif record.priority == 0:
            self.jobs[job_id] = (job_id, queue, seq, now, now, record.name, record.options, data)
            return
        self.jobs[job_id] = (
            job_id,
            queue,
            seq,
            PENDING,
            record.priority,
            now,
            now,
            now,
            None,
            0,
            record.name,
            record.options,
            None,
            None,
            None,
            data if len(data) <= INLINE_BYTES else None,
            None,
            -1,
        )

    def add_lane(self, records: Sequence[JobRecord], queue: str, now: int) -> None:
        """`add_new` for records of priority 0, each in its place in the lane."""
        if not self.touched:
            self.begin()
        self.fresh.update([record.id for record in records])
        jobs = self.jobs
        for record in records:
            job_id, data, seq = record.id, record.data, record.key
            if len(data) > INLINE_BYTES:
                self.add_new(record, queue, seq, now)
            else:
                name, options = record.name, record.options
                jobs[job_id] = job_id, queue, seq, now, now, name, options, data

    def mark(self, row: JobRow) -> None:
        """A job has changed, but for a payload or result that stands apart."""
        if not self.touched:
            self.begin()
        if row[RESULT_SIZE] >= 0 and row[RESULT] is None:
            row = with_result_of(row, self.jobs.get(row[ID]))
        self.jobs[row[ID]] = row

    def restore(self, row: JobRow, data: bytes, result: bytes | None) -> None:
        """Whatever is on disk of the job, this is how it is: with its payload, and with its
        result, or without where nothing of that is said and the one on disk stays."""
        self.mark(row)
        if row[DATA] is None:
            self.payloads[row[ID]] = data
        if result is not None and row[RESULT] is None:
            self.results[row[ID]] = result

    def payload(self, job_id: str, data: bytes, before: int) -> None:
        """The job's payload is another one; `before` is the length of the old one. Marks what
        stands apart only: the row is the caller's to mark."""
        self._apart(self.payloads, job_id, data, before)

    def result(self, job_id: str, data: bytes | None, before: int) -> None:
        """The same for the job's result; `before` is -1 where it had none."""
        self._apart(self.results, job_id, data, before)

    def tombstone(self, job_id: str, data_size: int, result_size: int) -> None:
        """The job is gone; the sizes are those of its payload and result (-1: it has none)."""
        if job_id in self.fresh:
            self.jobs.pop(job_id, None)
            self.payloads.pop(job_id, None)
            self.results.pop(job_id, None)
            self.fresh.discard(job_id)
            return
        if not self.touched:
            self.begin()
        self.jobs[job_id] = None
        if data_size > INLINE_BYTES:
            self.payloads[job_id] = None
        if result_size > INLINE_BYTES:
            self.results[job_id] = None

    def keep(self, kind: str, key: str, body: Any) -> None:
        """Something else is now `body`, which JSON can hold; `None`: it is gone."""
        if not self.touched:
            self.begin()
        self.rest[kind, key] = body

    def swap(self, into: list[Marks]) -> None:
        """Hands everything over, to the end of `into`, and begins anew."""
        if not self.touched:
            return
        # First: should an exception land before the end, the same marks may be handed over twice,
        # which does no harm; a job of which the writer knows must not be taken for a fresh one.
        self.fresh = set()
        into.append(Marks(self.jobs, self.payloads, self.results, self.rest, self.ended))
        self.jobs, self.payloads, self.results, self.rest, self.ended = no_marks()
        self.touched = False

    def __len__(self) -> int:
        return len(self.jobs) + len(self.payloads) + len(self.results) + len(self.rest)

    def check(self) -> None:
        """Asserts its invariants."""
        assert self.touched or not (len(self) or self.starts or self.freed or self.ties), (
            "marks that nobody will ask for"
        )
        for job_id, row in self.jobs.items():
            assert row is None or full_row(row)[ID] == job_id, "a row under another id"
            if row is not None and job_id in self.fresh and full_row(row)[DATA] is None:
                assert self.payloads.get(job_id) is not None, "a payload that was never marked"
            assert row is not None or job_id not in self.fresh, "a tombstone of what never was"

    def begin(self) -> None:
        """Says that something is marked; for whoever does that without the verbs above."""
        self.began()
        self.touched = True

    def _apart(
        self, shelf: dict[str, bytes | None], job_id: str, data: bytes | None, before: int
    ) -> None:
        if not self.touched:
            self.begin()
        if data is not None and len(data) > INLINE_BYTES:
            shelf[job_id] = data
        elif job_id in self.fresh:
            shelf.pop(job_id, None)
        elif before > INLINE_BYTES:
            shelf[job_id] = None
