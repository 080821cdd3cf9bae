"""How the logs of jobs are kept on disk: a row for each line. Called under the shard's lock."""

from __future__ import annotations

from ..model.job_logs import LEVELS, MAX_TEXT
from ..shard.keys import LIMIT
from ..shard.shard import Shard
from ..state import State
from ..stores.logs import LINES, Line

LOG_KIND = "log"


def drop_log(state: State, shard: Shard, job_id: str) -> None:
    """The job leaves, and its log with it. Called under the shard's lock, where there is a log."""
    drop_rows(shard, job_id, 0, state.logs.drop(job_id))


def drop_rows(shard: Shard, job_id: str, first: int, end: int) -> None:
    """The lines in those places of the job's log are gone."""
    if shard.dirty is not None:
        for number in range(first, end):
            shard.dirty.keep(LOG_KIND, _row_name(job_id, number), None)


def keep_line(shard: Shard, job_id: str, line: Line) -> None:
    """The job has written that line."""
    if shard.dirty is not None:
        shard.dirty.keep(LOG_KIND, _row_name(job_id, line.number), list(line))


def mark_logs(state: State, shard: Shard) -> None:
    """Whatever the storage knows of the logs, this is how they are; for a rebuild."""
    for job_id, lines in state.logs.lines():
        record = state.index.get(job_id)
        if record is not None and record.queue.shard is shard:
            for line in lines:
                keep_line(shard, job_id, line)


def restore_logs(state: State, found: dict[str, list[Line]]) -> None:
    """Takes in what a file has kept; logs whose job is gone leave it."""
    for job_id, lines in sorted(found.items(), key=_last_written):
        record = state.index.get(job_id)
        lines.sort()
        # the newest, as far back as none is missing
        first = len(lines) - 1
        while first and lines[first - 1].number == lines[first].number - 1:
            first -= 1
        if record is not None:
            for evicted, n in state.logs.restore(job_id, lines[first:]).items():
                drop_rows(state.index[evicted].queue.shard, evicted, 0, n)
        else:
            drop_rows(state.shards.shards[0], job_id, 0, LINES)


def _last_written(entry: tuple[str, list[Line]]) -> int:
    return max(line.at_ms for line in entry[1])


def _row_name(job_id: str, number: int) -> str:
    # the newest lines write over the oldest
    return f"{job_id}\0{number % LINES}"


def read_line(key: str, body: object) -> tuple[str, Line]:
    """The job and the line of a row. Raises `ValueError`."""
    job_id, _, _ = key.partition("\0")
    if not isinstance(body, list) or len(body) != 4:
        raise ValueError("a line of a log has four parts")
    number, level, at_ms, text = body
    right = (
        number.__class__ is int
        and number >= 0
        and at_ms.__class__ is int
        and 0 <= at_ms < LIMIT
        and level in LEVELS
        and isinstance(text, str)
        and len(text) <= MAX_TEXT
    )
    if not right:
        raise ValueError("a part of a log's line is not of its kind")
    return job_id, Line(number, level, at_ms, text)
