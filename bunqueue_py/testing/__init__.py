"""The engine on a clock that a test owns."""

from .clock import VirtualClock as VirtualClock
from .context import handler_context as handler_context
from .harness import Harness as Harness
from .harness import hang as hang
from .ids import SeededIds as SeededIds
from .report import CrashReport as CrashReport
from .report import RunReport as RunReport
