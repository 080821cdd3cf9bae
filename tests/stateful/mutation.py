"""What a seeded fault is."""

from __future__ import annotations

from typing import NamedTuple

MEMORY = ("MemoryMachine 150 50",)


class Mutation(NamedTuple):
    """The one place in `file` (or in the files of that form) that matches `pattern` becomes
    `replacement`, as in `re.sub`.
    `killers` are tried in order: a machine with how many runs of how many steps, or a test."""

    name: str
    file: str
    pattern: str
    replacement: str
    killers: tuple[str, ...] = MEMORY
