"""The logs of jobs: a line comes in, a page is read."""

from __future__ import annotations

from ..errors import JobNotFoundError, LockError
from ..model.job import REMOVED
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..stores.logs import Line
from .ack import NOT_ISSUED, answer, judge_token
from .commit import keep_up
from .log_rows import drop_rows, keep_line
from .recover import check_open, enter


def add_log(state: State, job_id: str, token: str | None, text: str, level: str) -> None:
    """Adds a line to the log of the delivery under way. Raises `JobNotFoundError`, or `LockError`
    for any token but the current one."""
    record = state.index.get(job_id)
    if record is None:
        check_open(state)
        raise _gone(job_id)
    queue: QueueState = record.queue
    shard = queue.shard
    gone: dict[str, int] = {}
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        refused = judge_token(record, token, late_ack=False)
        if refused is None:
            shard.gate = BROKEN
            line, gone = state.logs.add(job_id, level, state.now(), text)
            keep_line(shard, job_id, line)
            shard.gate = OPEN
    if gone:
        _forget_evicted(state, gone)
    if refused is None:
        keep_up(state)
        return
    if record.state == REMOVED:
        raise _gone(job_id)
    if refused is not NOT_ISSUED:
        raise LockError(
            f"job {job_id}: this run has lost its lock ({refused.reason}); its log line was not "
            "kept",
            job_id=job_id,
        )
    answer(record, refused)


def _gone(job_id: str) -> JobNotFoundError:
    return JobNotFoundError(f"job {job_id} is gone; its log line was not kept", job_id=job_id)


def page(state: State, job_id: str, offset: int, limit: int) -> tuple[list[Line], int]:
    """Lines of the job, and how many it has ever written; none for a job that is not known."""
    check_open(state)
    return state.logs.page(job_id, offset, limit)


def _forget_evicted(state: State, gone: dict[str, int]) -> None:
    """Logs that have made room leave the file too: each under its own shard's lock, so that no
    older mark can come after. Called with nothing held."""
    for job_id, lines in gone.items():
        record = state.index.get(job_id)
        if record is None:
            continue  # it has left, and its rows with it
        queue: QueueState = record.queue
        with queue.lock:
            # it may have written again meanwhile: its lines then began anew, over the old ones
            again = state.logs.page(job_id, 0, lines)[0]
            drop_rows(queue.shard, job_id, len(again), lines)
