"""No window of a rate limit ever holds more starts than it allows, whatever the pattern."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bunqueue_py import QueueManager
from bunqueue_py.model.window import RateWindow
from bunqueue_py.ops.query import check
from bunqueue_py.shard.limiter import Limits
from bunqueue_py.testing import VirtualClock

STEPS = st.lists(st.integers(0, 40), min_size=1, max_size=120)


def most_in_a_window(starts: Sequence[int], per: int) -> int:
    """The most starts that any half-open window of that length holds, counted by hand."""
    return max(
        (sum(1 for other in starts if start <= other < start + per) for start in starts), default=0
    )


@given(most=st.integers(1, 6), per=st.integers(1, 60), steps=STEPS)
def test_a_window_admits_at_most_its_max_and_never_makes_anybody_wait_in_vain(
    most: int, per: int, steps: list[int]
) -> None:
    window, starts, now = RateWindow(most, per), [], 0
    for step in steps:
        now += step
        recent = [start for start in starts if start > now - per]
        assert window.room(now) == most - len(recent)
        if window.room(now) > 0:
            window.take(now)
            starts.append(now)
        else:
            # the moment that it names is the first at which there is room
            assert window.next_ms() == recent[0] + per > now
        window.check()
    assert most_in_a_window(starts, per) <= most


SETTINGS = st.tuples(st.integers(1, 5), st.integers(1, 50), st.none() | st.integers(1, 80))
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), SETTINGS),
        st.tuples(st.just("wait"), st.integers(0, 30)),
        st.tuples(st.just("start"), st.integers(1, 4)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=80,
)


@given(acts=ACTS)
def test_no_window_is_overfull_with_settings_changed_in_between(acts: list[tuple]) -> None:
    """What starts while a limit holds fits it; and a limit of the same or a shorter window takes
    over what its forerunner let start."""
    limits, now = Limits(), 0
    setting: tuple[int, int, int | None] | None = None
    starts: list[int] = []
    for act, value in acts:
        if setting is not None and setting[2] is not None and setting[2] <= now:
            setting, starts = None, []
        if act == "set":
            most, per, ttl = value
            inherits = setting is not None and per <= setting[1]
            limits.set_window(most, per, None if ttl is None else now + ttl, now)
            # more may lie in the new window than it allows; then nothing starts until they do not
            starts = starts[-most:] if inherits else []
            setting = (most, per, None if ttl is None else now + ttl)
        elif act == "clear":
            limits.clear_window()
            setting, starts = None, []
        elif act == "wait":
            now += value
        else:
            for _ in range(value):
                opens = limits.opens_ms(now)
                if limits.room(0, now) <= 0:
                    assert opens is not None
                    assert opens > now
                    break
                assert opens is None
                limits.started(now)
                starts.append(now)
        if setting is not None:
            assert most_in_a_window(starts, setting[1]) <= setting[0]
        limits.live_window(now)
        limits.check()


@given(
    most=st.integers(1, 4),
    per=st.integers(1, 20),
    pattern=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=25),
    grouped=st.booleans(),
)
def test_pulls_of_a_limited_queue_or_group_fit_every_window_and_miss_no_chance(
    most: int, per: int, pattern: list[tuple[int, int]], grouped: bool
) -> None:
    """B119: through the front door, jobs always waiting, pulls one by one and in batches."""
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        group = "g" if grouped else None
        manager.set_rate_limit("q", most, per / 1000, group=group)
        manager.push_batch("q", [])
        starts: list[int] = []
        for step, wanted in pattern:
            clock.advance(milliseconds=step)
            now = clock.timeline_ms()
            for _ in range(wanted):
                manager.push("q", group=group)
            room = most - sum(1 for start in starts if start > now - per)
            if wanted % 2:
                jobs = manager.pull_batch("q", wanted)
            else:
                jobs = [job for _ in range(wanted) if (job := manager.pull("q")) is not None]
            assert len(jobs) == min(wanted, room)
            starts += [now] * len(jobs)
            check(manager._state)
        assert most_in_a_window(starts, per) <= most
