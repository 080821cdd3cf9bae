"""`Waiters` against a list: first come, first served, and nobody is forgotten."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bunqueue_py.shard.waiters import Waiter, Waiters

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"


def is_awake(waiter: Waiter) -> bool:
    """Whether its wait is over: its lock is free."""
    return not waiter.lock.locked()


class WaitersMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.waiters = Waiters()
        self.line: list[Waiter] = []
        self.idle = [Waiter() for _ in range(3)]  # outside, and asleep or woken
        self.timer: int | None = None

    @precondition(lambda self: self.idle)
    @rule(data=st.data(), first=st.booleans())
    def join(self, data: st.DataObject, first: bool) -> None:
        waiter = self.idle.pop(data.draw(st.integers(0, len(self.idle) - 1)))
        self.waiters.join(waiter, first=first)
        self.line.insert(0 if first else len(self.line), waiter)
        assert not waiter.woken
        assert not is_awake(waiter)

    @rule()
    def a_stranger_comes(self) -> None:
        self.idle.append(Waiter())

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.line) - 1))
        waiter = self.line.pop(place)
        self.waiters.leave(waiter)
        if place == 0:
            self.timer = None
        self.idle.append(waiter)
        assert not waiter.woken

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def who_stands_outside_may_leave_too(self, data: st.DataObject) -> None:
        self.waiters.leave(self.idle[data.draw(st.integers(0, len(self.idle) - 1))])

    @rule(n=st.integers(0, 5))
    def wake(self, n: int) -> None:
        self.waiters.wake(n)
        woken, self.line = self.line[:n], self.line[n:]
        if n:
            # whoever is left standing at the head, if nobody is woken, minds its moment on
            self.timer = None
        assert all(waiter.woken and is_awake(waiter) for waiter in woken)
        self.idle += woken

    @precondition(lambda self: self.line)
    @rule(moment=st.integers(0, 100))
    def the_head_minds_a_timer(self, moment: int) -> None:
        self.waiters.timer_ms = self.timer = moment

    @rule(moment=st.integers(0, 100))
    def due(self, moment: int) -> None:
        self.waiters.due(moment)
        if self.line and (self.timer is None or moment < self.timer):
            head = self.line.pop(0)
            self.timer = None
            assert head.woken
            assert is_awake(head)
            self.idle.append(head)

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def woken_twice_is_woken_once(self, data: st.DataObject) -> None:
        waiter = self.idle[data.draw(st.integers(0, len(self.idle) - 1))]
        waiter.wake()
        waiter.wake()
        assert is_awake(waiter)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "waiters"):
            return
        assert list(self.waiters.line) == self.line
        assert len(self.waiters) == len(self.line)
        assert all(not waiter.woken and not is_awake(waiter) for waiter in self.line)
        if self.line:
            assert self.waiters.timer_ms == self.timer


TestWaiters = WaitersMachine.TestCase
TestWaiters.settings = settings(max_examples=6, stateful_step_count=20)


@pytest.mark.slow
class TestWaitersAtLength(WaitersMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=20 if SHORT else 200, stateful_step_count=50)


def test_ten_thousand_waits_leave_no_memory_behind() -> None:
    waiters, standing, passing = Waiters(), Waiter(), Waiter()
    waiters.join(standing, first=False)
    for n in range(10_000):
        waiters.join(passing, first=bool(n % 2))
        if n % 3:
            waiters.leave(passing)
        else:
            waiters.wake(2)
            waiters.join(standing, first=False)
    assert list(waiters.line) == [standing]


def test_a_wake_before_the_wait_ends_the_wait() -> None:
    waiter = Waiter()
    waiter.wake()
    assert waiter.lock.acquire(timeout=10)


def test_a_wait_that_timed_out_just_as_it_was_woken_does_not_end_the_next_wait() -> None:
    waiters, waiter = Waiters(), Waiter()
    waiters.join(waiter, first=False)
    waiters.wake()
    waiters.join(waiter, first=True)  # it never took the lock
    assert waiter.lock.acquire(False) is False
    waiters.wake()
    assert waiter.lock.acquire(False) is True
    waiters.join(waiter, first=True)  # it did
    assert waiter.lock.acquire(False) is False


def test_waiting_threads_wake_in_the_order_in_which_they_came() -> None:
    waiters, guard, order = Waiters(), threading.Lock(), []
    each = [Waiter() for _ in range(4)]
    for waiter in each:
        waiters.join(waiter, first=False)
    done = [threading.Event() for _ in each]

    def wait(n: int) -> None:
        if each[n].lock.acquire(timeout=10):
            order.append(n)
            done[n].set()

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for n in range(4):
        with guard:
            waiters.wake(1)
        assert done[n].wait(10)
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3]
