"""What a storage holds of the ties between jobs, when it is opened."""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Iterable
from typing import Any

from ..model.failure import Failure
from ..model.job import COMPLETED, JobRecord
from ..model.links import put_edges, read_chunk
from ..shard.dirty import Dirty
from ..state import State
from ..stores.results import Proof
from ..types import FailureReason
from .outcomes import EDGES_KIND, PROOF_KIND, links_of


class Ties:
    """Edges that have rows of their own, and the proofs of jobs that left; from where they are
    read to where they are needed."""

    __slots__ = ("edges", "proofs")

    def __init__(self) -> None:
        self.edges: dict[str, list[tuple[str, list[tuple[str, int]]]]] = {}
        self.proofs: dict[str, tuple[Proof, bytes | None]] = {}

    def take(self, kind: str, key: str, body: Any) -> None:
        """Reads one row. Raises `ValueError` and the like for one that makes no sense."""
        if kind == PROOF_KIND:
            self.proofs[key] = _proof(body)
        else:
            job_id, _, number = key.partition("\0")
            self.edges.setdefault(job_id, []).append((number, read_chunk(body)))

    def fasten(self, state: State, records: Iterable[JobRecord]) -> None:
        """Gives those records the edges that are kept apart, and has those that live be told of
        the end of whatever they wait for."""
        for record in records:
            links = links_of(record)
            if links is None:
                continue
            for _, pairs in sorted(self.edges.pop(record.id, [])):
                put_edges(links, (pair for pair in pairs if pair[0] not in links.edges))
            if links.edges and record.state != COMPLETED:
                state.dependencies.register(record.id, links.edges)

    def keep_proofs(self, state: State) -> None:
        """The proofs that somebody needs are kept; the rows of the others are no longer wanted,
        and neither are edges of jobs that are gone."""
        dirty = next(shard.dirty for shard in state.shards.shards)
        for job_id, (proof, result) in self.proofs.items():
            if job_id in state.dependencies.dependents and job_id not in state.index:
                state.proofs.pin(job_id, proof)
                if result is not None:
                    state.results.pin(job_id, result)
            else:
                state.proofs.put(job_id, proof)
                _unwanted(dirty, PROOF_KIND, job_id)
        for job_id, chunks in self.edges.items():
            for number, _ in chunks:
                _unwanted(dirty, EDGES_KIND, f"{job_id}\0{number}")


def _unwanted(dirty: Dirty | None, kind: str, key: str) -> None:
    if dirty is not None:
        dirty.keep(kind, key, None)


def _proof(body: Any) -> tuple[Proof, bytes | None]:
    queue, finished_ms, has_result, failure, text = body
    if not (
        isinstance(queue, str)
        and finished_ms.__class__ is int
        and has_result.__class__ is bool
        and (text is None or isinstance(text, str))
    ):
        raise ValueError("a proof is queue, moment, result and failure")
    if failure is not None:
        reason, error, stack = failure
        failure = Failure(FailureReason(reason), str(error), tuple(map(str, stack)))
    result = None if text is None else a2b_base64(text)
    return Proof(queue, finished_ms, has_result, failure), result
