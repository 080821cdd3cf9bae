"""What a worker and its processes say to each other: messages, jobs, errors.

A message is its kind, plain values as JSON, and one blob of bytes, which nobody parses on the way.
"""

from __future__ import annotations

import builtins
import json
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from ..errors import (
    DelayJob,
    JobInterrupted,
    RateLimited,
    SerializationError,
    UnrecoverableError,
    ValidationError,
    WaitForChildren,
)
from ..model.failure import Failure, HandlerError, Remote, describe, remote_of
from ..model.import_path import import_path
from ..model.links import LinksView
from ..model.options import Options
from ..model.side import SideView
from ..serializers import JsonSerializer, PickleSerializer, Serializer
from ..types import FailureReason, JobState
from .job import Job

NO_BLOB = b""


class Message(NamedTuple):
    """One message."""

    kind: str
    values: list[Any]
    blob: bytes


def send(pipe: Connection, kind: str, values: list[Any], blob: bytes = NO_BLOB) -> None:
    """Raises `OSError` if nobody reads at the other end."""
    pipe.send_bytes(json.dumps([kind, *values]).encode() + b"\n" + blob)


def receive(pipe: Connection) -> Message:
    """Raises `EOFError` or `OSError` if nobody writes at the other end."""
    data = pipe.recv_bytes()
    end = data.index(b"\n")
    kind, *values = json.loads(data[:end])
    return Message(kind, values, data[end + 1 :])


# -- jobs ------------------------------------------------------------------------------------------


def pack_job(job: Job) -> tuple[list[Any], bytes]:
    """A job that is handed out, as values and its encoded payload."""
    queue, name, options, data, priority, _, created, run_at, started, *rest = job._fields
    _, attempts_made, custom_id, side, unique_key = rest
    packed_side = None
    if side is not None:
        failure = side.failure
        packed_side = [
            side.group,
            side.progress,
            side.progress_message,
            side.stall_count,
            side.tags,
            None if failure is None else [failure.reason, failure.error, failure.stack],
            side.timeline,
            side.links,
        ]
    values = [
        job.id,
        job.token,
        [queue, name, options.attempts, options.stack_trace_limit, options.timeout_ms],
        [priority, created, run_at, started, attempts_made, custom_id, unique_key],
        packed_side,
    ]
    return values, data


def unpack_job(manager: Any, message: Message) -> Job:
    """The job that `pack_job` has packed, with that manager behind it."""
    job_id, token, settings, record, side = message.values[:5]
    queue, name, attempts, stack_trace_limit, timeout_ms = settings
    priority, created, run_at, started, attempts_made, custom_id, unique_key = record
    options = Options(attempts=attempts, stack_trace_limit=stack_trace_limit, timeout_ms=timeout_ms)
    fields = (
        *(queue, name, options, message.blob, priority, JobState.ACTIVE, created, run_at, started),
        *(None, attempts_made, custom_id, _unpacked(side), unique_key),
    )
    return Job(manager, job_id, token, fields)


def _unpacked(side: list[Any] | None) -> SideView | None:
    if side is None:
        return None
    group, progress, message, stall_count, tags, failure, timeline, links = side
    if failure is not None:
        failure = Failure(FailureReason(failure[0]), failure[1], tuple(failure[2]))
    steps = None if timeline is None else tuple((step, at) for step, at in timeline)
    ties = None if links is None else LinksView(links[0], tuple(links[1]), tuple(links[2]))
    return SideView(
        attempts=(),
        dlq_retries=0,
        failure=failure,
        group=group,
        last_retry_ms=None,
        letter=None,
        progress=progress,
        progress_message=message,
        stall_count=stall_count,
        tags=tuple(tags),
        timeline=steps,
        trace=None,
        links=ties,
    )


# -- errors ----------------------------------------------------------------------------------------


def pack_error(error: BaseException, serializer: Serializer) -> tuple[list[Any], bytes]:
    """What is told of an exception: its text and traceback, the names of its classes, what the
    library's own carry, its arguments if it is a builtin, and all of it where the serializer takes
    it whole."""
    text, stack = describe(error)
    classes = [_path_of(cls) for cls in type(error).__mro__ if cls not in (BaseException, object)]
    carried: float | str | None = None
    if isinstance(error, (DelayJob, RateLimited)):
        carried = error.delay_ms / 1000
    elif isinstance(error, JobInterrupted):
        carried = error.reason
    arguments = None
    if type(error) is getattr(builtins, type(error).__name__, None):
        plain = all(isinstance(a, (str, int, float, type(None))) for a in error.args)
        arguments = [a if not isinstance(a, str) else a[:8_000] for a in error.args]
        arguments = arguments if plain and len(arguments) < 10 else None
    blob = NO_BLOB
    if not isinstance(serializer, JsonSerializer):
        try:
            blob = serializer.dumps(error)
        except Exception:  # such an exception keeps its type, its text and its traceback
            blob = NO_BLOB
    return [
        _printable(text),
        [_printable(line) for line in stack],
        classes,
        carried,
        arguments,
    ], blob


def unpack_error(message: Message, serializer: Serializer) -> BaseException:
    """An exception to show in the place of that one, of its very class where that can be had."""
    text, stack, classes, carried, arguments = message.values
    error = _whole(message.blob, serializer) or _known(classes, carried, text)
    if error is None and arguments is not None:
        cls = getattr(builtins, classes[0].rpartition(":")[2], None)
        if isinstance(cls, type) and issubclass(cls, BaseException):
            try:
                error = cls(*arguments)
            except Exception:
                error = None
    if error is None:
        error = HandlerError(text)
    remote_of(error, Remote(text, tuple(stack), frozenset(classes)))
    return error


def _whole(blob: bytes, serializer: Serializer) -> BaseException | None:
    if not blob:
        return None
    try:
        error = serializer.loads(blob)
    except Exception:  # what cannot be read back is told by its text
        return None
    return error if isinstance(error, BaseException) else None


def _known(classes: list[str], carried: Any, text: str) -> BaseException | None:
    for cls in (DelayJob, RateLimited, JobInterrupted):
        if _path_of(cls) in classes:
            return cls(carried)
    if _path_of(WaitForChildren) in classes:
        return WaitForChildren(text)
    if _path_of(UnrecoverableError) in classes:
        return UnrecoverableError(text)
    return None


def _path_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


# -- serializers -----------------------------------------------------------------------------------


def pack_serializer(serializer: Serializer) -> list[Any]:
    """How a process makes the same serializer. Raises `ValidationError` for one that it cannot."""
    if type(serializer) is JsonSerializer:
        return ["json", list(serializer.registered())]
    if type(serializer) is PickleSerializer:
        return ["pickle", None]
    cls = type(serializer)
    path = import_path(cls)
    try:
        name = None if path is None else cls().name
    except Exception:  # it is the application's
        name = None
    if name is None or name != serializer.name:
        raise ValidationError(
            f'executor="process" needs a serializer that a process can make anew: {cls.__name__} '
            "must be a class at the top of a module, and be made without arguments"
        )
    return ["class", path]


def unpack_serializer(packed: list[Any]) -> Serializer:
    """The serializer that was described so."""
    kind, what = packed
    if kind == "pickle":
        return PickleSerializer(allow_unsafe=True)
    if kind == "class":
        made: Serializer = found(what)()
        return made
    serializer = JsonSerializer()
    for path in what:
        serializer.register(found(path))
    return serializer


def found(path: str) -> Any:
    """What stands at `module:qualified.name`; raises what the import does."""
    module, _, name = path.partition(":")
    thing: Any = import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def checked_size(data: bytes, bound: int) -> bytes:
    """The encoded result, if it is within `max_data_bytes`."""
    if data.__class__ is not bytes:
        raise SerializationError("the serializer returned no bytes")
    if len(data) > bound:
        raise SerializationError(
            f"the result takes {len(data):,} bytes; the bound max_data_bytes is {bound:,}. Keep "
            "large data elsewhere and pass its name"
        )
    return data
