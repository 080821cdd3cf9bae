"""What the state machine does, in numbers.

`python -m tests.stateful.statistics [runs] [steps] [machine]`
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("BUNQUEUE_CHECK_LOCKS", "1")

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from bunqueue_py.clock import SystemClock
from tests.stateful.base import STATISTICS
from tests.stateful.machines import MACHINES


def measure(machine: type[RuleBasedStateMachine], runs: int, steps: int) -> None:
    """Runs the machine that often, and prints what came of it."""
    STATISTICS.clear()
    clock = SystemClock()
    elapsed, worked = clock.effort()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    after = clock.effort()
    elapsed, worked = after[0] - elapsed, after[1] - worked
    counted = STATISTICS.copy()
    done, made = counted.pop("runs"), counted.pop("steps")
    print(f"{machine.__name__}: {done} runs, {made} steps, {elapsed / 1000:.1f} s")
    print(f"  {made / elapsed * 1000:.0f} steps/s, {made / worked * 1000:.0f} a second of CPU")
    width = max(map(len, counted), default=0)
    for what in sorted(counted):
        print(f"  {what:<{width}}  {counted[what]}")


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:3]]
    for each in MACHINES:
        if not sys.argv[3:] or each.__name__ in sys.argv[3:]:
            measure(each, *(given + [100, 50][len(given) :]))
