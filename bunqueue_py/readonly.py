"""`ReadonlyManager`: the file as another process sees it, in the shape of a `QueueManager`.

It is over 400 lines because it is a façade of all verbs, most of which it names to refuse them.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import islice
from sqlite3 import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from typing_extensions import Self

from .client.job import DlqEntry, Job, dlq_entry
from .client.protocol import Backend, Manager
from .client.schedulers import ManagerSchedulers
from .clock import Clock, SystemClock
from .config import ManagerConfig
from .durations import ms_to_moment, optional_moment, shown
from .errors import (
    ManagerClosedError,
    ResultExpiredError,
    SerializationError,
    StorageError,
    ValidationError,
)
from .model.checks import check_clock, checked_iterable
from .model.failure import Failure
from .model.figures import MinuteCount, checked_ending
from .model.job import ACTIVE, COMPLETED, FAILED, GATED, PENDING, JobRecord
from .model.job_logs import LogEntry, LogPage
from .model.options import Options, checked_bool, checked_int, checked_name, checked_queue_name
from .model.rows import DATA, QUEUE, RESULT, RESULT_SIZE, STATE, JobRow, record_from
from .model.schedule import (
    PROGRESS_KIND,
    SCHEDULE_KIND,
    Definition,
    Progress,
    Scheduler,
    definition_from,
    planned_moments,
    progress_from,
    scheduler_view,
)
from .model.settings import letter_filter
from .model.side import Letter
from .model.snapshot import fields_of
from .ops.log_rows import LOG_KIND, read_line
from .ops.query import ALL_STATES
from .ops.tally import MINUTES_KIND, read_hour
from .serializers import JsonSerializer, Serializer
from .shard.dead_letters import letter_of, matches
from .storage.sqlite.paths import PathInput, absolute
from .storage.sqlite.reader import (
    Reader,
    Row,
    count_jobs,
    count_priorities,
    find_job,
    letters,
    list_jobs,
    list_rest,
    list_rest_of,
    rows_with_text,
    walk_jobs,
)
from .storage.sqlite.rows import RowDecoder, UndecodableRowError, text_of
from .storage.sqlite.schema import read_meta
from .types import DlqStats, Duration, FailureReason, JobCounts, JobState

T = TypeVar("T")

_log = logging.getLogger("bunqueue_py.storage")

_PAGE = 200
"""Jobs that `iter_jobs` has in memory at a time."""

# The bound on timelines is the setting of the manager that wrote them; here all there is is shown.
_OPTIONS = Options(max_timeline=1_000)

_STATES = {
    GATED: JobState.WAITING_CHILDREN,
    ACTIVE: JobState.ACTIVE,
    COMPLETED: JobState.COMPLETED,
    FAILED: JobState.FAILED,
}
_STATE_NAMES = ", ".join(ALL_STATES)


def open_readonly(
    path: PathInput, serializer: Serializer | None = None, *, clock: Clock | None = None
) -> ReadonlyManager:
    """A view of the database at `path` that changes nothing, beside the manager that has it open
    in another process, or after that has ended.

    `serializer`: what the file was written with; without it, a file written with another one than
    `JsonSerializer` shows everything but data and results. `clock`: by which delayed jobs are
    judged. Raises `StorageError` if there is no bunqueue_py database, or another serializer than
    that wrote it; `ValidationError`.
    """
    if serializer is not None:
        ManagerConfig(serializer=serializer)  # which checks it
    check_clock(clock)
    reader = Reader(os.path.realpath(absolute(path, "path")))
    written = reader.read(lambda connection: read_meta(connection, "serializer"))
    if serializer is None:
        serializer = JsonSerializer()
        if written not in (None, serializer.name):
            return ReadonlyManager(reader, _without(written), clock)
    elif written not in (None, serializer.name):
        raise StorageError(
            f"{shown(reader.path)} was written with the serializer {written!r}, and "
            f"{serializer.name!r} cannot read what it wrote: give that one"
        )
    return ReadonlyManager(reader, serializer.loads, clock)


def _without(written: object) -> Callable[[bytes], Any]:
    def loads(data: bytes) -> NoReturn:
        raise SerializationError(
            f"the file was written with the serializer {written!r}: give it to "
            "open_readonly(serializer=...) to see data and results"
        )

    return loads


class _Queue:
    """What a record asks of its queue here."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(self: ReadonlyManager, *args: object, **options: object) -> NoReturn:
        self._refuse(name)

    refuse.__name__ = name
    refuse.__doc__ = "Raises `StorageError`: this is a view, nothing changes or runs through it."
    return refuse


class ReadonlyManager:
    """What is in a database, for looking only: made by `QueueManager.open_readonly(path)`.

    Shows what its manager has written, which is up to `max_lag` behind what it has in memory.
    Every call reads the file as it is then, at one moment, and holds nothing afterwards. A `Queue`
    may be made with it in the place of a manager. Whatever would change something, wait or run
    jobs raises `StorageError`, and so do the verbs of the jobs that it returns. Limits, groups and
    deduplication keys are not shown, and there is no `stats()`: totals, times and memory are the
    running manager's, and in no file.

    A job whose row is damaged is left out, and logged; asked for by its id, it raises
    `StorageError`. Whether a delayed job is due is judged by this process's clock.
    """

    def __init__(
        self, reader: Reader, loads: Callable[[bytes], Any], clock: Clock | None = None
    ) -> None:
        self._reader = reader
        self._clock = clock or SystemClock()
        self._closed = False
        #: Encoded data as a value.
        self.decode: Callable[[bytes], Any] = loads

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<ReadonlyManager of {shown(self._reader.path)}, {state}>"

    # -- life --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, timeout: Duration | None = None) -> bool:
        """Every later call raises `ManagerClosedError`. Idempotent; there is nothing to wait for,
        so it is always True."""
        self._closed = True
        return True

    @property
    def now(self) -> datetime:
        """The time of this process."""
        return ms_to_moment(self._clock.timeline_ms())

    # -- looking -----------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """The names of all queues that have jobs or settings, sorted."""
        counts, settings = self._overview(None)
        return sorted(filter(_names_a_queue, counts.keys() | settings.keys()))

    def counts(self, queue: Any = None) -> JobCounts:
        """How many jobs are in each state, of one queue or of all. Reads the whole file."""
        counts, settings = self._overview(None if queue is None else _queue_name(queue))
        sums: Counter[str] = Counter()
        for name, found in counts.items():
            parts = Counter(vars(found))
            if settings.get(name, {}).get("paused"):
                parts["paused"] = parts.pop("waiting") + parts.pop("prioritized")
            sums.update(parts)
        return JobCounts(**sums)

    def counts_per_priority(self, queue: Any) -> dict[int, int]:
        """How many jobs wait, of each priority; see `Queue.counts_per_priority`."""
        name = _queue_name(queue)
        return self._read(lambda connection: count_priorities(connection, name))

    def is_paused(self, queue: Any) -> bool:
        """See `Queue.is_paused`."""
        name = _queue_name(queue)
        settings = self._read(lambda connection: _settings(connection))
        return bool(settings.get(name, {}).get("paused"))

    def known_queue(self, name: str) -> str:
        """The checked name of a queue, which need not be there."""
        self._check_open()
        return checked_queue_name(name)

    def get_job(
        self,
        job_id: Job | str | None = None,
        *,
        queue: Any = None,
        custom_id: str | None = None,
    ) -> Job | None:
        """The job by its id, or by queue and custom id (which reads the whole file); `None` if
        there is none."""
        if (job_id is None) == (custom_id is None) or (job_id is None) == (queue is None):
            raise ValidationError("give job_id alone, or queue and custom_id")
        if custom_id is not None:
            return self._by_custom_id(_queue_name(queue), checked_name(custom_id, "custom_id"))
        row = self._row(job_id)
        return None if row is None else self._job(row, self._clock.timeline_ms())

    def get_state(self, job_id: Job | str) -> JobState:
        """The job's state; `JobState.UNKNOWN` if there is no such job."""
        job = self.get_job(job_id)
        return JobState.UNKNOWN if job is None else job.state

    def get_result(self, job_id: Job | str) -> Any:
        """The result of a completed job; `None` in any other state. Raises `ResultExpiredError`
        where the file no longer has it."""
        row = self._row(job_id)
        if row is None or row[STATE] != COMPLETED or row[RESULT_SIZE] < 0:
            return None
        data, what = row[RESULT], f"the result of job {row[0]}"
        if data is None:
            raise ResultExpiredError(f"{what} has made room for newer ones")
        try:
            return self.decode(data)
        except (SerializationError, MemoryError):
            raise
        except Exception as error:  # a serializer of the application's may raise anything
            raise SerializationError(f"{what} cannot be decoded: {error!r}") from error

    def get_jobs(
        self,
        queue: Any,
        states: JobState | str | Iterable[JobState | str] | None = None,
        *,
        offset: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        with_data: bool = True,
    ) -> list[Job]:
        """A page of the queue's jobs in those states (`None`: all), in the order in which they
        entered them; see `Queue.get_jobs`. Reads the whole file, but for completed or failed ones
        alone."""
        checked_int(offset, "offset", 0, 1 << 40)
        checked_int(limit, "limit", 0, 1_000_000)
        checked_bool(newest_first, "newest_first")
        checked_bool(with_data, "with_data")
        name, wanted, now = _queue_name(queue), _states(states), self._clock.timeline_ms()
        rows = self._read(
            lambda connection: list_jobs(
                connection,
                name,
                wanted,
                now,
                offset=offset,
                limit=limit,
                newest_first=newest_first,
                with_data=with_data,
            )
        )
        return self._jobs(rows, now, with_data=with_data)

    def iter_jobs(
        self, queue: Any, states: JobState | str | Iterable[JobState | str] | None = None
    ) -> Iterator[Job]:
        """Every job of the queue in those states (`None`: all), a page at a time, in the order in
        which they were added; see `Queue.iter_jobs`."""
        self._check_open()
        return self._walk(_queue_name(queue), _states(states))

    def _walk(self, queue: str, states: tuple[JobState, ...]) -> Iterator[Job]:
        after = ""
        while True:
            now, last = self._clock.timeline_ms(), after

            def page(connection: Connection, now: int = now, last: str = last) -> list[Row]:
                return walk_jobs(connection, queue, states, now, after=last, limit=_PAGE)

            rows = self._read(page)
            yield from self._jobs(rows, now)
            # a damaged id is no text, and nothing comes after it
            after = next((row[0] for row in reversed(rows) if isinstance(row[0], str)), "")
            if len(rows) < _PAGE or not after:
                return

    # -- dead letters ------------------------------------------------------------------------

    def dlq_entries(
        self,
        queue: Any,
        reason: str | None = None,
        older_than: Duration | datetime | None = None,
        newer_than: Duration | datetime | None = None,
        retriable: bool | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> list[DlqEntry]:
        """See `DeadLetterQueue.entries`."""
        checked_int(offset, "offset", 0, 1 << 40)
        checked_int(limit, "limit", 0, 1_000_000)
        name, now = _queue_name(queue), self._clock.timeline_ms()
        wanted = letter_filter(reason, older_than, newer_than, retriable, now)

        def page(connection: Connection) -> list[Row]:
            records = (r for r in _records(letters(connection, name)) if matches(r, wanted))
            found = [record.id for record in islice(records, offset, offset + limit)]
            rows = [find_job(connection, job_id) for job_id in found]
            return [row for row in rows if row is not None]

        return [dlq_entry(job) for job in self._jobs(self._read(page), now)]

    def dlq_len(self, queue: Any) -> int:
        """How many dead letters the queue has."""
        return self.counts(queue).failed

    def dlq_stats(self, queue: Any) -> DlqStats:
        """See `DeadLetterQueue.stats`."""
        name = _queue_name(queue)

        def look(connection: Connection) -> list[tuple[str, bool, bool, int]]:
            return [_figures(record) for record in _records(letters(connection, name))]

        found = self._read(look)
        moments = [since_ms for _, _, _, since_ms in found]
        reasons = Counter(reason for reason, _, _, _ in found)
        return DlqStats(
            len(found),
            dict(reasons.most_common()),
            sum(retriable for _, retriable, _, _ in found),
            sum(retried for _, _, retried, _ in found),
            optional_moment(min(moments, default=None)),
            optional_moment(max(moments, default=None)),
        )

    # -- schedulers --------------------------------------------------------------------------

    @property
    def schedulers(self) -> ManagerSchedulers:
        """The schedulers of all queues, to be looked at."""
        return ManagerSchedulers(self)

    cron = schedulers
    """The same under its other name."""

    def scheduler_get(self, queue: Any, schedule_id: str) -> Scheduler | None:
        """See `QueueSchedulers.get`."""
        found = self._schedules(_queue_name(queue), checked_name(schedule_id, "id"))
        return self._scheduler(*found[0]) if found else None

    def scheduler_list(self, queue: Any = None) -> list[Scheduler]:
        """See `ManagerSchedulers.list`."""
        name = None if queue is None else _queue_name(queue)
        return [self._scheduler(*found) for found in self._schedules(name)]

    def scheduler_preview(self, queue: Any, schedule_id: str, n: int) -> list[datetime]:
        """See `QueueSchedulers.preview`."""
        checked_int(n, "n", 0, 1_000)
        name, known = _queue_name(queue), checked_name(schedule_id, "id")
        found = self._schedules(name, known)
        if not found:
            raise ValidationError(f"queue {name!r} has no scheduler {known!r}")
        return planned_moments(found[0][2], found[0][3], n)

    def _scheduler(
        self, queue: str, schedule_id: str, definition: Definition, progress: Progress
    ) -> Scheduler:
        return scheduler_view(queue, schedule_id, definition, progress, self.decode)

    def _schedules(
        self, queue: str | None, schedule_id: str | None = None
    ) -> list[tuple[str, str, Definition, Progress]]:
        """Queue, id, definition and progress of those that are meant."""

        def look(connection: Connection) -> tuple[list[Any], dict[Any, Any]]:
            progress = dict(list_rest(connection, PROGRESS_KIND))
            return list_rest(connection, SCHEDULE_KIND), progress

        schedules, progress = self._read(look)
        found = []
        for key, body in schedules:
            try:
                name, _, known = text_of(key).partition("\0")
                if (queue not in (None, name)) or (schedule_id not in (None, known)):
                    continue
                definition = definition_from(json.loads(text_of(body)))
                come = progress_from(json.loads(text_of(progress[key])))[0]
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                _log.warning("scheduler %s is left out: %r", shown(key), error)
            else:
                found.append((name, known, definition, come))
        return found

    # -- what was seen -----------------------------------------------------------------------

    def job_logs(self, job_id: Job | str, offset: int = 0, limit: int = 100) -> LogPage:
        """A page of the job's log, oldest line first; see `Queue.logs`."""
        checked_int(offset, "offset", 0, 1 << 40)
        checked_int(limit, "limit", 0, 1_000_000)
        name = _job_id(job_id)
        found = self._read(lambda connection: list_rest_of(connection, LOG_KIND, name))
        lines = sorted(line for _, line in self._parsed(found, read_line))
        # the newest, as far back as none is missing
        first = max(0, len(lines) - 1)
        while first and lines[first - 1].number == lines[first].number - 1:
            first -= 1
        page = [
            LogEntry(line.level, ms_to_moment(line.at_ms), line.text)
            for line in lines[first:][offset : offset + limit]
        ]
        return LogPage(page, lines[-1].number + 1 if lines else 0)

    def minute_counts(self, queue: Any, kind: str) -> list[MinuteCount]:
        """How many jobs of the queue "completed" or "failed" in each minute that has any, as far
        as the file tells; see `Queue.metrics`."""
        which = checked_ending(kind)
        name = _queue_name(queue)
        found = self._read(lambda connection: list_rest_of(connection, MINUTES_KIND, name))
        points: list[tuple[int, int]] = []
        for part in self._parsed(found, partial(read_hour, which)):
            points += part
        return [MinuteCount(ms_to_moment(at), n) for at, n in sorted(points)]

    def _parsed(
        self, rows: list[tuple[Any, Any]], parse: Callable[[str, object], T]
    ) -> Iterator[T]:
        for key, body in rows:
            try:
                yield parse(text_of(key), json.loads(text_of(body)))
            except (ValueError, RecursionError) as error:
                _log.warning("%s is left out: %r", shown(key), error)

    # -- what cannot be done here ------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """What a `Worker` asks for: raises `StorageError`."""
        self._refuse("run workers or hear of events")

    ack = _refused("ack")
    ack_batch = _refused("ack_batch")
    add_log = _refused("add_log")
    add_child = _refused("add_child")
    add_flows = _refused("add_flows")
    change_delay = _refused("change_delay")
    change_priority = _refused("change_priority")
    children_values = _refused("children_values")
    clean = _refused("clean")
    clear_rate_limit = _refused("clear_rate_limit")
    cool_down = _refused("cool_down")
    deduplication_owner = _refused("deduplication_owner")
    deduplication_release = _refused("deduplication_release")
    discard = _refused("discard")
    dlq_config = _refused("dlq_config")
    dlq_configure = _refused("dlq_configure")
    dlq_purge = _refused("dlq_purge")
    dlq_remove = _refused("dlq_remove")
    dlq_retry = _refused("dlq_retry")
    dlq_retry_all = _refused("dlq_retry_all")
    drain = _refused("drain")
    extend_lock = _refused("extend_lock")
    fail = _refused("fail")
    failed_children = _refused("failed_children")
    flush = _refused("flush")
    health = _refused("health")
    backup = _refused("backup")
    verify = _refused("verify")
    group_names = _refused("group_names")
    group_view = _refused("group_view")
    heartbeat = _refused("heartbeat")
    heartbeat_batch = _refused("heartbeat_batch")
    ignored_failures = _refused("ignored_failures")
    limit_status = _refused("limit_status")
    next_due = _refused("next_due")
    obliterate = _refused("obliterate")
    pause = _refused("pause")
    pause_group = _refused("pause_group")
    promote = _refused("promote")
    promote_all = _refused("promote_all")
    pull = _refused("pull")
    pull_batch = _refused("pull_batch")
    push = _refused("push")
    push_batch = _refused("push_batch")
    release = _refused("release")
    release_owner = _refused("release_owner")
    remove = _refused("remove")
    remove_dependency = _refused("remove_dependency")
    remove_unprocessed_children = _refused("remove_unprocessed_children")
    resume = _refused("resume")
    retry = _refused("retry")
    retry_all = _refused("retry_all")
    run_pending = _refused("run_pending")
    scheduler_remove = _refused("scheduler_remove")
    scheduler_upsert = _refused("scheduler_upsert")
    set_concurrency = _refused("set_concurrency")
    set_rate_limit = _refused("set_rate_limit")
    stats = _refused("stats")
    stalls_config = _refused("stalls_config")
    stalls_configure = _refused("stalls_configure")
    unprocessed_children = _refused("unprocessed_children")
    update_data = _refused("update_data")
    update_progress = _refused("update_progress")
    wait_for = _refused("wait_for")
    wait_for_async = _refused("wait_for_async")
    wait_until_empty = _refused("wait_until_empty")

    def _refuse(self, what: str) -> NoReturn:
        self._check_open()
        raise StorageError(
            f"{what} is not possible here: this is a read-only view of "
            f"{shown(self._reader.path)}. Use the QueueManager that has the file open, in its own "
            "process"
        )

    # -- inside ------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ManagerClosedError("this read-only view is closed; open another")

    def _read(self, action: Callable[[Connection], T]) -> T:
        self._check_open()
        return self._reader.read(action)

    def _overview(self, queue: str | None) -> tuple[dict[str, JobCounts], dict[str, Any]]:
        now = self._clock.timeline_ms()
        return self._read(
            lambda connection: (count_jobs(connection, now, queue), _settings(connection))
        )

    def _row(self, job: Job | str | None) -> JobRow | None:
        job_id = _job_id(job)
        raw = self._read(lambda connection: find_job(connection, job_id))
        return None if raw is None else _decoded(RowDecoder(_OPTIONS), raw)

    def _by_custom_id(self, queue: str, custom_id: str) -> Job | None:
        def find(connection: Connection) -> Row | None:
            for record in _records(rows_with_text(connection, queue, custom_id)):
                if record.custom_id == custom_id:
                    return find_job(connection, record.id)
            return None

        raw, now = self._read(find), self._clock.timeline_ms()
        return None if raw is None else self._job(_decoded(RowDecoder(_OPTIONS), raw), now)

    def _jobs(self, rows: list[Row], now: int, *, with_data: bool = True) -> list[Job]:
        decoder = RowDecoder(_OPTIONS)
        jobs = []
        for raw in rows:
            try:
                row = _decoded(decoder, raw, with_data=with_data)
            except UndecodableRowError as error:
                _left_out(error)
            else:
                jobs.append(self._job(row, now, with_data=with_data))
        return jobs

    def _job(self, row: JobRow, now: int, *, with_data: bool = True) -> Job:
        record = _record(row)
        if record.state == PENDING:
            high = JobState.PRIORITIZED if record.priority > 0 else JobState.WAITING
            state = JobState.DELAYED if record.run_at_ms > now else high
        else:
            state = _STATES[record.state]
        return Job.of(self, record.id, None, fields_of(record, state)).detach(with_data=with_data)


# -- rows ------------------------------------------------------------------------------------------


def _decoded(decoder: RowDecoder, raw: Row, *, with_data: bool = True) -> JobRow:
    row = decoder.row(raw)
    if with_data and row[DATA] is None:
        raise UndecodableRowError(f"the payload of job {shown(raw[0])} is missing", raw)
    return row


def _record(row: JobRow) -> JobRecord:
    record = record_from(row, _Queue(row[QUEUE]), row[DATA] or b"")
    if record.state == FAILED:
        side = record.need_side()
        if side.failure is None:
            side.failure = Failure(FailureReason.UNKNOWN, "")
        if side.letter is None:
            side.letter = Letter(record.entered_ms)
    return record


def _records(rows: Iterable[Row]) -> Iterator[JobRecord]:
    """The records of rows without payloads, but for those that cannot be understood."""
    decoder = RowDecoder(_OPTIONS)
    for raw in rows:
        try:
            yield _record(decoder.row(raw))
        except UndecodableRowError as error:
            _left_out(error)


def _left_out(error: UndecodableRowError) -> None:
    _log.warning("%s; it is left out", error)


def _figures(record: JobRecord) -> tuple[str, bool, bool, int]:
    """Reason, whether a retry is ahead and was before, and since when it is a dead letter."""
    letter, side = letter_of(record), record.side
    assert side is not None and side.failure is not None
    retriable = letter.next_retry_ms is not None
    return str(side.failure.reason), retriable, side.dlq_retries > 0, letter.since_ms


def _settings(connection: Connection) -> dict[str, Any]:
    """What is set for each queue that has settings."""
    found = {}
    for key, body in list_rest(connection, "queue"):
        try:
            settings = json.loads(text_of(body))
        except (ValueError, RecursionError):
            continue  # the owner says so when it opens the file
        if isinstance(settings, dict):
            found[key] = settings
    return found


# -- arguments, as `QueueManager` takes them -------------------------------------------------------


def _job_id(job: Job | str | None) -> str:
    if isinstance(job, Job):
        return job.id
    if not isinstance(job, str):
        raise ValidationError(f"job must be a Job or a job id, not {shown(job)}")
    return job


def _queue_name(queue: Any) -> str:
    return checked_queue_name(queue.name if hasattr(queue, "add_bulk") else queue)


def _names_a_queue(name: object) -> bool:
    """Whether what stands where a queue's name should can be one; not so in a damaged row."""
    try:
        checked_queue_name(name)
    except ValidationError:
        return False
    return True


def _states(states: Any) -> tuple[JobState, ...]:
    if states is None:
        return ALL_STATES
    if isinstance(states, str):
        states = (states,)
    wanted: list[JobState] = []
    for state in checked_iterable(states, "states"):
        if state not in ALL_STATES:
            raise ValidationError(f"states must be among {_STATE_NAMES}, not {shown(state)}")
        if JobState(state) not in wanted:
            wanted.append(JobState(state))
    return tuple(wanted)


if TYPE_CHECKING:
    _serves_queues_and_jobs: type[Manager] = ReadonlyManager
