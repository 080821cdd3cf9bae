"""What is kept of an error: its text and the end of its traceback, both bounded."""

from __future__ import annotations

import traceback
from typing import NamedTuple

from ..types import FailureReason

MAX_ERROR_CHARACTERS = 8_192
_MAX_LINE_CHARACTERS = 1_000
_MAX_STACK_LINES = 1_000


class Failure(NamedTuple):
    """Why a run failed: the reason, the error's text, and the lines of its traceback, oldest
    first."""

    reason: FailureReason
    error: str
    stack: tuple[str, ...] = ()


class Remote(NamedTuple):
    """What is known of an exception that was raised in another process: its text, the lines of its
    traceback, and the paths of its classes, `module:name`."""

    text: str
    stack: tuple[str, ...]
    classes: frozenset[str]


class HandlerError(Exception):
    """Stands for an exception of a handler in another process whose class cannot be had here: its
    text begins with the name of that class."""


def remote_of(error: BaseException, remote: Remote | None = None) -> Remote | None:
    """What is known of an exception from another process; given, it is noted on the exception."""
    if remote is not None:
        error._bunqueue_remote = remote  # type: ignore[attr-defined]
    return getattr(error, "_bunqueue_remote", None)


def undecodable_of(error: BaseException | str, job_id: str | None = None) -> str | None:
    """The job whose payload could not be decoded, which that error says; given, it is noted."""
    if job_id is not None:
        error._bunqueue_undecodable = job_id  # type: ignore[union-attr]
    return getattr(error, "_bunqueue_undecodable", None)


def bounded(text: str, limit: int = MAX_ERROR_CHARACTERS) -> str:
    """The text, cut to `limit` characters, with what is no valid text escaped."""
    if len(text) > limit:
        text = f"{text[: limit - 40]}... ({len(text):,} characters in all)"
    return text.encode("utf-8", "backslashreplace").decode()[:limit]


def describe(error: BaseException | str) -> tuple[str, tuple[str, ...]]:
    """The bounded text of an error and the bounded lines of its traceback.

    Runs the error's own `__str__`: never call it under a lock. Never raises an `Exception`.
    """
    if not isinstance(error, BaseException):
        return bounded(str(error)), ()
    remote = remote_of(error)
    if remote is not None:
        return bounded(remote.text), remote.stack
    kind = type(error).__name__
    try:
        message = str(error)
    except BaseException as broken:  # the application's __str__ may raise anything
        message = f"(its text is not to be had: __str__ raised {type(broken).__name__})"
    text = bounded(f"{kind}: {message}" if message else kind)
    return text, _stack(error, text)


def _stack(error: BaseException, text: str) -> tuple[str, ...]:
    try:
        # the innermost frames alone: a recursion of 10,000 frames must not cost 10,000 lines
        frames = traceback.extract_tb(error.__traceback__, limit=-_MAX_STACK_LINES // 2)
        lines = [line for entry in frames.format() for line in entry.rstrip("\n").split("\n")]
    except Exception:  # source files that cannot be read, broken loaders
        lines = []
    lines.append(text)
    return tuple(bounded(line, _MAX_LINE_CHARACTERS) for line in lines[-_MAX_STACK_LINES:])


def trimmed(stack: tuple[str, ...], limit: int) -> tuple[str, ...]:
    """The last `limit` lines; none for 0."""
    return stack[-limit:] if limit else ()
