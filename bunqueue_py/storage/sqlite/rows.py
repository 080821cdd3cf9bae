"""A job's row as SQL parameters, and back.

| column | holds |
| ------ | ----- |
| id, queue, seq, state, priority, run_at, entered | what can be searched for; moments in ms |
| meta | JSON: [name, options], where nothing else is to be said; otherwise also created, started, |
|      | attempts made, size of the result (-1: none); then also custom id, claim, side |
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
from ...model.rows import INLINE_BYTES, JobRow
from .meta import (
    LIMIT,
    encode,
    is_int,
    options_text,
    read_claim,
    read_options,
    read_side,
    side_parts,
)

COLUMNS = ("id", "queue", "seq", "state", "priority", "run_at", "entered", "meta", "data", "result")

ABSENT = 0
KEEP = 1
"""Bound for a result that is on disk and stays."""

_CACHE_SIZE = 1024


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

    def add(self, rows: Iterable[JobRow], into: list[Any]) -> None:
        """Appends the values of `COLUMNS` for each row."""
        heads = self._heads
        for (
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
            data,
            result,
            size,
        ) in rows:
            try:
                meta: Any = heads[name, options]
            except KeyError:
                meta = self._head(name, options)
            if custom_id is not None or claim is not None or side is not None:
                parts = None if side is None else side_parts(side)
                rest = [created, started, attempts, size, custom_id, claim, parts]
                meta = f"{meta},{''.join(encode(rest, 0))[1:]}"
            elif started is not None:
                meta = f"{meta},{created},{started},{attempts},{size}]"
            elif created != entered or attempts or size >= 0:
                meta = f"{meta},{created},null,{attempts},{size}]"
            else:
                meta += "]"
            if not meta.isascii():
                meta = bindable(meta)
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

    def _head(self, name: str, options: Options) -> str:
        heads, texts = self._heads, self._options
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

    __slots__ = ("_default", "_options", "_plain")

    def __init__(self, default: Options) -> None:
        self._default = default
        self._options: dict[str, Options] = {"": default}
        # the whole meta of jobs of which there is nothing else to say
        self._plain: dict[Any, tuple[str, Options]] = {}

    def row(self, raw: tuple[Any, ...]) -> JobRow:
        """The row that those values of `COLUMNS` were made of. Raises `UndecodableRowError`."""
        job_id, queue, seq, state, priority, run_at, entered, meta, data, result = raw
        plain = self._plain.get(meta)
        if plain is None:
            return self._slowly(raw)
        name, options = plain
        if (
            job_id.__class__ is str
            and queue.__class__ is str
            and data.__class__ is bytes
            and (result is None or result == ABSENT)
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
            return (
                job_id,
                queue,
                seq,
                state,
                priority,
                run_at,
                entered,
                entered,
                None,
                0,
                name,
                options,
                None,
                None,
                None,
                data,
                None,
                -1,
            )
        return self._slowly(raw)

    def _slowly(self, raw: tuple[Any, ...]) -> JobRow:
        try:
            return self._decoded(*raw)
        # whatever a value of the wrong kind leads to
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise UndecodableRowError(
                f"the row of job {shown(raw[0])} cannot be understood: {error}", raw
            ) from error

    def _decoded(
        self,
        job_id: Any,
        queue: Any,
        seq: Any,
        state: Any,
        priority: Any,
        run_at: Any,
        entered: Any,
        meta: Any,
        data: Any,
        result: Any,
    ) -> JobRow:
        if job_id.__class__ is not str or queue.__class__ is not str:
            raise ValueError("its id and queue are no text")
        if not is_int(state, 0, FAILED + 1) or not is_int(
            priority, -MAX_PRIORITY, MAX_PRIORITY + 1
        ):
            raise ValueError(f"state {shown(state)} or priority {shown(priority)}")
        if not all(is_int(value, 0, LIMIT) for value in (seq, run_at, entered)):
            raise ValueError("a number or moment is out of its bounds")
        name, options, *rest = json.loads(text_of(meta))
        created, started, attempts, size = rest[:4] if rest else (entered, None, 0, -1)
        custom_id, claim, side = rest[4:] if len(rest) > 4 else (None, None, None)
        if name.__class__ is not str or not (custom_id is None or custom_id.__class__ is str):
            raise ValueError("its name or custom id is no text")
        if not is_int(created, 0, LIMIT) or not (started is None or is_int(started, 0, LIMIT)):
            raise ValueError("a moment is out of its bounds")
        if not is_int(attempts, 0, LIMIT) or not is_int(size, -1, LIMIT):
            raise ValueError("a number is out of its bounds")
        found = self._options_of(options)
        if not rest:
            if len(self._plain) >= _CACHE_SIZE:
                self._plain.clear()
            name, _ = self._plain.setdefault(meta, (name, found))
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
            found,
            custom_id,
            None if claim is None else read_claim(claim),
            None if side is None else read_side(side),
            _blob(data),
            _blob(result),
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


def _blob(stored: Any) -> bytes | None:
    if stored is None or stored in (ABSENT, KEEP):
        return None
    if stored.__class__ is not bytes:
        raise ValueError(f"{shown(stored)} stands where bytes are due")
    return stored
