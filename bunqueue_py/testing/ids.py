"""Ids and dice that are the same in every run."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count


class SeededIds:
    """Job ids, tokens and dice that follow from the seed alone. Ids have the form of UUIDv7.

    >>> SeededIds(0).job_id() == SeededIds(0).job_id()
    True
    """

    def __init__(self, seed: int = 0) -> None:
        dice = random.Random(seed)
        numbers = count(1)
        tokens = count(1)

        def job_id() -> str:
            tail = dice.getrandbits(60)
            text = f"{next(numbers):012x}7{tail >> 48:03x}a{tail & (1 << 48) - 1:015x}"
            return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"

        def token() -> str:
            return f"t{seed}-{next(tokens)}"

        self.job_id: Callable[[], str] = job_id
        self.token: Callable[[], str] = token
        self.random: Callable[[], float] = dice.random
