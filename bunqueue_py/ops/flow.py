"""Jobs that wait for jobs: whether one must, what lets it go, and what a failure leads to.

No verb holds two shards for it. Who begins to wait registers first and then looks; who ends notes
it under its own shard's lock, and `drain` tells those that wait after release, one shard at a time.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..errors import ManagerClosedError
from ..model.failure import MAX_ERROR_CHARACTERS, Failure
from ..model.job import ACTIVE, COMPLETED, FAILED, GATED, PENDING, REMOVED, JobRecord
from ..model.links import (
    CONTINUE,
    DROPPED,
    FAIL,
    IGNORE,
    IGNORED,
    LOOSE,
    MET,
    UNMET,
    WAIT,
    Links,
    is_child,
    policy_of,
    status_of,
)
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN, Shard
from ..state import State
from ..stores.dependencies import AGAIN, DEAD, DONE, FREED, GONE, KEPT, LIVE, RETRIED, Effect
from ..types import FailureReason
from .finish import finalize
from .outcomes import (
    keep_edge,
    links_of,
    mark_edges,
    note,
    pin_proof,
    unpin_proof,
)
from .recover import enter
from .unblock import let_go, settle_met

_BITE = 64
"""So many completions are told of with one hold of a lock."""
_NESTED = 1_000
"""How many characters of a dependency's error its dependent repeats."""


class Seen(NamedTuple):
    """How another job stands: `LIVE`, `DONE`, `DEAD` or `GONE`, in which queue, with which error,
    and whether it has left, so that no retry can change it any more."""

    kind: int
    queue: str = ""
    error: str = ""
    left: bool = False


def look(state: State, job_id: str) -> Seen:
    """How that job stands, by memory; takes no shard's lock."""
    for _ in range(2):
        record = state.index.get(job_id)
        if record is not None and record.state != REMOVED:
            name: str = record.queue.name
            if record.state == COMPLETED:
                return Seen(DONE, name)
            if record.state != FAILED:
                return Seen(LIVE, name)
            failure = None if record.side is None else record.side.failure
            return Seen(DEAD, name, "" if failure is None else failure.error)
        proof = state.proofs.get(job_id)
        if proof is not None:
            if proof.failure is None:
                return Seen(DONE, proof.queue, left=True)
            return Seen(DEAD, proof.queue, proof.failure.error, left=True)
    return Seen(GONE, left=True)


# -- whether to wait -----------------------------------------------------------------------------


def begin_waiting(
    state: State, record: JobRecord, links: Links, known_done: frozenset[str] = frozenset()
) -> Failure | None:
    """Registers all that the record waits for, then looks at what of it has ended. Returns why the
    record must fail; if it need not, it waits as long as `links.unmet` is not 0. `known_done` have
    been seen to be completed, where only the file tells. Its shard is held."""
    state.dependencies.register(record.id, links.edges)
    failure = None
    for job_id in links.waited_for():
        seen = Seen(DONE) if job_id in known_done else look(state, job_id)
        if seen.kind == DONE:
            links.settle(job_id, MET)
        # an earlier one that failed may have let it go on without the rest
        elif seen.kind != LIVE and status_of(links.edges[job_id]) == UNMET:
            failure = failure or apply_failure(links, job_id, seen)
    for job_id, code in links.edges.items():
        if status_of(code) == MET:
            state.results.pin(job_id)
            proof = None if job_id in state.index else state.proofs.get(job_id)
            if proof is not None and job_id not in state.proofs.pinned:
                note(state, record.queue.shard, Effect(KEPT, job_id, proof.queue))
    return failure


def apply_failure(links: Links, job_id: str, seen: Seen) -> Failure | None:
    """What the failure of a job that is waited for does to whoever waits: changes the edges, or
    returns why it must fail."""
    code = links.edges[job_id]
    policy = policy_of(code)
    if policy == WAIT and not seen.left:
        return None
    if policy in (FAIL, WAIT):
        return dependency_failure(job_id, code, seen)
    if policy == CONTINUE:
        links.go_on_without(job_id)
    else:
        links.settle(job_id, IGNORED if policy == IGNORE else DROPPED)
    return None


def dependency_failure(job_id: str, code: int, seen: Seen) -> Failure:
    """Why a job must fail whose dependency did: names that, and its error."""
    what = "child" if is_child(code) else "dependency"
    where = f" of queue {seen.queue!r}" if seen.queue else ""
    if seen.kind == GONE:
        text = f"{what} {job_id}{where} was removed before it had completed"
    else:
        text = f"{what} {job_id}{where} failed: {_shortened(seen.error)}"
    return Failure(FailureReason.DEPENDENCY_FAILED, text[:MAX_ERROR_CHARACTERS])


def _shortened(error: str) -> str:
    """An error that may repeat others: its end tells the first cause, and stays."""
    if len(error) <= _NESTED:
        return error
    return f"{error[: _NESTED // 2]} ... {error[-_NESTED // 2 :]}"


def settle_gated(
    state: State, queue: QueueState, record: JobRecord, failure: Failure | None, now: int
) -> None:
    """The gated record has edges that changed: it fails, is let go, or waits on."""
    links = links_of(record)
    if failure is not None:
        finalize(state, queue, record, failure, now)
    elif links is None or not links.unmet:
        let_go(state, queue, record, now)


def failed_dependency(state: State, links: Links) -> str | None:
    """Why a job with those edges cannot be retried, in words that follow "because"."""
    for job_id in links.waited_for():
        code = links.edges[job_id]
        if policy_of(code) not in (FAIL, WAIT):
            continue
        seen = look(state, job_id)
        what = "child" if is_child(code) else "dependency"
        if seen.left and seen.kind != DONE:
            return (
                f"its {what} {job_id} was removed before it had completed; remove_dependency() "
                "lets the job do without"
            )
        if seen.kind == DEAD and policy_of(code) == FAIL:
            return f"its {what} {job_id} has failed; retry that first"
    return None


def gated_anew(state: State, queue: QueueState, record: JobRecord, now: int) -> bool:
    """A job that was retried waits again for what is unmet; says whether it must."""
    links = links_of(record)
    if links is None:
        return False
    if begin_waiting(state, record, links) is not None:
        # it has failed since it was asked for: once the job waits, it is told
        note(state, queue.shard, Effect(AGAIN, "", ""))
    mark_edges(queue, record, links)
    if not links.unmet:
        return False
    record.gate(now)
    queue.gate(record)
    return True


# -- telling those that wait ---------------------------------------------------------------------


def drain(state: State, *, force: bool = False) -> int:
    """Applies what has been noted, until nothing is left; returns how much that was. Called with no
    lock held. One thread at a time does it; `force`: whoever was at it may have been broken off."""
    dependencies = state.dependencies
    pending = dependencies.pending
    applied = 0
    # Whoever notes something after the last look finds the turn free, or is seen by this one.
    while pending and dependencies.begin(force=force):
        try:
            while pending:
                effects = _next_effects(pending)
                _apply(state, effects)
                # they stay until they are applied; a forced drain may be at the same ones
                for effect in effects:
                    if pending and pending[0] is effect:
                        pending.popleft()
                applied += len(effects)
        except ManagerClosedError:
            # what the file holds says the same, and the next opening applies it
            return applied
        except BaseException:
            state.alarm.set(state.now() + state.periods.dependency_fallback)
            raise
        finally:
            dependencies.end()
    return applied


def _next_effects(pending: deque[Effect]) -> list[Effect]:
    """The oldest effect, with those behind it if they and it are completions."""
    effects = [pending[0]]
    if effects[0].kind == DONE:
        try:
            while len(effects) < _BITE and pending[len(effects)].kind == DONE:
                effects.append(pending[len(effects)])
        except IndexError:  # no more, or a forced drain has taken some
            return effects
    return effects


def _apply(state: State, effects: list[Effect]) -> None:
    effect = effects[0]
    if effect.kind == DONE:
        _tell_done(state, effects)
    elif effect.kind in (FREED, KEPT):
        _judge_proof(state, effect)
    elif effect.kind == AGAIN:
        look_again(state)
    else:
        tell = _keep_edge if effect.kind == RETRIED else _tell
        for job_id in state.dependencies.waiting_for(effect.job_id):
            tell(state, job_id, effect)


def _tell_done(state: State, effects: list[Effect]) -> None:
    """Those jobs have completed: tells who waits for them, a bite of one shard at a time."""
    index, waiting_for = state.index, state.dependencies.waiting_for
    told: dict[Shard, list[tuple[str, JobRecord]]] = {}
    for effect in effects:
        for job_id in waiting_for(effect.job_id):
            record = index.get(job_id)
            if record is not None:
                part = told.setdefault(record.queue.shard, [])
                part.append((effect.job_id, record))
                if len(part) == _BITE:
                    _settle_met(state, record.queue.shard, told.pop(record.queue.shard))
    for shard, part in told.items():
        _settle_met(state, shard, part)


def _settle_met(state: State, shard: Shard, met: list[tuple[str, JobRecord]]) -> None:
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        shard.gate = BROKEN
        now = state.now()
        for other, record in met:
            settle_met(state, other, (record,), now)
        shard.gate = OPEN
    if shard.after:
        shard.call_after()


def _tell(state: State, job_id: str, effect: Effect) -> None:
    """A job has failed for good, or is gone: that one waits for it."""
    record = state.index.get(job_id)
    if record is None:
        return
    queue: QueueState = record.queue
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        links = links_of(record)
        if record.state == GATED and links is not None and effect.job_id in links.edges:
            shard.gate = BROKEN
            _settle_failed(state, queue, record, links, effect)
            shard.gate = OPEN
    if shard.after:
        shard.call_after()


def _settle_failed(
    state: State, queue: QueueState, record: JobRecord, links: Links, effect: Effect
) -> None:
    other = effect.job_id
    seen = look(state, other)
    # one that was retried since may yet complete; a run that is under way is not broken off
    if status_of(links.edges[other]) != UNMET or seen.kind not in (DEAD, GONE):
        return
    if seen.kind == GONE:
        seen = seen._replace(queue=effect.queue)
    failure = apply_failure(links, other, seen)
    if failure is None:
        keep_edge(queue, record, links, other)
    settle_gated(state, queue, record, failure, state.now())


def _keep_edge(state: State, job_id: str, effect: Effect) -> None:
    """The other job had ended and runs again: for whoever has an edge to it that end stays what it
    was."""
    record = state.index.get(job_id)
    if record is None:
        return
    queue: QueueState = record.queue
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        links = links_of(record)
        if record.state <= FAILED and links is not None and effect.job_id in links.edges:
            keep_edge(queue, record, links, effect.job_id)


def _judge_proof(state: State, effect: Effect) -> None:
    """The proof of a job that left is pinned while somebody needs it, and only then."""
    queue = state.queues.get(effect.queue)
    if queue is None:
        return
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        job_id, proofs = effect.job_id, state.proofs
        needed = job_id in state.dependencies.dependents
        if not needed:
            unpin_proof(state, queue, job_id)
        elif job_id not in state.index and job_id not in proofs.pinned:
            proof = proofs.get(job_id)
            if proof is not None:
                pin_proof(state, queue, job_id, proof)


def look_again(state: State) -> None:
    """Looks at every job that waits, whatever has been noted: after a section that broke off, and
    when a file is opened."""
    # of jobs that wait, those too that wait for nothing
    waiting: dict[str, list[str]] = {
        job_id: [] for queue in list(state.queues.values()) for job_id in list(queue.gated)
    }
    for other, dependents in state.dependencies.everything().items():
        for job_id in dependents:
            waiting.setdefault(job_id, []).append(other)
    for job_id, others in waiting.items():
        record = state.index.get(job_id)
        if record is None or record.state in (COMPLETED, REMOVED):
            state.dependencies.unregister(job_id, others)
            continue
        queue: QueueState = record.queue
        shard = queue.shard
        with queue.lock:
            if shard.gate:
                enter(state, shard)
            links = links_of(record)
            strays = [other for other in others if links is None or other not in links.edges]
            if strays:
                state.dependencies.unregister(job_id, strays)
            if links is None or record.state not in (PENDING, GATED, ACTIVE, FAILED):
                continue
            shard.gate = BROKEN
            failure = review(state, record, links)
            if record.state == GATED:
                settle_gated(state, queue, record, failure, state.now())
            shard.gate = OPEN
        if shard.after:
            shard.call_after()


def review(state: State, record: JobRecord, links: Links) -> Failure | None:
    """Looks at all that the record waits for and settles what has ended; of one that is gated also
    what has failed. Returns why it must fail. Its shard is held."""
    failure = None
    for job_id, code in list(links.edges.items()):
        if status_of(code) not in (UNMET, LOOSE):
            continue
        seen = look(state, job_id)
        if seen.kind == DONE:
            links.settle(job_id, MET)
        elif (
            record.state == GATED
            and seen.kind != LIVE
            # an earlier one may have let it go
            and status_of(links.edges[job_id]) == UNMET
        ):
            failure = failure or apply_failure(links, job_id, seen)
            keep_edge(record.queue, record, links, job_id)
    return failure
