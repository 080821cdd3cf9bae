"""A job as storage keeps it: one tuple of references, taken from its record under the lock.

Everything a record has is in it but its delivery and the tokens of its runs, which mean nothing
once the process is gone. Nothing is encoded here.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

from .claim import SKIP, AnyClaim, Claim
from .failure import Failure
from .job import ACTIVE, NOWHERE, PENDING, JobRecord
from .links import LinksRow, links_of_row
from .options import Options
from .side import AttemptRow, Letter, Side

INLINE_BYTES = 4096
"""A payload or result up to this length is in the job's row; a longer one stands apart, so that a
change of state does not write it again."""

ClaimRow = tuple[str, int | None, int, bool, int | None]
"""key, ttl_ms, mode, held, until_ms"""

LetterRow = tuple[int, int | None, int | None, int]
"""since_ms, expires_ms, next_retry_ms, auto_retries"""

SideRow = tuple[
    bool,  # anchored
    tuple[AttemptRow, ...],
    int,  # dlq_retries
    Failure | None,
    str | None,  # group
    int | None,  # last_retry_ms
    LetterRow | None,
    int | float,  # progress
    str | None,  # progress_message
    int,  # stall_count
    tuple[str, ...],  # tags
    tuple[tuple[str, int], ...] | int | None,  # timeline
    str | None,  # trace
    LinksRow | None,
]

JobRow = tuple[
    str,
    str,
    int,
    int,
    int,
    int,
    int,
    int,
    int | None,
    int,
    str,
    Options,
    str | None,
    ClaimRow | None,
    SideRow | None,
    bytes | None,
    bytes | None,
    int,
]
"""A plain tuple, for speed; the constants below name its places. DATA is `None` where the payload
stands apart. RESULT is `None` where there is no result, where it stands apart, and where the one
on disk stays: RESULT_SIZE tells which."""

PlainRow = tuple[str, str, int, int, int, str, Options, bytes]
"""id, queue, seq, run_at, entered, name, options, payload of a job of which there is no more to say
as it waits for its first run with priority 0, having entered its state as it was created: most of
a long backlog, and so read back with less ado."""

PLAIN_WIDTH: Final = 8

RunRow = tuple[PlainRow, int, int, int, int, bytes | None, int]
"""plain row, state, entered, started, attempts made, result, result_size of a job that came in as
such a one and whose run has begun, or ended well, with nothing else to say: most of what comes and
ends between two cuts. Its result does not stand apart."""

RUN_WIDTH: Final = 7

AnyRow = JobRow | PlainRow | RunRow
"""What a mark may be; told apart by their widths, and alike after `full_row`."""

ID: Final = 0
QUEUE: Final = 1
SEQ: Final = 2
STATE: Final = 3
PRIORITY: Final = 4
RUN_AT: Final = 5
ENTERED: Final = 6
CREATED: Final = 7
STARTED: Final = 8
ATTEMPTS_MADE: Final = 9
NAME: Final = 10
OPTIONS: Final = 11
CUSTOM_ID: Final = 12
CLAIM: Final = 13
SIDE: Final = 14
DATA: Final = 15
RESULT: Final = 16
RESULT_SIZE: Final = 17


class Marks(NamedTuple):
    """What has changed and is not on disk: the latest value of each key, `None` where it is gone.

    `payloads` and `results` have those that stand apart from their job's row; `rest` maps (kind,
    key) to whatever else there is, as something that JSON can hold. `ended` has those rows of which
    all was handed over before but that the job's turn came, if it had waited for others, its run
    and its end: a row in `jobs` that stands there too says nothing else that is new.
    """

    jobs: dict[str, AnyRow | None]
    payloads: dict[str, bytes | None]
    results: dict[str, bytes | None]
    rest: dict[tuple[str, str], Any]
    ended: dict[str, JobRow]

    def size(self) -> int:
        """How many rows it would take."""
        return len(self.jobs) + len(self.payloads) + len(self.results) + len(self.rest)

    def put_over(self, older: Marks) -> None:
        """Adds itself to `older`, over what that has of the same keys."""
        both = self.jobs.keys() & older.jobs.keys()
        for job_id in both:
            row = self.jobs[job_id]
            if row is not None:
                self.jobs[job_id] = with_result_of(full_row(row), older.jobs[job_id])
        if not both:
            # otherwise what was handed over before may be what is here, and nowhere else
            older.ended.update(self.ended)
        older.jobs.update(self.jobs)
        older.payloads.update(self.payloads)
        older.results.update(self.results)
        older.rest.update(self.rest)


def no_marks() -> Marks:
    """Marks of nothing."""
    return Marks({}, {}, {}, {}, {})


def row_of(record: JobRecord, seq: int, result: bytes | None = None) -> JobRow:
    """The record's row, as it is now; `seq` is its admission number, `result` the encoded result
    of a job that completes (one that completed before keeps that on disk without it). One that was
    claimed and has not begun is as if it still waited: should the process die, nothing has run."""
    side, data, state, started_ms = record.side, record.data, record.state, record.started_ms
    if state == ACTIVE:
        delivery = record.delivery
        if delivery is not None and not delivery.begun:
            state, started_ms = PENDING, getattr(delivery, "before_ms", None)
    return (
        record.id,
        record.queue.name,
        seq,
        state,
        record.priority,
        record.run_at_ms,
        record.entered_ms,
        record.created_ms,
        started_ms,
        record.attempts_made,
        record.name,
        record.options,
        record.custom_id,
        None if record.unique_key is None else claim_row(record.unique_key, record.claim),
        None if side is None else side.common or side_row(side),
        data if len(data) <= INLINE_BYTES else None,
        result if result is None or len(result) <= INLINE_BYTES else None,
        record.result_size,
    )


def full_row(row: AnyRow) -> JobRow:
    """The row with all of its places."""
    if len(row) == PLAIN_WIDTH:
        job_id, queue, seq, run_at, entered, name, options, data = row
        head = (job_id, queue, seq, PENDING, 0, run_at, entered, entered, None, 0)
        return (*head, name, options, None, None, None, data, None, -1)
    if len(row) == RUN_WIDTH:
        plain, state, moment, started, attempts, result, size = row
        job_id, queue, seq, run_at, created, name, options, data = plain
        begun = (job_id, queue, seq, state, 0, run_at, moment, created, started, attempts)
        return (*begun, name, options, None, None, None, data, result, size)
    return row


def with_result_of(row: JobRow, older: AnyRow | None) -> JobRow:
    """The row with the result of an older one of the same job, if it means that one to stay."""
    if older is None or not keeps_result(row):
        return row
    result = full_row(older)[RESULT]
    return row if result is None else (*row[:RESULT], result, row[RESULT_SIZE])


def with_data(row: JobRow, data: bytes | None) -> JobRow:
    """The row with that payload."""
    return cast(JobRow, (*row[:DATA], data, *row[DATA + 1 :]))


def keeps_result(row: JobRow) -> bool:
    """Whether the job has a result which the row does not bring along, and which does not stand
    apart: the one that was written before stays."""
    return row[RESULT] is None and 0 <= row[RESULT_SIZE] <= INLINE_BYTES


def record_from(row: JobRow, queue: Any, data: bytes | None = None) -> JobRecord:
    """The record that the row was taken of; `data` is the payload where that stands apart.

    It stands nowhere yet (`key`), and one that was active has no delivery: whoever recovers it
    decides what became of that run.
    """
    record: JobRecord = _new(JobRecord)
    record.queue = queue
    (
        record.id,
        _,
        _,
        # not a transition: this is the state in which the record comes into being
        record.state,
        record.priority,
        record.run_at_ms,
        record.entered_ms,
        record.created_ms,
        record.started_ms,
        record.attempts_made,
        record.name,
        record.options,
        record.custom_id,
        claim,
        side,
        inline,
        _,
        record.result_size,
    ) = row
    record.key = NOWHERE
    record.delivery = record.last_token = record.unique_key = record.claim = record.side = None
    if claim is not None:
        record.unique_key, record.claim = _claim(claim)
    if side is not None:
        record.side = _side(side, record.options.max_timeline)
    found = inline if data is None else data
    assert found is not None, f"the payload of job {record.id} is missing"
    record.data = found
    return record


def plain_record(
    job_id: str, queue: Any, run_at: int, entered: int, name: str, options: Options, data: bytes
) -> JobRecord:
    """The record that a `PlainRow` was taken of, which stands nowhere yet."""
    record: JobRecord = _new(JobRecord)
    record.id = job_id
    record.queue = queue
    record.name = name
    record.options = options
    record.data = data
    # mostly the same moment: one object then, for a million jobs that is 32 MB
    record.run_at_ms = entered if run_at == entered else run_at
    record.entered_ms = record.created_ms = entered
    # not a transition: this is the state in which the record comes into being
    record.state = PENDING
    record.priority = record.attempts_made = 0
    record.key = record.result_size = NOWHERE
    record.started_ms = record.delivery = record.last_token = None
    record.custom_id = record.unique_key = record.claim = record.side = None
    return record


_new = JobRecord.__new__


def side_row(side: Side) -> SideRow:
    """What a row has of the record's side object, as it is now."""
    letter = side.letter
    return (
        side.anchored,
        side.attempts,
        side.dlq_retries,
        side.failure,
        side.group,
        side.last_retry_ms,
        None
        if letter is None
        else (letter.since_ms, letter.expires_ms, letter.next_retry_ms, letter.auto_retries),
        side.progress,
        side.progress_message,
        side.stall_count,
        side.tags,
        side.timeline,
        side.trace,
        None if side.links is None else side.links.row(),
    )


def _side(row: SideRow, max_timeline: int) -> Side:
    side = Side()
    (
        side.anchored,
        side.attempts,
        side.dlq_retries,
        side.failure,
        side.group,
        side.last_retry_ms,
        letter,
        side.progress,
        side.progress_message,
        side.stall_count,
        side.tags,
        timeline,
        side.trace,
        links,
    ) = row
    if letter is not None:
        side.letter = Letter(letter[0])
        _, side.letter.expires_ms, side.letter.next_retry_ms, side.letter.auto_retries = letter
    # the bound may be another one by now
    side.timeline = timeline[-max_timeline:] if isinstance(timeline, tuple) else timeline
    if links is not None:
        side.links = links_of_row(links)
    return side


def claim_row(key: str, claim: AnyClaim) -> ClaimRow:
    """What a row has of the claim to that key, as it is now."""
    if isinstance(claim, Claim):
        return key, claim.ttl_ms, claim.mode, claim.held, claim.until_ms
    # for as long as it lives, or for so long from its admission on
    return key, claim, SKIP, False, None


def _claim(row: ClaimRow) -> tuple[str, AnyClaim]:
    key, ttl_ms, mode, held, until_ms = row
    if mode == SKIP and not held and until_ms is None:
        return key, ttl_ms
    return key, Claim(ttl_ms, mode, held, until_ms)
