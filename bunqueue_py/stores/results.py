"""Encoded results of completed jobs, and what is remembered of jobs that left. Leaf nouns."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from ..model.failure import Failure
from ..sync import LEAF, make_lock


class ResultStore:
    """The results used most recently, at most `limit` and `max_bytes` of them.

    A plain OrderedDict: it is on the way of every job with a result, and a cache class costs
    several times as much there.
    """

    __slots__ = ("_limit", "_lock", "_max_bytes", "_results", "size")

    def __init__(self, limit: int, max_bytes: int) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        #: bytes held now
        self.size = 0
        self._lock = make_lock("results", LEAF)
        self._results: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def put(self, job_id: str, data: bytes) -> None:
        """Keeps the result; the least recently used ones make room."""
        with self._lock:
            results = self._results
            before = results.get(job_id)
            if before is not None:
                self.size -= len(before)
            results[job_id] = data
            self.size += len(data)
            if len(results) > self._limit or self.size > self._max_bytes:
                self._make_room()

    def _make_room(self) -> None:
        # by bytes, the newest one alone may be over the bound: whoever waits for it reads it
        results = self._results
        while len(results) > self._limit or (self.size > self._max_bytes and len(results) > 1):
            _, data = results.popitem(last=False)
            self.size -= len(data)

    def get(self, job_id: str) -> bytes | None:
        """The encoded result, marked as used just now; `None` if it is not kept."""
        with self._lock:
            data = self._results.get(job_id)
            if data is not None:
                self._results.move_to_end(job_id)
            return data

    def drop(self, job_id: str) -> None:
        """Forgets the result, if it is there."""
        with self._lock:
            data = self._results.pop(job_id, None)
            if data is not None:
                self.size -= len(data)


class Proof(NamedTuple):
    """What is remembered of a finished job that left: `failure` is `None` where it completed."""

    queue: str
    finished_ms: int
    has_result: bool
    failure: Failure | None


class ProofStore:
    """Proofs of the newest `LIMIT` finished jobs that left."""

    LIMIT = 50_000
    __slots__ = ("_lock", "_proofs")

    def __init__(self) -> None:
        self._lock = make_lock("proofs", LEAF)
        # the plain tuples are those of `put_completed`, turned into proofs when read
        self._proofs: OrderedDict[str, Proof | tuple[str, str, int, bool]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._proofs)

    def put(self, job_id: str, proof: Proof) -> None:
        """Remembers the proof; the oldest makes room."""
        with self._lock:
            self._proofs[job_id] = proof
            if len(self._proofs) > self.LIMIT:
                self._proofs.popitem(last=False)

    def put_completed(self, left: list[tuple[str, str, int, bool]]) -> None:
        """Remembers completed jobs (id, queue, finished_ms, has_result) in one go."""
        with self._lock:
            proofs = self._proofs
            for entry in left:
                proofs[entry[0]] = entry
            for _ in range(len(proofs) - self.LIMIT):
                proofs.popitem(last=False)

    def get(self, job_id: str) -> Proof | None:
        """The proof, or `None`."""
        with self._lock:
            found = self._proofs.get(job_id)
        if found is None or isinstance(found, Proof):
            return found
        return Proof(*found[1:], None)

    def drop(self, job_id: str) -> None:
        """Forgets the proof, if it is there."""
        with self._lock:
            self._proofs.pop(job_id, None)
