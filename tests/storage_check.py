"""What is on disk against what is in memory: SPEC 16's fourth invariant."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from bunqueue_py import QueueManager
from bunqueue_py.model.claim import Claim
from bunqueue_py.model.job import COMPLETED
from bunqueue_py.model.links import INLINE_EDGES
from bunqueue_py.model.rows import (
    CLAIM,
    ENTERED,
    ID,
    INLINE_BYTES,
    OPTIONS,
    RESULT,
    RESULT_SIZE,
    RUN_AT,
    SIDE,
    JobRow,
    full_row,
    row_of,
)
from bunqueue_py.model.schedule import (
    PROGRESS_KIND,
    SCHEDULE_KIND,
    definition_body,
    schedule_name,
)
from bunqueue_py.ops.archive import is_kept
from bunqueue_py.ops.log_rows import LOG_KIND
from bunqueue_py.ops.mark import QUEUE_KIND, held_body
from bunqueue_py.ops.outcomes import (
    EDGES_KIND,
    PROOF_KIND,
    edges_name,
    links_of,
    proof_body,
)
from bunqueue_py.ops.tally import MINUTES_KIND
from bunqueue_py.ops.webhooks import WEBHOOK_KIND
from bunqueue_py.shard.dirty import GROUP_KIND, HELD_KIND, group_name, held_name, minutes_name
from bunqueue_py.shard.keys import seq_of
from bunqueue_py.shard.settings import group_body, settings_body
from bunqueue_py.state import State
from bunqueue_py.storage.sqlite.meta import options_text
from bunqueue_py.storage.sqlite.recovery import stored_jobs, stored_rest
from bunqueue_py.storage.sqlite.rows import RowDecoder
from bunqueue_py.stores.logs import LINES


def full_rows(rows: Iterable[Any]) -> list[Any]:
    """What a storage tells of its jobs, each row with all of its places."""
    return [full_row(row) if isinstance(row, tuple) else row for row in rows]


def check_storage(manager: QueueManager, path: str) -> None:
    """Flushes, and compares every row with its record, every setting, every result."""
    manager.flush()
    state = manager._state
    now = state.now()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        decoder = RowDecoder(state.options.default)
        rows = full_rows(stored_jobs(connection, decoder, path))
        rest = {(kind, key): body for kind, key, body in stored_rest(connection, path)}
        apart = dict(connection.execute("SELECT id, data FROM results"))
    found: dict[str, JobRow] = {}
    for row in rows:
        assert isinstance(row, tuple), row
        assert row[ID] not in found, "a job twice on disk"
        found[row[ID]] = row
    assert found.keys() == state.index.keys(), "who exists on disk and in memory"
    for job_id, record in state.index.items():
        row = found[job_id]
        kept = row_of(record, seq_of(record) or 0)
        claimed = record.delivery is not None and not record.delivery.begun
        _same(_bare(row, now, claimed), _bare(kept, now, claimed), job_id)
        assert row[-3] == record.data, "payload on disk"
        result = state.results.get(job_id) if record.state == COMPLETED else None
        if result is not None:
            stored = row[RESULT] if len(result) <= INLINE_BYTES else apart[job_id]
            assert stored == result, "result on disk"
        elif row[RESULT_SIZE] < 0:
            assert row[RESULT] is None, "a result that is none"
            assert job_id not in apart, "a result that is none, apart"
    assert apart.keys() <= found.keys(), "a result without a job"
    for queue in state.queues.values():
        on_disk = _that_matter(rest.pop((QUEUE_KIND, queue.name), None), now)
        assert on_disk == _that_matter(_as_json(settings_body(queue)), now), "settings"
        for group in () if queue.groups is None else queue.groups.by_name.values():
            stored = rest.pop((GROUP_KIND, group_name(queue.name, group.name)), None)
            assert (stored is not None) is group.stored, "whether a group has settings on disk"
            kept = _that_matter(_as_json(group_body(group)), now)
            assert _that_matter(stored, now) == kept, "settings of a group"
        for holder in queue.unique_keys.gone():
            key = (HELD_KIND, held_name(queue.name, holder.unique_key or ""))
            assert isinstance(holder.claim, Claim), "a job that is gone holds a key"
            assert rest.pop(key, None) == held_body(holder.id, holder.claim), "a held key"
    _check_figures(state, rest)
    for schedule in state.schedules.of(None):
        name = schedule_name(schedule.queue.name, schedule.id)
        body = _as_json(definition_body(schedule.definition))
        assert rest.pop((SCHEDULE_KIND, name), None) == body, "a scheduler"
        come = rest.pop((PROGRESS_KIND, name), None)
        assert come is not None, "a scheduler without progress"
        assert come[2:] == list(schedule.progress), "how far a scheduler has come"
    _ties(state, rest)
    assert not rest, f"something on disk of which memory knows nothing: {rest}"


def _ties(state: Any, rest: dict[tuple[str, str], Any]) -> None:
    """Takes out what `rest` has of edges and proofs, which must be what memory has."""
    for record in state.index.values():
        links = links_of(record)
        if links is None or len(links.edges) <= INLINE_EDGES:
            continue
        for i, chunk in enumerate(links.chunks()):
            stored = rest.pop((EDGES_KIND, edges_name(record.id, i)))
            assert stored[::2] == chunk[::2], "edges on disk"
            assert list(map(_fixed, stored[1::2])) == list(map(_fixed, chunk[1::2])), "their kinds"
    for job_id, proof in state.proofs.pinned.items():
        stored = rest.pop((PROOF_KIND, job_id), None)
        if stored is None:
            # one that stays in the file needs no proof there
            assert is_kept(state), "a proof that somebody needs"
            continue
        result = state.results.pinned.get(job_id)
        assert stored[:-1] == _as_json(proof_body(proof, result))[:-1], "a proof on disk"


def _fixed(code: int) -> int:
    """An edge without how it stands, which the other job's row tells."""
    return code & ~7


def _same(disk: tuple[Any, ...], memory: tuple[Any, ...], job_id: str) -> None:
    different = [
        (i, *pair)
        for i, pair in enumerate(zip(disk, memory, strict=True))
        if len({*map(repr, pair)}) > 1
    ]
    assert disk == memory, f"job {job_id} on disk and in memory: {different}"


def _bare(row: JobRow, now: int, claimed: bool) -> tuple[Any, ...]:
    """The row without what is told otherwise or changes by time alone: what has come due has
    entered its state then, whoever has noticed. That it is `claimed` and not begun is not told."""
    parts = list(row)
    parts[RESULT] = parts[-3] = None
    parts[OPTIONS] = options_text(row[OPTIONS])
    side, claim = row[SIDE], row[CLAIM]
    if side is not None and side[0] and row[RUN_AT] <= now:
        side = (False, *side[1:])
    if row[3] == 0 and row[RUN_AT] <= now:
        parts[ENTERED] = parts[RUN_AT] = 0
    if side is not None:
        # the stacks of earlier runs are not kept
        attempts = tuple(row._replace(failure=row.failure._replace(stack=())) for row in side[1])
        letter = side[6]
        links = side[12]
        if links is not None and not isinstance(links[2], int):
            links = (*links[:2], tuple((job_id, _fixed(code)) for job_id, code in links[2]))
        # a letter's moments follow from the settings
        side = (side[0], attempts, *side[2:6], letter and (letter[0], letter[3]), *side[7:12])
        side = (*side, links)
        if claimed:
            side = (*side[:11], None, links)
        if not any(part for i, part in enumerate(side) if i != 11):
            side = None if side[11] is None else side
    parts[SIDE], parts[CLAIM] = side, claim
    return tuple(parts)


def _that_matter(body: dict[str, Any] | None, now: int) -> dict[str, Any]:
    """The settings but for those that have ended by time: memory lets them go when it next looks,
    and the row tells when they ended."""
    matter = dict(body or {})
    limits = _live(matter.pop("limits", {}), now)
    if limits:
        matter["limits"] = limits
    if not matter.get("paused", True):
        del matter["paused"]
    return matter


def _live(limits: dict[str, Any], now: int) -> dict[str, Any]:
    limits = dict(limits)
    if limits.get("cool_until", now) <= now:
        limits.pop("cool_until", None)
    if limits.get("ends") is not None and limits["ends"] <= now:
        for part in ("max", "per", "ends"):
            del limits[part]
    return limits


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_json(part) for key, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, (list, tuple)) else value


def _check_figures(state: State, rest: dict[tuple[str, str], Any]) -> None:
    """Takes out of `rest` the counts by the minute, the webhooks and the logs, which are as memory
    has them. Of the hour that goes on, the file may know less."""
    tallies = {queue.name: queue.tally for queue in state.queues.values()}
    for shard in state.shards.shards:
        assert not shard.tallies.keys() & shard.queues.keys(), "counted twice"
        tallies.update(shard.tallies)
    for queue_name, tally in tallies.items():
        for hour, text in ({} if tally is None else tally.closed).items():
            assert rest.pop((MINUTES_KIND, minutes_name(queue_name, hour))) == text, "an hour"
        if tally is not None:
            rest.pop((MINUTES_KIND, minutes_name(queue_name, tally.hour)), None)
    for hook in state.webhooks.views():
        body = _as_json(state.webhooks.body(hook.id))
        assert rest.pop((WEBHOOK_KIND, hook.id), None) == body, "a webhook"
    for job_id, lines in state.logs.lines():
        for line in lines:
            name = (LOG_KIND, f"{job_id}\0{line.number % LINES}")
            assert rest.pop(name, None) == list(line), "a line of a log"
