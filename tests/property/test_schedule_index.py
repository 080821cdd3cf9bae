"""Where schedulers stand by their next moments, against a plain dictionary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue_py.model.timing import Timing
from bunqueue_py.registry import schedules
from bunqueue_py.registry.schedules import Schedule, Schedules

OFFSET = 1_000
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arm", "arm", "arm", "on", "remove", "other"]),
        st.integers(0, 5),
        st.integers(0, 6),
    ),
    max_size=40,
)


def definition(by_wall: bool) -> Any:
    return SimpleNamespace(timing=Timing(None, "* * * * *") if by_wall else Timing(60_000))


@settings(max_examples=30)
@given(STEPS, st.integers(1, 4))
def test_each_stands_once_where_it_was_put_last(steps: list[Any], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedules, "SWEEP_AT", 3)
        index = Schedules(OFFSET)
        queue: Any = SimpleNamespace(name="q")
        known: dict[int, Schedule] = {}
        stands: dict[int, tuple[bool, int]] = {}
        for what, which, moment in steps:
            schedule = known.get(which)
            if schedule is None:
                schedule = known[which] = Schedule(
                    queue,
                    f"s{which}",
                    definition(which % 2 == 0),
                    None,  # type: ignore[arg-type]
                )
                index.add(schedule)
            if what == "remove":
                index.remove(schedule)
                del known[which]
                stands.pop(which, None)
            elif what == "on":
                # as those that are due do: away from the head
                due = index.due(moment, moment + OFFSET, limit)
                late = {s.id: moment - s.armed_ms + OFFSET * s.armed_by_wall for s in due}  # type: ignore[operator]
                wanted = {
                    f"s{n}": moment - at + OFFSET * by_wall
                    for n, (by_wall, at) in stands.items()
                    if at <= moment + OFFSET * by_wall
                }
                assert len(due) == len(late) == min(limit, len(wanted))
                assert sorted(late.values()) == sorted(wanted.values(), reverse=True)[:limit][::-1]
                for each in due:
                    number = int(each.id[1:])
                    at = moment + 3 + OFFSET * each.armed_by_wall
                    index.arm(each, at)
                    stands[number] = (each.armed_by_wall, at)
            else:
                if what == "other":
                    schedule.definition = definition(not schedule.definition.timing.by_wall)
                by_wall = schedule.definition.timing.by_wall
                at = moment + OFFSET * by_wall
                assert index.arm(schedule, None if moment == 6 else at) == (
                    None if moment == 6 else moment
                )
                stands[which] = (by_wall, at)
                if moment == 6:
                    del stands[which]
            index.check()
            by_time = [at - OFFSET * by_wall for by_wall, at in stands.values()]
            assert index.next_ms(0, OFFSET) == min(by_time, default=None)
            assert {s.id for s in index.by_wall()} == {
                f"s{n}" for n, (by_wall, _) in stands.items() if by_wall
            }
