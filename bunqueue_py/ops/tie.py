"""What a job that comes in depends on: found out before anything changes, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from ..errors import DuplicateJobError, FlowError, ValidationError
from ..model.job import ACTIVE, JobRecord
from ..model.links import Links
from ..model.options import JobSpec
from ..model.own import Own
from ..shard.queue_state import QueueState
from ..state import State
from ..stores.dependencies import GONE
from . import archive
from .flow import look
from .outcomes import links_of

Drafts = Sequence[tuple[JobRecord, "Own | None"]]


class Batch:
    """What ties the jobs of one call together. `order` is that in which they are to come in, so
    that none comes before what it depends on; `known_done` are dependencies that only the file
    has; `alias` maps the id of a draft to the job that was found in its place."""

    __slots__ = ("alias", "known_done", "order")

    def __init__(self, order: Sequence[int], known_done: frozenset[str]) -> None:
        self.order = order
        self.known_done = known_done
        self.alias: dict[str, str] = {}

    def rename(self, record: JobRecord) -> None:
        """Has the record wait for the jobs that were found in place of those it named."""
        links = links_of(record)
        if links is not None and self.alias and not self.alias.keys().isdisjoint(links.edges):
            side = record.need_side()
            side.links = renamed = Links(links.parent_id, links.on_failure)
            for job_id, code in links.edges.items():
                renamed.put(self.alias.get(job_id, job_id), code)


def tie(state: State, record: JobRecord, own: Own) -> frozenset[str]:
    """Gives a drafted job that comes alone its dependencies; returns those that are known to be
    completed by the file alone, which may be read here."""
    for value in own.depends_on:
        if not isinstance(value, str):
            raise ValidationError(
                "depends_on: a JobSpec can be depended on in the call that adds it too "
                "(add_bulk, push_batch); here give the Job that its add() returned"
            )
    return _give(state, record, own, {})


def tie_batch(state: State, drafts: Drafts, specs: Sequence[Any]) -> Batch:
    """The same for the jobs of one batch, which may depend on each other, by `JobSpec`. Raises
    `FlowError` for a cycle, `ValidationError` for a spec that is not in the batch."""
    places: dict[int, int] = {}
    for i, spec in enumerate(specs):
        for known in (spec, spec.origin if isinstance(spec, JobSpec) else None):
            if known is not None and places.setdefault(id(known), i) != i:
                places[id(known)] = -1
    before: list[list[int]] = []
    known_done: set[str] = set()
    for i, (record, own) in enumerate(drafts):
        inside: dict[int, int] = {}
        for n, value in enumerate(() if own is None else own.depends_on):
            if isinstance(value, str):
                continue
            place = places.get(id(value))
            if place is None or place < 0:
                what = "is not in this call" if place is None else "is in this call twice"
                raise ValidationError(f"jobs[{i}]: depends_on[{n}] is a JobSpec that {what}")
            inside[id(value)] = place
        before.append(list(inside.values()))
        if own is not None and own.depends_on:
            named = {key: drafts[place][0].id for key, place in inside.items()}
            known_done |= _give(state, record, own, named)
    return Batch(_ordered(before), frozenset(known_done))


def _give(state: State, record: JobRecord, own: Own, named: dict[int, str]) -> frozenset[str]:
    side = record.need_side()
    links = side.links = Links()
    outside: list[str] = []
    for value in own.depends_on:
        if isinstance(value, str):
            outside.append(value)
            links.add(value, own.on_dependency_failure, child=False)
        else:
            links.add(named[id(value)], own.on_dependency_failure, child=False)
    return on_file_only(state, outside)


def on_file_only(state: State, job_ids: Iterable[str]) -> frozenset[str]:
    """Which of those are completed and known to the file alone. Reads it: no lock may be held."""
    if not archive.is_kept(state):
        return frozenset()
    return frozenset(
        job_id
        for job_id in job_ids
        if look(state, job_id).kind == GONE and archive.read(state, job_id) is not None
    )


def _ordered(before: list[list[int]]) -> Sequence[int]:
    """The numbers in order, but each behind those before it. Raises `FlowError` for a cycle."""
    if all(all(place < i for place in places) for i, places in enumerate(before)):
        return range(len(before))
    left = [len(places) for places in before]
    after: list[list[int]] = [[] for _ in before]
    for i, places in enumerate(before):
        for place in places:
            after[place].append(i)
    ready = [i for i, count in enumerate(left) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        i = heappop(ready)
        order.append(i)
        for later in after[i]:
            left[later] -= 1
            if not left[later]:
                heappush(ready, later)
    if len(order) < len(before):
        raise FlowError(f"jobs depend on each other in a cycle: {_cycle(before, left)}")
    return order


def _cycle(before: list[list[int]], left: list[int]) -> str:
    """One cycle among those that are left, spelled out."""
    at = next(i for i, count in enumerate(left) if count)
    path: list[int] = []
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = next(place for place in before[at] if left[place])
    cycle = [*path[seen[at] :], at]
    shown = [f"jobs[{i}]" for i in cycle]
    if len(shown) > 20:
        shown = [*shown[:10], f"({len(shown) - 20} more)", *shown[-10:]]
    return " -> ".join(shown)


# -- under the lock --------------------------------------------------------------------------------


def unknown_dependency(
    state: State, queue: QueueState, record: JobRecord, now: int, known_done: frozenset[str]
) -> FlowError | None:
    """The error of a job one of whose dependencies nobody knows; one that would only be found again
    by its custom id or key is let through."""
    links = links_of(record)
    if links is None or _found_again(queue, record, now):
        return None
    return first_unknown(state, links.edges, known_done)


def first_unknown(
    state: State, job_ids: Iterable[str], known_done: frozenset[str]
) -> FlowError | None:
    """The error of the first of those ids that nobody knows, if there is one."""
    for job_id in job_ids:
        if job_id not in known_done and look(state, job_id).kind == GONE:
            return FlowError(
                f"depends_on: there is no job {job_id!r}: it never existed, or was removed before "
                "it had completed"
            )
    return None


def needed_owner(
    state: State, queue: QueueState, record: JobRecord, now: int
) -> DuplicateJobError | None:
    """The error of a job that would take the place of another (`mode="replace"`) which others
    wait for, or which waits for others."""
    if record.unique_key is None or queue.unique_keys.original(record, now) is not None:
        return None
    prior = queue.unique_keys.owner(record.unique_key, now)
    if prior is None or prior.state >= ACTIVE:
        return None
    links = links_of(prior)
    waits = links is not None and links.unmet
    if not waits and prior.id not in state.dependencies.dependents:
        return None
    return DuplicateJobError(
        f"job {prior.id} owns the deduplication key {record.unique_key!r} and cannot be replaced: "
        + ("it waits for other jobs" if waits else "other jobs wait for it")
        + ". Let them finish, or remove it",
        job_id=prior.id,
        key=record.unique_key,
        owner=prior.id,
    )


def _found_again(queue: QueueState, record: JobRecord, now: int) -> bool:
    if record.custom_id is not None:
        holder = queue.custom_ids.get(record.custom_id)
        if holder is not None and holder.state <= ACTIVE:
            return True
    return record.unique_key is not None and (queue.unique_keys.original(record, now) is not None)
