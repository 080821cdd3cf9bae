"""The lock table is kept: whoever takes a lock out of order hears which two are meant."""

import threading

import pytest

from bunqueue_py.sync import (
    CONNECTION,
    LEAF,
    MANAGER,
    SHARD,
    STORAGE,
    WORKER,
    CheckingLock,
    LockOrderError,
    contention,
    make_lock,
    nothing_held,
    spawn,
)

ALLOWED = [
    (MANAGER, WORKER),
    (MANAGER, SHARD),
    (MANAGER, SHARD + 63),
    (MANAGER, LEAF),
    (WORKER, LEAF),
    (SHARD, SHARD + 1),
    (SHARD, SHARD + 63),
    (SHARD + 3, LEAF),
    (MANAGER, CONNECTION),
    (MANAGER, STORAGE),
    (STORAGE, SHARD),
    (STORAGE, CONNECTION),
]
FORBIDDEN = [
    (WORKER, MANAGER),
    (WORKER, WORKER),
    (WORKER, SHARD),
    (WORKER, SHARD + 63),
    (SHARD, MANAGER),
    (SHARD, WORKER),
    (SHARD + 1, SHARD),
    (SHARD + 1, SHARD + 1),
    (LEAF, MANAGER),
    (LEAF, WORKER),
    (LEAF, SHARD),
    (LEAF, LEAF),
    (MANAGER, MANAGER),
    (WORKER, CONNECTION),
    (SHARD, CONNECTION),
    (LEAF, CONNECTION),
    (CONNECTION, MANAGER),
    (CONNECTION, SHARD),
    (CONNECTION, LEAF),
    (CONNECTION, CONNECTION),
    (SHARD, STORAGE),
    (LEAF, STORAGE),
]


@pytest.fixture(autouse=True)
def checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNQUEUE_CHECK_LOCKS", "1")


@pytest.mark.parametrize(("held", "taken"), ALLOWED)
def test_the_table_allows_what_stands_below(held: int, taken: int) -> None:
    with make_lock("held", held), make_lock("taken", taken) as got:
        assert got is True
        with pytest.raises(LockOrderError):
            nothing_held()
    nothing_held()


@pytest.mark.parametrize(("held", "taken"), FORBIDDEN)
def test_a_lock_against_the_table_is_refused_and_both_are_named(held: int, taken: int) -> None:
    upper, lower = make_lock("the held one", held), make_lock("the taken one", taken)
    with upper:
        with pytest.raises(LockOrderError, match="the held one") as caught:
            lower.acquire()
        assert "the taken one" in str(caught.value)
        assert not lower.locked()
    nothing_held()
    with lower:
        pass


def test_the_order_is_checked_against_every_lock_held_not_only_the_newest() -> None:
    high, low, middle = (make_lock(f"shard {i}", SHARD + i) for i in (5, 1, 3))
    with high:
        assert low.acquire(False)  # a try cannot dead-lock, so it may go against the order
        try:
            with pytest.raises(LockOrderError, match="shard 5"):
                middle.acquire(timeout=1)
        finally:
            if middle.locked():
                middle.release()
            low.release()


def test_re_entry_is_an_error_and_not_a_hang() -> None:
    lock = make_lock("shard 0", SHARD)
    with lock:
        with pytest.raises(LockOrderError, match=r"shard 0.*twice by one thread"):
            lock.acquire()
        assert lock.locked()
    assert not lock.locked()


def test_re_entry_past_another_lock_is_an_error_too() -> None:
    outer = make_lock("shard 0", SHARD)
    with outer, make_lock("results", LEAF), pytest.raises(LockOrderError, match="twice"):
        outer.acquire()


def test_a_try_never_raises_and_says_whether_it_got_the_lock() -> None:
    lock = make_lock("shard 0", SHARD)
    with lock:
        assert lock.acquire(False) is False
    assert lock.acquire(False) is True
    lock.release()
    nothing_held()


def test_a_wait_for_a_lock_that_is_held_elsewhere_ends_at_its_timeout() -> None:
    lock = make_lock("shard 0", SHARD)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(10)
        assert lock.acquire(timeout=0.01) is False
        nothing_held()
    finally:
        done.set()
        thread.join(10)
    with lock:
        pass


def test_what_one_thread_holds_does_not_bind_another() -> None:
    taken: list[bool] = []

    def take() -> None:
        with make_lock("shard 0", SHARD) as got:
            nothing_to_see = got
            taken.append(nothing_to_see)

    with make_lock("results", LEAF):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join(10)
    assert taken == [True]


def test_locks_may_be_released_in_any_order() -> None:
    first, second = make_lock("shard 0", SHARD), make_lock("shard 1", SHARD + 1)
    first.acquire()
    second.acquire()
    first.release()
    with pytest.raises(LockOrderError, match="shard 1"):
        first.acquire()
    second.release()
    nothing_held()
    with first, second:
        pass


def test_an_exception_under_a_lock_releases_it() -> None:
    lock = make_lock("shard 0", SHARD)
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert not lock.locked()
    nothing_held()


def test_foreign_code_under_a_lock_is_refused_and_the_locks_named() -> None:
    with (
        make_lock("shard 3", SHARD + 3),
        make_lock("results", LEAF),
        pytest.raises(LockOrderError, match=r"shard 3, results"),
    ):
        nothing_held()


def test_a_checking_lock_says_what_it_is() -> None:
    lock = make_lock("shard 3", SHARD + 3)
    assert isinstance(lock, CheckingLock)
    assert "shard 3" in repr(lock)
    assert "103" in repr(lock)


@pytest.mark.parametrize("value", [None, "", "0", "yes"])
def test_a_lock_is_plain_unless_the_variable_says_1(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("BUNQUEUE_CHECK_LOCKS")
    else:
        monkeypatch.setenv("BUNQUEUE_CHECK_LOCKS", value)
    lock = make_lock("shard 0", SHARD)
    assert type(lock) is type(threading.Lock())
    with make_lock("results", LEAF), lock:  # against the table, and nobody minds
        assert lock.locked()


def test_spawn_names_the_thread_and_makes_it_a_daemon() -> None:
    seen: list[threading.Thread] = []
    thread = spawn("scheduler", lambda: seen.append(threading.current_thread()))
    thread.join(10)
    assert seen == [thread]
    assert thread.name == "bunqueue-scheduler"
    assert thread.daemon


@pytest.mark.parametrize("checking", ["0", "1"])
def test_contention_tells_of_a_lock_that_is_taken_and_leaves_a_free_one_free(
    monkeypatch: pytest.MonkeyPatch, checking: str
) -> None:
    monkeypatch.setenv("BUNQUEUE_CHECK_LOCKS", checking)
    lock = make_lock("shard 0", SHARD)
    contended = contention(lock)
    assert not contended()
    assert not lock.locked()
    with lock:
        assert contended()
        assert contended(), "and leaves a taken one taken"
    assert not contended()
