"""Jobs of one queue that failed for good. Guarded."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from ..durations import MAX_DURATION_MS
from ..model.job import FAILED, JobRecord
from ..model.settings import DlqSettings, LetterFilter
from ..model.side import Letter
from ..types import FailureReason
from .deadlines import DEAD_EXPIRY, DEAD_RETRY, Deadlines

_DECIDED = (FailureReason.DISCARDED, FailureReason.CANCELLED)
"""Somebody wanted it so: no automatic retry undoes it."""


class DeadLetters:
    """Failed records in the order in which they came in, at most `settings.max_entries`.

    Each has a `Letter` in its side object, and up to two deadlines, at the letter's `expires_ms`
    and `next_retry_ms`. `add`, `arm`, `disarm` and `remove` are O(1) but for the heap's O(log n).
    """

    __slots__ = ("records", "settings")

    def __init__(self, settings: DlqSettings | None = None) -> None:
        self.settings = DlqSettings() if settings is None else settings
        self.records: OrderedDict[str, JobRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: JobRecord, deadlines: Deadlines) -> int | None:
        """Takes a failed record, whose first stay begins now unless an automatic retry brought it
        back; returns its earliest moment, if it has one."""
        self.records[record.id] = record
        side = record.need_side()
        if side.letter is None:
            side.letter = Letter(record.entered_ms)
        elif side.letter.since_ms > record.entered_ms:
            # of a damaged file, or of one that another clock wrote
            side.letter.since_ms = record.entered_ms
        return self.arm(record, deadlines)

    def excess(self) -> list[JobRecord]:
        """The oldest, as many as there are too many; still in here."""
        too_many = len(self.records) - self.settings.max_entries
        return list(islice(self.records.values(), too_many)) if too_many > 0 else []

    def remove(self, record: JobRecord) -> None:
        """Takes it out."""
        del self.records[record.id]

    def arm(self, record: JobRecord, deadlines: Deadlines) -> int | None:
        """Gives the record the moments that the settings say; it has none yet. Returns the
        earlier one."""
        letter, settings = letter_of(record), self.settings
        # a file tells those of the settings that were in force when it was written
        letter.expires_ms = letter.next_retry_ms = None
        moments = []
        if settings.max_age_ms is not None:
            letter.expires_ms = letter.since_ms + settings.max_age_ms
            deadlines.push(letter.expires_ms, DEAD_EXPIRY, record)
            moments.append(letter.expires_ms)
        if self._may_retry(record, letter):
            # a shift of 48 already exceeds the cap
            wait = settings.retry_interval_ms << min(letter.auto_retries, 48)
            moments.append(
                self.retry_at(record, record.entered_ms + min(wait, MAX_DURATION_MS), deadlines)
            )
        return min(moments, default=None)

    def retry_at(self, record: JobRecord, due_ms: int, deadlines: Deadlines) -> int:
        """Has the record retried at that moment; returns it."""
        letter_of(record).next_retry_ms = due_ms
        deadlines.push(due_ms, DEAD_RETRY, record)
        return due_ms

    def disarm(self, record: JobRecord, deadlines: Deadlines) -> None:
        """Takes its moments from the record, if it has any."""
        letter = None if record.side is None else record.side.letter
        if letter is None:
            return
        entries = (letter.expires_ms is not None) + (letter.next_retry_ms is not None)
        letter.expires_ms = letter.next_retry_ms = None
        if entries:
            deadlines.drop(entries)

    def _may_retry(self, record: JobRecord, letter: Letter) -> bool:
        settings = self.settings
        if not settings.auto_retry or letter.auto_retries >= settings.max_retries:
            return False
        assert record.side is not None and record.side.failure is not None
        return record.side.failure.reason not in _DECIDED

    def check(self) -> None:
        """Asserts its invariants."""
        settings = self.settings
        assert len(self.records) <= settings.max_entries, "too many dead letters"
        for job_id, record in self.records.items():
            assert record.id == job_id and record.state == FAILED, "a dead letter that lives"
            assert record.side is not None and record.side.failure is not None, "no failure kept"
            letter = letter_of(record)
            due = None
            if settings.max_age_ms is not None:
                due = letter.since_ms + settings.max_age_ms
            assert letter.expires_ms == due, "expiry against the settings"
            planned = letter.next_retry_ms is not None
            assert planned is self._may_retry(record, letter), "retry against the settings"
            assert letter.since_ms <= record.entered_ms, "came back before it came"


def letter_of(record: JobRecord) -> Letter:
    """What the dead letters know of a record that is among them."""
    assert record.side is not None and record.side.letter is not None
    return record.side.letter


def matches(record: JobRecord, wanted: LetterFilter) -> bool:
    """Whether a dead letter is among those that are meant."""
    letter = letter_of(record)
    if wanted.reason is not None:
        assert record.side is not None and record.side.failure is not None
        if str(record.side.failure.reason) != wanted.reason:
            return False
    if wanted.older_ms is not None and letter.since_ms > wanted.older_ms:
        return False
    if wanted.newer_ms is not None and letter.since_ms <= wanted.newer_ms:
        return False
    return wanted.retriable is None or wanted.retriable is (letter.next_retry_ms is not None)
