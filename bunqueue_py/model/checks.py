"""Checks of arguments that several calls share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import iscoroutinefunction
from typing import Any

from ..durations import shown
from ..errors import ValidationError

MAX_NAME = 256
"""How many characters a name, a custom id, a key may have."""


def check_clock(clock: object) -> None:
    """Raises `ValidationError` for what is given as a clock and tells no time."""
    if clock is not None and not hasattr(clock, "timeline_ms"):
        raise ValidationError(f"clock must be a Clock, not {shown(clock)}")


def checked_iterable(value: Any, option: str) -> Iterable[Any]:
    """The value if it can be iterated over and is no text."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise ValidationError(f"{option} must be an iterable, not {shown(value)}")
    return value  # type: ignore[no-any-return]


def checked_choices(
    values: Any, option: str, known: Iterable[str], *, among: str
) -> tuple[str, ...]:
    """One or several of the known texts; `among` is how the error names those."""
    wanted = (values,) if isinstance(values, str) else tuple(checked_iterable(values, option))
    for value in wanted:
        # what is no text may not even be hashable
        if not isinstance(value, str) or value not in known:
            raise ValidationError(f"{option} must be among {among}, not {shown(value)}")
    return wanted


def checked_listener(fn: Any, option: str) -> Callable[..., Any]:
    """The function if a thread can call it, and be done with it when it returns."""
    if not callable(fn):
        raise ValidationError(f"{option} must be callable, not {shown(fn)}")
    if iscoroutinefunction(fn) or iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
        raise ValidationError(
            f"{option} must be a plain function, and {shown(fn)} is a coroutine function, which "
            "nobody would await: use `async for event in QueueEvents(...)`"
        )
    listener: Callable[..., Any] = fn
    return listener


def checked_name(name: object, option: str) -> str:
    """The name if it is 1 to 256 characters of valid text without NUL."""
    # `from None`: names are checked where a lookup has failed, which is nobody's error
    if not isinstance(name, str):
        raise ValidationError(f"{option} must be text, not {shown(name)}") from None
    if not 1 <= len(name) <= MAX_NAME:
        raise ValidationError(
            f"{option} must have 1 to 256 characters, not {len(name)}: {shown(name)}"
        ) from None
    if "\0" in name:
        raise ValidationError(f"{option} must not contain NUL: {shown(name)}") from None
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"{option} must be valid text, {shown(name)} is not") from None
    return str.__str__(name)


_QUEUE_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-")


def checked_queue_name(name: object) -> str:
    """The name if it can name a queue: a name of letters, digits and `_ . : -` only."""
    text = checked_name(name, "queue")
    if not _QUEUE_CHARACTERS.issuperset(text):
        raise ValidationError(f"queue may have only A-Z a-z 0-9 _ . : - in it, not {shown(name)}")
    return text


def checked_int(value: object, option: str, low: int, high: int) -> int:
    """The value if it is an int (no bool) from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise ValidationError(
            f"{option} must be an int from {low:,} to {high:,}, not {shown(value)}"
        )
    return value


def checked_bool(value: object, option: str) -> bool:
    """The value if it is `True` or `False`."""
    if type(value) is not bool:
        raise ValidationError(f"{option} must be True or False, not {shown(value)}")
    return value
