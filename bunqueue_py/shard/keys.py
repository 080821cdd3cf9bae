"""What a record's `key` says: its place, and its admission number."""

from __future__ import annotations

from ..model.job import NOWHERE, JobRecord
from ..model.options import MAX_PRIORITY

SEQ_BITS = 44
"""Admission numbers and milliseconds both fit 44 bits for the next 400 years."""

LIMIT = 1 << SEQ_BITS
"""Keys from 1 to below this are bare admission numbers: of jobs that stand in a lane."""

FIFO = 1 << (2 * SEQ_BITS)
RANK_SHIFT = 2 * SEQ_BITS + 1
TOP = MAX_PRIORITY + 1
HEAPED = 1 << (RANK_SHIFT + SEQ_BITS)
"""Keys of the heap are not below this, those of the lanes and of delayed jobs are."""

HIGH = TOP << (RANK_SHIFT + SEQ_BITS)
"""Keys of the heap below this are of jobs with a priority above 0."""


def seq_of(record: JobRecord) -> int | None:
    """The admission number in the record's key; `None` if it has no key."""
    key = record.key
    if key < 0:
        return None
    if key < HEAPED:
        return key & (LIMIT - 1)
    seq = (key >> SEQ_BITS) & (LIMIT - 1)
    return LIMIT - 1 - seq if record.options.lifo else seq


def departed_key(seq: int | None) -> int:
    """The key of a record that no longer waits: it tells the admission number and is that of no
    place, in particular not that of the stale mark which the record may have left in a lane."""
    return NOWHERE if seq is None else LIMIT | seq


def heap_place(record: JobRecord, seq: int) -> int:
    """Where a record stands in the order of the heap, but for its arrival: smaller is earlier."""
    place = (TOP - record.priority) << RANK_SHIFT
    if record.options.lifo:
        return place | (LIMIT - 1 - seq)
    return place | FIFO | record.run_at_ms << SEQ_BITS | seq
