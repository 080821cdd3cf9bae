"""The cut: what the storage writes next, consistent over all shards."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import StorageError, ValidationError
from ..model.events import STORAGE_FAILING, STORAGE_RECOVERED
from ..shard.dirty import Dirty
from ..shard.shard import BROKEN, Shard
from ..state import State
from ..storage.base import Cut
from .mark import mark_starts
from .outcomes import mark_ties
from .recover import rebuild
from .restore import restore


def collect(state: State, begin: Cut) -> None:
    """Hands over all marks with every shard held, so that no unit is split: one that spans shards
    holds all of theirs. A shard whose section broke off is rebuilt first."""

    def swap(shards: Sequence[Shard]) -> None:
        for shard in shards:
            if shard.gate == BROKEN:
                rebuild(state, shard)
        into = begin()
        for shard in shards:
            if shard.dirty is not None:
                mark_starts(shard.dirty)
                mark_ties(shard.dirty)
                shard.dirty.swap(into)

    state.shards.holding_all(swap)
    for shard in state.shards.shards:
        shard.call_after()


def count(state: State) -> int:
    """About how many rows are marked and in no cut yet."""
    return sum(0 if shard.dirty is None else len(shard.dirty) for shard in state.shards.shards)


def storage_changed(state: State, problem: StorageError | None) -> None:
    """Tells listeners that writing begins to fail, and why, or that it works again."""
    if not state.events.any:
        return
    carried = {"reason": STORAGE_RECOVERED}
    if problem is not None:
        carried = {"reason": STORAGE_FAILING, "error": str(problem)}
    state.events.tell_health(state.now(), carried)


def attach(state: State) -> None:
    """Opens the storage, takes in what it holds and marks from now on what changes. Raises
    `StorageError`; the storage is then closed again, and holds what it held. A bound on payloads
    that it cannot keep is a `ValidationError`, and nothing has been opened."""
    storage = state.storage
    assert storage is not None
    if state.max_data_bytes > storage.max_value_bytes:
        # one longer value would keep everything after it from being written
        raise ValidationError(
            f"max_data_bytes must be at most {storage.max_value_bytes:,} on {storage!r}, not "
            f"{state.max_data_bytes:,}"
        )
    recovered = storage.open(state.config.serializer.name, state.options.default, state.clock)
    try:
        for shard in state.shards.shards:
            shard.dirty = Dirty(storage.marked)
        restore(state, recovered)
    except BaseException:
        storage.close()
        raise
