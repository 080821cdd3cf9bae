"""Handlers that take several jobs in one call: how their results are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..durations import shown, to_ms
from ..errors import ValidationError
from ..model.options import checked_int
from ..types import BatchOptions

MAX_BATCH_SIZE = 10_000


class Batch(NamedTuple):
    """Checked `BatchOptions`."""

    size: int
    max_wait_ms: int


def checked_batch(given: object) -> Batch | None:
    """The options, checked."""
    if given is None:
        return None
    if not isinstance(given, BatchOptions):
        raise ValidationError(f"batch must be a BatchOptions, not {shown(given)}")
    checked_int(given.size, "batch: size", 2, MAX_BATCH_SIZE)
    return Batch(given.size, to_ms(given.max_wait, "batch: max_wait"))


def results_of(returned: Any, size: int) -> Sequence[Any]:
    """One result for each job, in order; an exception among them fails its job. `None` completes
    all. Raises `ValidationError` for anything else."""
    if returned is None:
        return [None] * size
    if not isinstance(returned, (list, tuple)) or len(returned) != size:
        raise ValidationError(
            f"a handler of batches returns None or a list with one result for each of its {size} "
            f"jobs (an exception fails that one), not {shown(returned)}"
        )
    return returned
