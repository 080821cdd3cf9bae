"""Encoded results of completed jobs, and what is remembered of jobs that left. Leaf nouns."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from ..model.failure import Failure
from ..sync import LEAF, make_lock


class ResultStore:
    """The results used most recently, at most `limit` and `max_bytes` of them.

    A plain OrderedDict: it is on the way of every job with a result, and a cache class costs
    several times as much there.
    """

    __slots__ = ("_limit", "_lock", "_max_bytes", "_results", "pinned", "size")

    def __init__(self, limit: int, max_bytes: int) -> None:
        #: those that a live job may yet read, outside every bound
        self.pinned: dict[str, bytes] = {}
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
            if job_id in results:
                self.size -= len(results[job_id])
            results[job_id] = data
            self.size = size = self.size + len(data)
            if size > self._max_bytes or len(results) > self._limit:
                self._make_room()

    def put_many(self, fresh: dict[str, bytes]) -> None:
        """Keeps the results, by id; the least recently used ones make room."""
        with self._lock:
            results = self._results
            for job_id in results.keys() & fresh.keys():
                self.size -= len(results[job_id])
            self.size += sum(map(len, fresh.values()))
            results.update(fresh)
            if self.size > self._max_bytes or len(results) > self._limit:
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
            elif self.pinned:
                return self.pinned.get(job_id)
            return data

    def drop(self, job_id: str) -> None:
        """Forgets the result, if it is there."""
        with self._lock:
            data = self._results.pop(job_id, None)
            if data is not None:
                self.size -= len(data)
            if self.pinned:
                self.pinned.pop(job_id, None)

    def pin(self, job_id: str, data: bytes | None = None) -> None:
        """Keeps the result (the one that is here, if none is given) until `unpin`."""
        with self._lock:
            kept = self._results.pop(job_id, None)
            if kept is not None:
                self.size -= len(kept)
            if data is None:
                data = kept
            if data is not None:
                self.pinned[job_id] = data

    def unpin(self, job_id: str) -> None:
        """The result is one of many again, used just now."""
        if job_id not in self.pinned:
            return
        with self._lock:
            data = self.pinned.get(job_id)
            if data is None:
                return
            # in one hold, and in this order: whoever reads it meanwhile must find it
            before = self._results.pop(job_id, None)
            self._results[job_id] = data
            self.size += len(data) - (0 if before is None else len(before))
            del self.pinned[job_id]
            if self.size > self._max_bytes or len(self._results) > self._limit:
                self._make_room()


class Proof(NamedTuple):
    """What is remembered of a finished job that left: `failure` is `None` where it completed."""

    queue: str
    finished_ms: int
    has_result: bool
    failure: Failure | None


class ProofStore:
    """Proofs of the finished jobs that left last: of 50,000, and up to 1,000 more.

    In dictionaries of at most 1,000, oldest first, that are let go whole: whatever is looked up
    in a large one to be taken out again has long left every cache.
    """

    LIMIT = 50_000
    CHUNK = 1_000
    __slots__ = ("_chunks", "_lock", "_size", "pinned")

    def __init__(self) -> None:
        #: those that a live job may yet ask for, outside the bound
        self.pinned: dict[str, Proof] = {}
        self._lock = make_lock("proofs", LEAF)
        self._chunks: deque[dict[str, Proof]] = deque([{}])
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, job_id: str, proof: Proof) -> None:
        """Remembers the proof; old ones make room."""
        with self._lock:
            newest = self._chunks[-1]
            if len(newest) >= self.CHUNK:
                newest = {}
                self._chunks.append(newest)
            if job_id not in newest:
                self._size += 1
            newest[job_id] = proof
            if self._size >= self.LIMIT:
                self._make_room()

    def put_many(self, proofs: dict[str, Proof]) -> None:
        """Remembers the proofs, by id, and keeps the dictionary; old ones make room."""
        with self._lock:
            chunks = self._chunks
            newest = chunks[-1]
            if len(newest) + len(proofs) <= self.CHUNK:
                self._size -= len(newest)
                newest.update(proofs)
                self._size += len(newest)
            else:
                chunks.append(proofs)
                self._size += len(proofs)
            self._make_room()

    def _make_room(self) -> None:
        chunks = self._chunks
        while self._size - len(chunks[0]) >= self.LIMIT:
            self._size -= len(chunks.popleft())

    def get(self, job_id: str) -> Proof | None:
        """The proof, the newest if the job has left twice; `None` if there is none."""
        with self._lock:
            if self.pinned and job_id in self.pinned:
                return self.pinned[job_id]
            for chunk in reversed(self._chunks):
                found = chunk.get(job_id)
                if found is not None:
                    return found
        return None

    def pin(self, job_id: str, proof: Proof) -> None:
        """Remembers the proof until `unpin`."""
        with self._lock:
            self.pinned[job_id] = proof

    def unpin(self, job_id: str) -> None:
        """The proof is one of many again, the newest."""
        proof = self.pinned.get(job_id)
        if proof is not None:
            # in this order: whoever asks meanwhile must find it
            self.put(job_id, proof)
            with self._lock:
                if self.pinned.get(job_id) is proof:
                    del self.pinned[job_id]
