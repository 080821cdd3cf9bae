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
from tests.stateful.schedule_machine import ScheduleMachine, SqliteScheduleMachine
from tests.stateful.seen_rules import SeenRules
from tests.stateful.storage_rules import StorageRules
from tests.stateful.time_rules import TimeRules
from tests.stateful.watch_rules import WatchRules
from tests.stateful.worker_rules import CancelRules


class MemoryMachine(
    PushRules,
    JobControlRules,
    QueueControlRules,
    LimitRules,
    LookRules,
    DeadLetterRules,
    LogRules,
    SeenRules,
    TimeRules,
    WatchRules,
    CancelRules,
):
    """Over memory."""


class SqliteMachine(StorageRules, MemoryMachine):
    """Over a file."""


MACHINES = (MemoryMachine, SqliteMachine, ScheduleMachine, SqliteScheduleMachine)
