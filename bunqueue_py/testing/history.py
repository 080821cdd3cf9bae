"""What a harness remembers of a test that may last a simulated year: its events and its jobs, the
older ones in a form that takes a fraction of the memory."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator
from typing import Any

from ..client.job import Job
from ..model.events import RawEvent

CHUNK = 1 << 10
"""So many events are packed together."""

SHARED = 11
"""Jobs are packed together if so many characters of their ids are alike: these are numbered in
hexadecimal, in the order of their making, so that makes 256 (see `SeededIds`)."""

OPEN = 64
"""So many chunks of jobs are held unpacked."""


class History:
    """Every event so far, in order. Whoever has one more appends it to `recent`; `pack`, called now
    and then, packs what has come. A look at all unpacks each chunk in turn, and holds one at a
    time."""

    def __init__(self) -> None:
        self._packed: list[bytes | list[RawEvent]] = []
        self.recent: list[RawEvent] = []
        self._added: dict[str, dict[str, None]] = {}
        self._looked = 0

    def __len__(self) -> int:
        return len(self._packed) * CHUNK + len(self.recent)

    def pack(self) -> None:
        """Packs each whole chunk of what is not packed yet."""
        recent = self.recent
        while len(recent) >= CHUNK:
            self._packed.append(_packed(recent[:CHUNK]))
            # the list itself stays, since others append to it
            del recent[:CHUNK]

    def since(self, first: int) -> Iterator[RawEvent]:
        """The events from that number on, the first being 0; those that come meanwhile too."""
        while first < len(self):
            at, offset = divmod(first, CHUNK)
            if at > len(self._packed):
                at, offset = len(self._packed), first - len(self._packed) * CHUNK
            found = self._chunk(at)[offset:]
            first += len(found)
            yield from found

    def added(self, queue: str) -> list[str]:
        """The ids of the jobs that came into that queue; those of schedulers too, which nobody adds
        by a call. Looks at what is new since it was asked last."""
        for kind, name, job_id, _, _, _ in self.since(self._looked):
            self._looked += 1
            if kind == "pushed" and job_id is not None:
                self._added.setdefault(name, {})[job_id] = None
        return list(self._added.get(queue, ()))

    def __iter__(self) -> Iterator[RawEvent]:
        return self.since(0)

    def __reversed__(self) -> Iterator[RawEvent]:
        for at in range(len(self._packed), -1, -1):
            yield from reversed(self._chunk(at))

    def _chunk(self, at: int) -> list[RawEvent]:
        if at == len(self._packed):
            return self.recent
        chunk = self._packed[at]
        if isinstance(chunk, list):
            return chunk
        events: list[RawEvent] = marshal.loads(chunk)
        return events


def _packed(events: list[RawEvent]) -> bytes | list[RawEvent]:
    """As bytes, if all that the events carry is plain."""
    try:
        return marshal.dumps(events)
    except ValueError:
        return events


class Jobs:
    """Jobs as they were when they were added or ran, by id. Which chunk one is in follows from what
    its id begins with: all chunks but the newest are packed, once and for all. What is put into one
    of those later stands beside them, unpacked."""

    def __init__(self, manager: Callable[[], Any]) -> None:
        self._manager = manager
        self._open: dict[str, dict[str, Job]] = {}
        self._packed: dict[str, bytes | dict[str, Job]] = {}
        self._later: dict[str, Job] = {}
        #: the packed chunk that was asked for last, as it is unpacked
        self._asked: tuple[str, dict[str, Job]] = ("", {})
        #: what many jobs share, by number, and the numbers
        self._shared: list[tuple[Any, ...]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def put(self, job: Job) -> None:
        """Remembers the job, in the place of what was known of it."""
        chunk = job._id[:SHARED]
        there = self._open.get(chunk)
        if there is None:
            if chunk in self._packed:
                self._later[job._id] = job
                return
            there = self._open[chunk] = {}
            if len(self._open) > OPEN:
                oldest = next(iter(self._open))
                self._packed[oldest] = self._pack(self._open.pop(oldest))
        there[job._id] = job

    def get(self, job_id: str) -> Job | None:
        """The job as it was; `None` if there never was one."""
        job = self._later.get(job_id)
        if job is not None:
            return job
        chunk = job_id[:SHARED]
        there = self._open.get(chunk)
        if there is None:
            if chunk != self._asked[0]:
                packed = self._packed.get(chunk)
                if packed is None:
                    return None
                self._asked = chunk, self._unpacked(packed)
            there = self._asked[1]
        return there.get(job_id)

    def __contains__(self, job_id: str) -> bool:
        return self.get(job_id) is not None

    def __getitem__(self, job_id: str) -> Job:
        job = self.get(job_id)
        if job is None:
            raise KeyError(job_id)
        return job

    def _pack(self, jobs: dict[str, Job]) -> bytes | dict[str, Job]:
        rows = []
        for job in jobs.values():
            queue, name, options, data, priority, state, *times, custom_id, side, key = job._fields
            shared = (queue, name, options, priority, state, side)
            # by identity: two settings that are equal need not mean the same
            known = (queue, name, id(options), priority, state, id(side))
            number = self._numbers.get(known)
            if number is None:
                number = self._numbers[known] = len(self._shared)
                # held from here on, so that no other object comes to have that identity
                self._shared.append(shared)
            own = (data, tuple(times), custom_id, key)
            rows.append((number, job._id, job.token, job.duplicate, *own))
        try:
            return marshal.dumps(rows)
        except ValueError:  # a name of another type than text alone
            return jobs

    def _unpacked(self, packed: bytes | dict[str, Job]) -> dict[str, Job]:
        if isinstance(packed, dict):
            return packed
        jobs, manager = {}, self._manager()
        for number, job_id, token, duplicate, data, times, custom_id, key in marshal.loads(packed):
            queue, name, options, priority, state, side = self._shared[number]
            fields = (queue, name, options, data, priority, state, *times, custom_id, side, key)
            jobs[job_id] = Job.of(manager, job_id, token, fields, duplicate)
        return jobs
