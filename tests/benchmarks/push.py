"""What a name costs a push: custom ids and deduplication keys, in units of a plain push.

Every job is new, and so is its custom id or key; their texts are made outside
the clock. The `Deduplication` of a job is made inside it, as its user makes it,
on both sides: what is measured is what the push adds when it is given one. The
lines *and its Deduplication* count its making too. The specs of batches are
made outside the clock. Named and plain pushes go in pieces that take turns,
each kind into a manager of its own that is new in each round, so that both
have as many jobs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

from harness import PAYLOAD, Row, Samples, Settings, micros, rounds, turned

from bunqueue_py import Deduplication, JobSpec, QueueManager

PIECE = 250
BATCH = 1_000
TTL = 3_600
FLOOR = 1.15

Push = Callable[[QueueManager, list[str]], float]
"""Pushes one job for each of those new names; seconds for one."""


def plain(manager: QueueManager, names: list[str]) -> float:
    """No option; the names are let be."""
    push = manager.push
    start = perf_counter()
    for _ in names:
        push("q", PAYLOAD)
    return (perf_counter() - start) / len(names)


def custom_id(manager: QueueManager, names: list[str]) -> float:
    """A custom id."""
    push = manager.push
    start = perf_counter()
    for name in names:
        push("q", PAYLOAD, custom_id=name)
    return (perf_counter() - start) / len(names)


def plain_with_key(manager: QueueManager, names: list[str]) -> float:
    """No option; what `key` makes is let be."""
    push = manager.push
    start = perf_counter()
    for name in names:
        Deduplication(name)
        push("q", PAYLOAD)
    return (perf_counter() - start) / len(names)


def plain_with_ttl(manager: QueueManager, names: list[str]) -> float:
    """No option; what `key_with_ttl` makes is let be."""
    push = manager.push
    start = perf_counter()
    for name in names:
        Deduplication(name, ttl=TTL)
        push("q", PAYLOAD)
    return (perf_counter() - start) / len(names)


def plain_with_hold(manager: QueueManager, names: list[str]) -> float:
    """No option; what `held_key` makes is let be."""
    push = manager.push
    start = perf_counter()
    for name in names:
        Deduplication(name, ttl=TTL, hold="ttl")
        push("q", PAYLOAD)
    return (perf_counter() - start) / len(names)


def key(manager: QueueManager, names: list[str]) -> float:
    """A key, which its job has for as long as it lives."""
    push = manager.push
    start = perf_counter()
    for name in names:
        push("q", PAYLOAD, deduplication=Deduplication(name))
    return (perf_counter() - start) / len(names)


def key_with_ttl(manager: QueueManager, names: list[str]) -> float:
    """A key for an hour at most."""
    push = manager.push
    start = perf_counter()
    for name in names:
        push("q", PAYLOAD, deduplication=Deduplication(name, ttl=TTL))
    return (perf_counter() - start) / len(names)


def held_key(manager: QueueManager, names: list[str]) -> float:
    """A key that stays taken for an hour, whatever becomes of its job."""
    push = manager.push
    start = perf_counter()
    for name in names:
        push("q", PAYLOAD, deduplication=Deduplication(name, ttl=TTL, hold="ttl"))
    return (perf_counter() - start) / len(names)


def batch(
    options: Callable[[str], dict[str, Any]], manager: QueueManager, names: list[str]
) -> float:
    """One batch of jobs with those options, the specs made outside the clock."""
    specs = [JobSpec("default", PAYLOAD, **options(name)) for name in names]
    gc.collect(0)  # what the specs add to the collector's count is not the batch's
    start = perf_counter()
    manager.push_batch("q", specs)
    return (perf_counter() - start) / len(names)


ONE_BY_ONE: dict[str, tuple[Push, Push, float | None]] = {
    "push, custom id": (custom_id, plain, FLOOR),
    "push, key": (key, plain_with_key, FLOOR),
    "push, key+ttl": (key_with_ttl, plain_with_ttl, FLOOR),
    "push, hold='ttl'": (held_key, plain_with_hold, None),
    "push, key and its Deduplication": (key, plain, None),
    "push, key+ttl and its Deduplication": (key_with_ttl, plain, None),
}
"""What is measured, what against, and what it may cost."""

BATCHES: dict[str, Callable[[str], dict[str, Any]]] = {
    "batch, custom id": lambda name: {"custom_id": name},
    "batch, key": lambda name: {"deduplication": Deduplication(name)},
    "batch, key+ttl": lambda name: {"deduplication": Deduplication(name, ttl=TTL)},
    "batch, hold='ttl'": lambda name: {"deduplication": Deduplication(name, ttl=TTL, hold="ttl")},
}


def one_round(found: Samples, named: Push, baseline: Push, piece: int, pieces: int) -> None:
    """Measures pushes of the one kind between those of the other."""
    numbers = count()

    def some(push: Push, manager: QueueManager) -> float:
        return push(manager, [f"order-{next(numbers)}" for _ in range(piece)])

    with QueueManager() as measured, QueueManager() as other:
        # the first ones make what a queue has once
        some(named, measured)
        some(baseline, other)
        found.add_pieces(
            partial(some, named, measured), partial(some, baseline, other), pieces=pieces
        )
    gc.collect()


def measure(settings: Settings) -> list[Row]:
    """Ten rows: six kinds of pushes, four kinds of batches."""
    pieces = settings.size(quick=40, full=120)
    found = {name: Samples() for name in (*ONE_BY_ONE, *BATCHES)}
    without = partial(batch, lambda name: {})
    for number in rounds(settings, "names of a push"):
        for name in turned(list(found), number):
            if name in ONE_BY_ONE:
                one_round(found[name], *ONE_BY_ONE[name][:2], PIECE, pieces)
            else:
                with_options = partial(batch, BATCHES[name])
                one_round(found[name], with_options, without, BATCH, pieces // 4)
    return [
        Row(
            name,
            "plain pushes",
            samples.cost(),
            floor=ONE_BY_ONE[name][2] if name in ONE_BY_ONE else None,
            note=f"{micros(samples.measured)} a job, plain {micros(samples.baseline)}",
        )
        for name, samples in found.items()
    ]
