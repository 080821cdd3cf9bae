"""The one place that makes randomness: job ids, delivery tokens and dice."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from itertools import count
from typing import Protocol

import uuid_utils


class Ids(Protocol):
    """What the engine asks of chance. All three are plain callables."""

    job_id: Callable[[], str]
    token: Callable[[], str]
    random: Callable[[], float]


class SystemIds:
    """UUIDv7 job ids (sorted by time of creation), tokens that no other manager issues, and
    system dice."""

    def __init__(self) -> None:
        uuid7 = uuid_utils.uuid7
        prefix = secrets.token_hex(8)
        numbers = count(1)

        def job_id() -> str:
            return str(uuid7())

        def token() -> str:
            return f"{prefix}-{next(numbers)}"

        self.job_id: Callable[[], str] = job_id
        self.token: Callable[[], str] = token
        self.random: Callable[[], float] = random.Random().random
