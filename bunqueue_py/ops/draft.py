"""Draft: options, name and data of a job that comes in become a record that nobody knows yet."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from ..durations import shown
from ..errors import SerializationError, ValidationError
from ..model.checks import checked_iterable
from ..model.job import JobRecord
from ..model.options import MAX_BATCH, JobSpec, Options
from ..model.own import Own
from ..shard.queue_state import QueueState
from ..state import State
from .repeat import first_run
from .tie import Batch, tie_batch


def encode(state: State, data: Any, what: str) -> bytes:
    """The encoded value, within `max_data_bytes`."""
    encoded = state.dumps(data)
    if encoded.__class__ is not bytes:
        raise no_bytes(state, encoded)
    if len(encoded) > state.max_data_bytes:
        raise too_large(state, what, len(encoded))
    return encoded


def no_bytes(state: State, encoded: Any) -> SerializationError:
    """The error of a serializer that does not keep its promise."""
    name = state.config.serializer.name
    return SerializationError(f"serializer {name!r} returned {shown(encoded)} where bytes are due")


def too_large(state: State, what: str, size: int) -> SerializationError:
    """The error of a value whose encoding is over the bound."""
    return SerializationError(
        f"{what} takes {size:,} bytes; the bound max_data_bytes is "
        f"{state.max_data_bytes:,}. Keep large data elsewhere and pass its name"
    )


def draft_batch(
    state: State, queue: QueueState | None, specs: Iterable[JobSpec | tuple[str, Any]]
) -> tuple[list[tuple[JobRecord, Own | None]], Batch | None]:
    """The records of a whole batch, and what ties them together, if anything does; an error names
    the entry that it is about."""
    drafts: list[tuple[JobRecord, Own | None]] = []
    given = list(islice(checked_iterable(specs, "jobs"), MAX_BATCH + 1))
    tied = False
    for spec in given:
        i = len(drafts)
        if i == MAX_BATCH:
            raise ValidationError(f"a batch takes at most {MAX_BATCH:,} jobs")
        try:
            if spec.__class__ is JobSpec or isinstance(spec, JobSpec):
                options = spec.options
                if "depends_on" in options:
                    tied = True
                if len(options) > 1:
                    options = options.copy()
                drafts.append(draft(state, queue, spec.name, spec.data, options))
            elif isinstance(spec, tuple) and len(spec) == 2:
                drafts.append(draft(state, queue, spec[0], spec[1], {}))
            else:
                raise ValidationError(
                    f"must be a JobSpec or a (name, data) pair, not {shown(spec)}"
                )
        except ValidationError as error:
            raise ValidationError(f"jobs[{i}]: {error}") from error
        except SerializationError as error:
            raise SerializationError(f"jobs[{i}]: {error}", path=error.path) from error
        except TypeError as error:
            raise TypeError(f"jobs[{i}]: {error}") from error
    return drafts, tie_batch(state, drafts, given) if tied else None


def draft(
    state: State, queue: QueueState | None, name: str, data: Any, options: dict[str, Any]
) -> tuple[JobRecord, Own | None]:
    """A record that nobody knows yet: everything that can be refused has been looked at."""
    if not options:
        return new_record(state, queue, name, data, state.options.default, 0), None
    shared, priority, own, custom_id, key, claim = state.options.resolve(options, state.wall)
    if shared.repeat is not None:
        shared, own = first_run(state, shared, own, claim)
    record = new_record(state, queue, name, data, shared, priority)
    if own is not None:
        record.custom_id, record.unique_key, record.claim = custom_id, key, claim
    return record, own


def new_record(
    state: State, queue: QueueState | None, name: str, data: Any, shared: Options, priority: int
) -> JobRecord:
    """The record of those options, when its name and data are found to be good."""
    cache = state.options
    try:
        name = cache.names[name]
    except (KeyError, TypeError):
        name = cache.name(name)
    # what `encode` does, in line
    encoded = state.dumps(data)
    if encoded.__class__ is not bytes:
        raise no_bytes(state, encoded)
    if len(encoded) > state.max_data_bytes:
        raise too_large(state, "data", len(encoded))
    return JobRecord(state.new_id(), queue, name, shared, priority, encoded)
