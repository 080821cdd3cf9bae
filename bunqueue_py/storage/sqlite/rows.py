"""A job's row as SQL parameters, and back.

| column | holds |
| ------ | ----- |
| id, queue, seq, state, priority, run_at, entered | what can be searched for; moments in ms |
| meta | JSON: [name, options], where nothing else is to be said, with spaces behind it; otherwise |
|      | also created, started, attempts made, size of the result (-1: none); then also custom id, |
|      | claim, side |
| data | the payload; 0 where it stands in the table `payloads` |
| result | the result; 0 where there is none, or it stands in `results` |

The options are a text within the text: made once for each `Options` object, and read once for each
text. What UTF-8 has no place for (lone surrogates) makes a column a BLOB of the same text.

Nothing is bound as `None` or `bytes`: Python's sqlite3 looks for an adapter of those at every
value, which costs more than all the rest of a row. So `bytearray` stands for bytes, and 0 for
nothing; NULL is read as the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from json.encoder import encode_basestring
from typing import Any

from ...durations import shown
from ...errors import StorageError
from ...model.job import FAILED
from ...model.options import MAX_PRIORITY, Options
from ...model.rows import (
    CREATED,
    DATA,
    ENTERED,
    INLINE_BYTES,
    PLAIN_WIDTH,
    RESULT,
    RESULT_SIZE,
    RUN_WIDTH,
    AnyRow,
    JobRow,
    full_row,
)
from .meta import (
    LIMIT,
    encode,
    options_text,
    read_claim,
    read_options,
    read_side,
    side_text,
)

COLUMNS = ("id", "queue", "seq", "state", "priority", "run_at", "entered", "meta", "data", "result")

ABSENT = 0
KEEP = 1
"""Bound for a result that is on disk and stays."""

_CACHE_SIZE = 1024

_ROOM = " " * 34 + "]"
"""The end of the meta of a job that waits: room for what its start and its end will add. SQLite
writes a row that is as long as before over the old one; where all the rows of full pages become
longer, it has to divide the pages, which costs more than all the rest of it."""

UNSTARTED = "null" + " " * 10
"""The same for one that has ties to others: as long as a moment, and a byte for the state, since 0
and 1 take none."""


class UndecodableRowError(StorageError):
    """A row of the file cannot be understood; `raw` is the row as it was read."""

    def __init__(self, message: str, raw: tuple[Any, ...]) -> None:
        super().__init__(message)
        self.raw = raw


def bindable(text: str) -> str | bytearray:
    """The text, or its bytes where SQLite would not take it as text."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return bytearray(text.encode("utf-8", "surrogatepass"))
    return text


def text_of(stored: Any) -> str:
    """The text that `bindable` was given. Raises `ValueError` for anything else."""
    if stored.__class__ is str:
        return stored
    if stored.__class__ is bytes:
        return stored.decode("utf-8", "surrogatepass")
    raise ValueError(f"{shown(stored)} stands where text is due")


def to_json(value: Any) -> str | bytearray:
    """The value as compact JSON, as it is to be bound."""
    return bindable("".join(encode(value, 0)))


class RowEncoder:
    """Makes parameters of rows. For one thread at a time."""

    __slots__ = ("_heads", "_options")

    def __init__(self) -> None:
        self._options: dict[Options, str] = {}
        self._heads: dict[tuple[str, Options], str] = {}

    def add(self, rows: Iterable[AnyRow], into: list[Any]) -> None:
        """Appends the values of `COLUMNS` for each row."""
        full = [full_row(row) for row in rows]
        for row, meta in zip(full, self.metas(full), strict=True):
            (job_id, queue, seq, state, priority, run_at, entered), data = row[:CREATED], row[DATA]
            result, size = row[RESULT], row[RESULT_SIZE]
            if result is not None:
                kept: Any = bytearray(result)
            else:
                kept = KEEP if 0 <= size <= INLINE_BYTES else ABSENT
            into += (
                job_id,
                queue,
                seq,
                state,
                priority,
                run_at,
                entered,
                meta,
                ABSENT if data is None else bytearray(data),
                kept,
            )

    def metas(self, rows: Iterable[AnyRow]) -> list[str | bytearray]:
        """The metas of the rows."""
        metas: list[str | bytearray] = []
        # Most rows are of the same kind, and many of the same millisecond, as the one before.
        last_name = last_options = last_created = last_started = last_attempts = last_size = None
        head = ""
        waiting: str | bytearray = ""
        timed: str | bytearray = ""
        last_side = None
        text = ""
        entered: int | None
        for row in rows:
            if len(row) == PLAIN_WIDTH:
                entered, name, options = row[4:7]
                created, started, attempts, size = entered, None, 0, -1
                custom_id = claim = side = None
            elif len(row) == RUN_WIDTH:
                plain, _, entered, started, attempts, _, size = row
                created, name, options = plain[4:7]
                custom_id = claim = side = None
            else:
                created, started, attempts, name, options, custom_id, claim, side = row[
                    CREATED:DATA
                ]
                entered, size = row[ENTERED], row[RESULT_SIZE]
            if name is not last_name or options is not last_options:
                head = self.head(name, options)
                waiting = bindable(head + _ROOM)
                last_name, last_options, last_started = name, options, None
            if side is not None and side is not last_side:
                # children of one parent have theirs in common
                last_side, text = side, side_text(side)
            if custom_id is not None or claim is not None:
                rest = [created, started, attempts, size, custom_id, claim]
                end = "null" if side is None else text
                meta = bindable(f"{head},{''.join(encode(rest, 0))[1:-1]},{end}]")
            elif side is not None:
                began = UNSTARTED if started is None else started
                meta = bindable(f"{head},{created},{began},{attempts},{size},null,null,{text}]")
            elif started is not None:
                if (
                    started != last_started
                    or created != last_created
                    or attempts != last_attempts
                    or size != last_size
                ):
                    timed = bindable(f"{head},{created},{started},{attempts},{size}]")
                    last_created, last_started = created, started
                    last_attempts, last_size = attempts, size
                meta = timed
            elif created != entered or attempts or size >= 0:
                meta = bindable(f"{head},{created},null,{attempts},{size}]")
            else:
                meta = waiting
            metas.append(meta)
        return metas

    def waiting(self, name: str, options: Options) -> str | bytearray:
        """The whole meta of a job that waits for its first run, and of which there is no more."""
        return bindable(self.head(name, options) + _ROOM)

    def head(self, name: str, options: Options) -> str:
        """The beginning of a meta: what is the same for most jobs."""
        heads, texts = self._heads, self._options
        known = heads.get((name, options))
        if known is not None:
            return known
        text = texts.get(options)
        if text is None:
            text = encode_basestring(options_text(options))
            if len(texts) >= _CACHE_SIZE:
                texts.clear()
            texts[options] = text
        head = f"[{encode_basestring(name)},{text}"
        if len(heads) >= _CACHE_SIZE:
            heads.clear()
        heads[name, options] = head
        return head


class RowDecoder:
    """Makes rows of what was read from the table. For one thread at a time.

    `default` are the options of a job that was given none; they tell the bound on timelines.
    """

    __slots__ = ("_default", "_options", "plain")

    def __init__(self, default: Options) -> None:
        self._default = default
        self._options: dict[str, Options] = {"": default}
        #: the whole meta of jobs of which there is nothing else to say: their name and options
        self.plain: dict[Any, tuple[str, Options]] = {}

    def row(self, raw: tuple[Any, ...]) -> JobRow:
        """The row that those values of `COLUMNS` were made of. Raises `UndecodableRowError`."""
        job_id, queue, seq, state, priority, run_at, entered, meta, data, result = raw
        if not (
            job_id.__class__ is str
            and queue.__class__ is str
            and (data.__class__ is bytes or data is None or data == ABSENT)
            and (result is None or result.__class__ is bytes or result in (ABSENT, KEEP))
            and seq.__class__
            is state.__class__
            is priority.__class__
            is run_at.__class__
            is entered.__class__
            is int
            and 0 <= seq < LIMIT
            and 0 <= state <= FAILED
            and -MAX_PRIORITY <= priority <= MAX_PRIORITY
            and 0 <= run_at < LIMIT
            and 0 <= entered < LIMIT
        ):
            raise _undecodable(raw, "a column is not of its kind, or out of its bounds")
        created, started, attempts, size = entered, None, 0, -1
        custom_id = claim = side = None
        try:
            name, options = self.plain[meta]
        except KeyError:
            try:
                name, options, *rest = _parsed(text_of(meta))
                options = self._options_of(options)
                if rest:
                    created, started, attempts, size = rest[:4]
                    if len(rest) > 4:
                        custom_id, claim, side = rest[4:]
                _check_meta(name, created, started, attempts, size, custom_id)
                claim = None if claim is None else read_claim(claim)
                side = None if side is None else read_side(side)
            # whatever a value of the wrong kind leads to
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
                raise _undecodable(raw, str(error)) from error
            if not rest:
                if len(self.plain) >= _CACHE_SIZE:
                    self.plain.clear()
                self.plain[meta] = name, options
        return (
            job_id,
            queue,
            seq,
            state,
            priority,
            run_at,
            entered,
            created,
            started,
            attempts,
            name,
            options,
            custom_id,
            claim,
            side,
            data if data.__class__ is bytes else None,
            result if result.__class__ is bytes else None,
            size,
        )

    def _options_of(self, text: Any) -> Options:
        known = self._options.get(text)
        if known is None:
            known = read_options(text, self._default.max_timeline)
            if len(self._options) >= _CACHE_SIZE:
                self._options.clear()
                self._options[""] = self._default
            self._options[text] = known
        return known


_decoder: Any = json.JSONDecoder()
_scan = _decoder.scan_once


def _parsed(text: str) -> Any:
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("its meta is no JSON") from None
    if end != len(text):
        raise ValueError("its meta has more after its end")
    return value


def _check_meta(
    name: Any, created: Any, started: Any, attempts: Any, size: Any, custom_id: Any
) -> None:
    if not (
        name.__class__ is str
        and (custom_id is None or custom_id.__class__ is str)
        and created.__class__ is attempts.__class__ is size.__class__ is int
        and 0 <= created < LIMIT
        and 0 <= attempts < LIMIT
        and -1 <= size < LIMIT
        and (started is None or (started.__class__ is int and 0 <= started < LIMIT))
    ):
        raise ValueError("a part of its meta is not of its kind, or out of its bounds")


def _undecodable(raw: tuple[Any, ...], why: str) -> UndecodableRowError:
    return UndecodableRowError(f"the row of job {shown(raw[0])} cannot be understood: {why}", raw)
