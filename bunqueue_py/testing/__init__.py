"""A clock and dice that a test owns."""

from .clock import VirtualClock as VirtualClock
from .ids import SeededIds as SeededIds
