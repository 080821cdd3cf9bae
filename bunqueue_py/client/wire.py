"""What a worker and its processes say to each other: messages, jobs, errors.

A message is its kind, plain values as JSON, and one blob of bytes, which nobody parses on the way.
"""

from __future__ import annotations

import builtins
import json
import os
import select
from collections.abc import Sequence
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
from ..model.side import Side, SideView, side_view
from ..model.snapshot import DATA
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


def await_end(pid: int) -> None:
    """Blocks until that process has ended; where the system cannot tell, not at all."""
    opened = getattr(os, "pidfd_open", None)
    if opened is None:  # not on Linux: there the pipe has to do
        return
    poll = select.poll()
    try:
        poll.register(opened(pid), select.POLLIN)
    except ProcessLookupError:
        return
    poll.poll()


def has_room(pipe: Connection) -> bool:
    """Whether a short message can be sent without waiting for whoever reads at the other end."""
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLOUT)
    return bool(poll.poll(0))


# -- jobs ------------------------------------------------------------------------------------------


def pack_jobs(jobs: Sequence[Job], trace: str | None) -> tuple[list[Any], bytes]:
    """Jobs that are handed out, as values and their encoded payloads, one behind the other.
    `trace`: the context of the trace that they run in."""
    datas = [job._fields[DATA] or NO_BLOB for job in jobs]
    values = [[len(data), *_packed(job, trace)] for job, data in zip(jobs, datas, strict=True)]
    return values, datas[0] if len(datas) == 1 else NO_BLOB.join(datas)


def _packed(job: Job, trace: str | None) -> list[Any]:
    queue, name, options, _, priority, _, created, run_at, started, *rest = job._fields
    _, attempts_made, custom_id, side, unique_key = rest
    return [
        job.id,
        job.token,
        [queue, name, options.attempts, options.stack_trace_limit, options.timeout_ms],
        [priority, created, run_at, started, attempts_made, custom_id, unique_key],
        _packed_side(side, trace),
    ]


def _packed_side(side: SideView | None, trace: str | None) -> list[Any] | None:
    if side is None:
        if trace is None:
            return None
        side = side_view(Side())
    failure = side.failure
    return [
        side.group,
        side.progress,
        side.progress_message,
        side.stall_count,
        side.tags,
        None if failure is None else [failure.reason, failure.error, failure.stack],
        side.timeline,
        side.links,
        trace,
    ]


def unpack_jobs(manager: Any, message: Message) -> list[Job]:
    """The jobs that `pack_jobs` has packed, with that manager behind them."""
    found, at = [], 0
    for size, job_id, token, settings, record, side in message.values:
        fields = _fields(settings, record, side, message.blob[at : at + size])
        found.append(Job.of(manager, job_id, token, fields))
        at += size
    return found


def tokens_of(message: Message) -> list[str]:
    """Those of the jobs that `pack_jobs` has packed."""
    return [token for _, _, token, *_ in message.values]


def _fields(
    settings: list[Any], record: list[Any], side: list[Any] | None, data: bytes
) -> tuple[Any, ...]:
    queue, name, attempts, stack_trace_limit, timeout_ms = settings
    priority, created, run_at, started, attempts_made, custom_id, unique_key = record
    options = Options(attempts=attempts, stack_trace_limit=stack_trace_limit, timeout_ms=timeout_ms)
    return (
        *(queue, name, options, data, priority, JobState.ACTIVE, created, run_at, started),
        *(None, attempts_made, custom_id, _unpacked(side), unique_key),
    )


def _unpacked(side: list[Any] | None) -> SideView | None:
    if side is None:
        return None
    group, progress, message, stall_count, tags, failure, timeline, links, trace = side
    if failure is not None:
        failure = Failure(FailureReason(failure[0]), failure[1], tuple(failure[2]))
    steps = timeline
    if isinstance(timeline, list):
        steps = tuple((step, at) for step, at in timeline)
    ties = None if links is None else LinksView(links[0], tuple(links[1]), tuple(links[2]))
    return side_view(Side())._replace(
        failure=failure,
        group=group,
        progress=progress,
        progress_message=message,
        stall_count=stall_count,
        tags=tuple(tags),
        timeline=steps,
        trace=trace,
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


def unpack_error(values: Sequence[Any], blob: bytes, serializer: Serializer) -> BaseException:
    """An exception to show in the place of that one, of its very class where that can be had."""
    text, stack, classes, carried, arguments = values
    error = _whole(blob, serializer) or _known(classes, carried, text)
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


# -- how runs end ----------------------------------------------------------------------------------


class End(NamedTuple):
    """How the run of a job ended in a process: with its encoded result, or with an error.
    `work_done`: the handler had returned, and only its result is at fault."""

    data: bytes | None
    error: BaseException | None = None
    work_done: bool = False


def pack_ends(ends: Sequence[End], serializer: Serializer) -> tuple[list[Any], bytes]:
    """As values, and what goes with them one behind the other."""
    values: list[Any] = []
    blobs = []
    for end in ends:
        if end.error is None:
            blob = end.data or NO_BLOB
            values.append([end.data is not None, len(blob)])
        else:
            told, blob = pack_error(end.error, serializer)
            values.append([end.work_done, len(blob), told])
        blobs.append(blob)
    return values, NO_BLOB.join(blobs)


def unpack_ends(values: Sequence[Any], blob: bytes, serializer: Serializer) -> list[End]:
    """What `pack_ends` has packed."""
    found, at = [], 0
    for flag, size, *told in values:
        part = blob[at : at + size]
        at += size
        if told:
            found.append(End(None, unpack_error(told[0], part, serializer), flag))
        else:
            found.append(End(part if flag else None))
    return found


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
