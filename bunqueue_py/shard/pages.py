"""A walk through one queue's jobs, a page at a time, that nothing has to be kept for. Guarded.

The walk goes through the structures in an order that jobs do not follow: those that are finished,
those that wait for others, the active, the delayed, the ready, those of groups last and by the
number of the group, once through their lanes and once through their heaps. What has been passed is
passed by key. A job that changes its place either goes where the walk has been, or it has a new key
there: an admission number or a number of arrival that was not yet drawn when the walk began. So no
job comes twice, and one that stays where it is comes once.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import dropwhile
from typing import NamedTuple

from ..model.job import JobRecord
from .finished import Finished
from .keys import SEQ_BITS, seq_of
from .queue_state import QueueState

_ARRIVAL = (1 << SEQ_BITS) - 1
COMPLETED, DEAD, GATED, ACTIVE, DELAYED, ANCHORED, LANE, HIGH_LANES, LOW_LANES, HEAP = range(10)
GROUP_LANES, GROUP_HEAPS, END = range(10, 13)

_PAGES = 32
"""What can only be walked from its start is read in no more pages than that, or it would cost
the square of its size."""


class Cursor(NamedTuple):
    """Where a walk is: in which structure, after which key there (and after which moment, for
    finished jobs; in the group of which number, for theirs). `seq` and `arrival` were the last
    ones drawn when it began."""

    shelf: int
    key: int
    moment_ms: int
    seq: int
    arrival: int
    group: int = 0


def first_page(queue: QueueState) -> Cursor:
    """The cursor of a walk that begins now. What is due must have been moved before: it changes
    its structure without changing its state."""
    return Cursor(COMPLETED, -1, -1, queue.seq, queue.arrivals.last)


def next_page(queue: QueueState, at: Cursor, limit: int) -> tuple[list[JobRecord], Cursor]:
    """Up to `limit` records (of finished, gated or active jobs a 32nd of them, if that is more) and
    the cursor after them; a page may be empty before the `END`.

    O(limit), but for the way to the page: O(log n) for what is delayed, in the heap or in a group
    (however many groups there are), a turn of the lane (half a millisecond in a million), a step
    for each finished, gated or active job before it.
    The caller has marked the gate.
    """
    if at.shelf in (GROUP_LANES, GROUP_HEAPS):
        return _grouped(queue, at, limit)
    shelf, key, moment = at.shelf, at.key, at.moment_ms
    last: int | None
    if shelf in (COMPLETED, DEAD):
        kept: Finished | dict[str, JobRecord]
        kept = queue.completed if shelf == COMPLETED else queue.dead.records
        limit = max(limit, len(kept) // _PAGES)
        stamps = _finished(kept.values(), moment, key, limit)
        found = [record for _, _, record in stamps]
        moment, last = stamps[-1][:2] if stamps else (-1, None)
    elif shelf in (GATED, ACTIVE):
        members = queue.gated if shelf == GATED else queue.active
        running = ((_seq(record), record) for record in members.values())
        limit = max(limit, len(members) // _PAGES)
        # by number, not by start: one that is given back and pulled again is passed all the same
        pairs = nsmallest(limit, (pair for pair in running if pair[0] > key), key=_first)
        found = [record for _, record in pairs]
        last = pairs[-1][0] if pairs else None
    elif shelf in (DELAYED, ANCHORED):
        index = queue.delayed if shelf == DELAYED else queue.anchored
        found = index.after(key, limit)
        last = found[-1].key if found else None
    elif shelf in (LANE, HIGH_LANES, LOW_LANES):
        found = queue.ready.standing()[shelf - LANE].after(key, limit)
        last = found[-1].key if found else None
    else:
        found, last = queue.ready.heaped_after(key, limit)
        if last is None or last > at.arrival:
            found, last = _arrived(found, at), None
    found = [record for record in found if _seq(record) <= at.seq]
    if last is None:
        return found, at._replace(shelf=shelf + 1, key=-1, moment_ms=-1)
    return found, at._replace(key=last, moment_ms=moment)


def _grouped(queue: QueueState, at: Cursor, limit: int) -> tuple[list[JobRecord], Cursor]:
    """The page in the lanes of the groups' ready queues, or in their heaps: of several groups, if
    they are small. Looks at no more than `limit` groups, whether they have ready jobs or not, and
    goes on at the next."""
    found: list[JobRecord] = []
    groups = queue.groups
    numbers = [] if groups is None else groups.numbered_from(at.group, limit + 1)
    for number in numbers[:limit]:
        group = None if groups is None else groups.by_number.get(number)
        if group is None or not len(group.ready):
            continue
        key: int | None = at.key if number == at.group else -1
        while key is not None:
            if len(found) >= limit:
                return found, at._replace(group=number, key=key)
            if at.shelf == GROUP_LANES:
                some = group.ready.lane.after(key, limit - len(found))
                key = some[-1].key if some else None
            else:
                some, key = group.ready.heaped_after(key, limit - len(found))
                if key is not None and key > at.arrival:
                    some, key = _arrived(some, at), None
            found += [record for record in some if _seq(record) <= at.seq]
    if len(numbers) <= limit:
        return found, at._replace(shelf=at.shelf + 1, group=0, key=-1)
    return found, at._replace(group=numbers[limit], key=-1)


def _arrived(records: list[JobRecord], at: Cursor) -> list[JobRecord]:
    return [record for record in records if record.key & _ARRIVAL <= at.arrival]


def _finished(
    records: Iterable[JobRecord], moment: int, key: int, limit: int
) -> list[tuple[int, int, JobRecord]]:
    """The next `limit` by (moment, admission number) of records that are in order of moment."""
    found: list[tuple[int, int, JobRecord]] = []
    for record in dropwhile(lambda r: r.entered_ms < moment, records):
        if len(found) >= limit and record.entered_ms > found[-1][0]:
            break
        stamp = (record.entered_ms, _seq(record))
        if stamp > (moment, key):
            found.append((*stamp, record))
    found.sort(key=_stamp)
    return found[:limit]


def _seq(record: JobRecord) -> int:
    return seq_of(record) or 0


def _first(pair: tuple[int, JobRecord]) -> int:
    return pair[0]


def _stamp(entry: tuple[int, int, JobRecord]) -> tuple[int, int]:
    return entry[0], entry[1]
