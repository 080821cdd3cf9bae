"""The machines: all rules together, over memory and over a file."""

from __future__ import annotations

from tests.stateful.control_rules import (
    DeadLetterRules,
    JobControlRules,
    LimitRules,
    LookRules,
    QueueControlRules,
)
from tests.stateful.log_rules import LogRules
from tests.stateful.run_rules import PushRules
from tests.stateful.storage_rules import StorageRules
from tests.stateful.time_rules import TimeRules


class MemoryMachine(
    PushRules,
    JobControlRules,
    QueueControlRules,
    LimitRules,
    LookRules,
    DeadLetterRules,
    LogRules,
    TimeRules,
):
    """Over memory."""


class SqliteMachine(StorageRules, MemoryMachine):
    """Over a file."""


MACHINES = (MemoryMachine, SqliteMachine)
