"""The clocks keep their promises about time, the ids theirs about order and chance."""

import threading
import uuid
from datetime import datetime, timedelta, timezone

import pytest

from bunqueue_py import BunqueueError, QueueManager, ValidationError
from bunqueue_py.clock import MAX_WAIT_MS, SystemClock
from bunqueue_py.ids import SystemIds
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock

START = datetime(2030, 1, 1, tzinfo=timezone.utc)
MS = 1_000_000


class Machine:
    """The clocks of a machine: what the wall shows, how long it has been up, suspended or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_boottime: bool) -> None:
        self.wall = 1_900_000_000_000 * MS
        self.awake = 5_000 * MS
        self.suspended = 0
        monkeypatch.setattr("time.time_ns", lambda: self.wall)
        monkeypatch.setattr("time.monotonic_ns", lambda: self.awake)
        if has_boottime:
            monkeypatch.setattr("time.CLOCK_BOOTTIME", 7, raising=False)
            monkeypatch.setattr(
                "time.clock_gettime_ns", lambda which: self.awake + self.suspended, raising=False
            )
        else:
            monkeypatch.delattr("time.CLOCK_BOOTTIME", raising=False)

    def pass_time(self, ms: int) -> None:
        self.wall += ms * MS
        self.awake += ms * MS

    def suspend(self, ms: int) -> None:
        self.wall += ms * MS
        self.suspended += ms * MS


@pytest.mark.parametrize("has_boottime", [True, False])
def test_the_timeline_begins_at_the_wall_clock_and_follows_elapsed_time(
    monkeypatch: pytest.MonkeyPatch, has_boottime: bool
) -> None:
    machine = Machine(monkeypatch, has_boottime=has_boottime)
    clock = SystemClock()
    assert clock.timeline_ms() == clock.wall_ms() == 1_900_000_000_000
    machine.pass_time(1234)
    assert clock.timeline_ms() == clock.wall_ms() == 1_900_000_001_234


@pytest.mark.parametrize("has_boottime", [True, False])
@pytest.mark.parametrize("jump_ms", [-12 * 3_600_000, -2_000, 2_000, 10 * 365 * 86_400_000])
def test_a_jump_of_the_wall_clock_does_not_move_the_timeline(
    monkeypatch: pytest.MonkeyPatch, has_boottime: bool, jump_ms: int
) -> None:
    """B043, B044: clocks set back, and forward."""
    machine = Machine(monkeypatch, has_boottime=has_boottime)
    clock = SystemClock()
    machine.wall += jump_ms * MS
    assert clock.timeline_ms() == 1_900_000_000_000
    assert clock.wall_ms() == 1_900_000_000_000 + jump_ms
    machine.pass_time(10)
    assert clock.timeline_ms() == 1_900_000_000_010


def test_suspended_time_counts_where_the_system_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, has_boottime=True)
    clock = SystemClock()
    machine.suspend(8 * 3_600_000)
    assert clock.timeline_ms() == clock.wall_ms() == 1_900_000_000_000 + 8 * 3_600_000


def test_a_suspension_shows_within_ten_milliseconds_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, has_boottime=True)
    clock = SystemClock()
    before = clock.timeline_ms()
    machine.suspend(8 * 3_600_000)
    machine.pass_time(9)
    assert clock.timeline_ms() == before + 9
    machine.pass_time(1)
    assert clock.timeline_ms() == clock.wall_ms() == before + 10 + 8 * 3_600_000


def test_a_suspension_shows_in_time_within_a_millisecond_that_was_read_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of a millisecond is not told again once it is time for a look."""
    machine = Machine(monkeypatch, has_boottime=True)
    clock = SystemClock()
    machine.awake += MS // 2
    before = clock.timeline_ms()
    machine.pass_time(9)
    assert clock.timeline_ms() == before + 9
    machine.awake += MS * 3 // 4
    assert clock.timeline_ms() == before + 10
    machine.suspend(3_600_000)
    machine.awake += MS // 4
    assert clock.timeline_ms() == before + 10 + 3_600_000


def test_every_millisecond_has_its_number_from_its_first_nanosecond_to_its_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, has_boottime=True)
    clock = SystemClock()
    begin = clock.timeline_ms()
    for ms in range(25):
        assert clock.timeline_ms() == begin + ms
        machine.awake += MS - 1
        assert clock.timeline_ms() == begin + ms
        machine.awake += 1


def test_a_thread_held_up_while_it_reads_the_clock_moves_the_timeline_by_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, has_boottime=True)
    clock = SystemClock()
    clock.timeline_ms()

    def held_up(_: int) -> int:
        elapsed = machine.awake + machine.suspended
        machine.pass_time(500)
        return elapsed

    machine.pass_time(20)
    monkeypatch.setattr("time.clock_gettime_ns", held_up)
    slow = SystemClock()
    for _ in range(3):
        machine.pass_time(20)
        # it may tell the moment at which it began to read, and no later one than it is
        assert machine.wall // MS - 1_500 <= slow.timeline_ms() <= machine.wall // MS
        assert clock.timeline_ms() == machine.wall // MS


def test_the_real_timeline_never_goes_back() -> None:
    clock = SystemClock()
    seen = [clock.timeline_ms() for _ in range(20_000)]
    assert seen == sorted(seen)
    assert all(type(ms) is int for ms in seen[:10])


class RecordingLock:
    """Stands for a lock that somebody else holds; remembers how long one waits for it."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, float]] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.asked.append((blocking, timeout))
        return False


@pytest.mark.parametrize("timeout_ms", [None, MAX_WAIT_MS, MAX_WAIT_MS + 1, 36_500 * 86_400_000])
def test_a_real_wait_is_cut_at_sixty_seconds(timeout_ms: int | None) -> None:
    lock = RecordingLock()
    assert SystemClock().wait(lock, timeout_ms) is False
    assert lock.asked == [(True, 60.0)]


def test_a_short_real_wait_is_as_long_as_was_asked() -> None:
    lock = RecordingLock()
    SystemClock().wait(lock, 1500)
    assert lock.asked == [(True, 1.5)]


@pytest.mark.parametrize("timeout_ms", [0, -5])
def test_a_wait_without_time_only_looks(timeout_ms: int) -> None:
    lock = RecordingLock()
    assert SystemClock().wait(lock, timeout_ms) is False
    assert lock.asked[0][0] is False
    free = threading.Lock()
    assert SystemClock().wait(free, timeout_ms) is True
    assert free.locked()


def test_a_real_wait_ends_when_the_lock_is_released() -> None:
    lock = threading.Lock()
    lock.acquire()
    waiting = threading.Event()
    got: list[bool] = []

    def wait() -> None:
        waiting.set()
        got.append(SystemClock().wait(lock, 10_000))

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(10)
    lock.release()
    thread.join(10)
    assert got == [True]


# -- the virtual clock -------------------------------------------------------------------------


def test_a_virtual_clock_stands_still_until_it_is_advanced() -> None:
    clock = VirtualClock()
    before = clock.timeline_ms()
    assert clock.now == START
    assert clock.timeline_ms() == before
    clock.advance(days=3, hours=1, milliseconds=5)
    assert clock.now == START + timedelta(days=3, hours=1, milliseconds=5)
    assert clock.timeline_ms() - before == clock.wall_ms() - before == 3 * 86_400_000 + 3_600_005


def test_a_virtual_clock_begins_where_it_is_told() -> None:
    moment = datetime(1999, 12, 31, tzinfo=timezone(timedelta(hours=2)))
    assert VirtualClock(moment).now == moment
    with pytest.raises(ValidationError, match="start"):
        VirtualClock(datetime(2030, 1, 1))


@pytest.mark.parametrize("parts", [{"seconds": -1}, {"days": 1, "hours": -25}])
def test_a_virtual_clock_refuses_to_go_back(parts: dict[str, float]) -> None:
    clock = VirtualClock()
    with pytest.raises(ValidationError, match="never goes back"):
        clock.advance(**parts)
    assert clock.now == START


def test_the_virtual_wall_clock_jumps_alone() -> None:
    clock = VirtualClock()
    clock.set_wall_clock(START - timedelta(hours=12))
    assert clock.now == START
    assert clock.timeline_ms() - clock.wall_ms() == 12 * 3_600_000
    clock.advance(seconds=1)
    assert clock.timeline_ms() - clock.wall_ms() == 12 * 3_600_000
    with pytest.raises(ValidationError, match="moment"):
        clock.set_wall_clock(datetime(2030, 1, 1))


def test_a_virtual_wait_takes_a_free_lock_and_looks_at_a_taken_one() -> None:
    clock, lock = VirtualClock(), threading.Lock()
    assert clock.wait(lock, None) is True
    assert lock.locked()
    assert clock.wait(lock, 0) is False
    assert clock.wait(lock, -1) is False


@pytest.mark.parametrize("timeout_ms", [None, 1, 60_000])
def test_a_virtual_wait_that_nothing_can_end_is_refused(timeout_ms: int | None) -> None:
    clock, lock = VirtualClock(), threading.Lock()
    lock.acquire()
    with pytest.raises(BunqueueError, match="advance"):
        clock.wait(lock, timeout_ms)


@pytest.mark.parametrize("timeout", [5, None])
def test_a_pull_that_could_only_hang_is_refused_and_leaves_no_trace(timeout: float | None) -> None:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        manager.push("mail", delay=60)
        for _ in range(3):
            with pytest.raises(BunqueueError, match="advance"):
                manager.pull("mail", timeout)
            check(manager._state)
        assert len(manager._state.queues["mail"].waiters) == 0
        clock.advance(seconds=60)
        assert manager.pull("mail", timeout) is not None


def test_a_hopeless_wait_for_a_result_is_refused_and_leaves_no_trace() -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        job = manager.push("mail")
        with pytest.raises(BunqueueError, match="advance"):
            job.result(timeout=5)
        with pytest.raises(BunqueueError, match="advance"):
            job.result()
        assert not any(shard.watched for shard in manager._state.shards.shards)
        held = manager.pull("mail")
        manager.ack(held, "done")
        assert job.result(timeout=5) == "done"


# -- ids ---------------------------------------------------------------------------------------


def in_threads(make: "object", each: int, threads: int = 4) -> list[list[str]]:
    start = threading.Barrier(threads)
    made: list[list[str]] = [[] for _ in range(threads)]

    def run(mine: list[str]) -> None:
        start.wait(10)
        mine.extend(make() for _ in range(each))

    workers = [threading.Thread(target=run, args=(mine,)) for mine in made]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(10)
    assert all(len(mine) == each for mine in made)
    return made


def assert_is_uuid7(text: str) -> None:
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert parsed.variant == uuid.RFC_4122
    assert parsed.version == 7


def test_job_ids_have_the_form_of_uuid7() -> None:
    ids = SystemIds()
    for _ in range(200):
        assert_is_uuid7(ids.job_id())


def test_job_ids_sort_by_their_time_of_creation() -> None:
    ids = SystemIds()
    made = [ids.job_id() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_job_ids_are_unique_and_sorted_in_each_of_several_threads() -> None:
    made = in_threads(SystemIds().job_id, 5_000)
    assert len({job_id for mine in made for job_id in mine}) == 20_000
    for mine in made:
        assert mine == sorted(mine)


def test_tokens_are_unique_in_several_threads_and_across_managers() -> None:
    first, second = SystemIds(), SystemIds()
    tokens = [token for mine in in_threads(first.token, 5_000) for token in mine]
    tokens += [token for mine in in_threads(second.token, 5_000) for token in mine]
    assert len(set(tokens)) == len(tokens)
    assert all(isinstance(token, str) and token for token in tokens)


def test_a_token_of_one_manager_means_nothing_to_another() -> None:
    with QueueManager(background=False) as one, QueueManager(background=False) as two:
        one.push("mail")
        two.push("mail")
        assert one.pull("mail").token != two.pull("mail").token


def test_system_dice_are_between_zero_and_one_and_not_the_same_twice() -> None:
    drawn = [SystemIds().random() for _ in range(50)]
    assert all(0 <= value < 1 for value in drawn)
    assert len(set(drawn)) > 40


def test_seeded_ids_are_the_same_for_the_same_seed_and_differ_for_another() -> None:
    def sample(seed: int) -> list[object]:
        ids = SeededIds(seed)
        return [(ids.job_id(), ids.token(), ids.random()) for _ in range(100)]

    assert sample(7) == sample(7)
    assert not set(sample(7)) & set(sample(8))


def test_seeded_ids_are_unique_sorted_and_have_the_form_of_uuid7() -> None:
    ids = SeededIds(3)
    made = [ids.job_id() for _ in range(2_000)]
    for job_id in made[:200]:
        assert_is_uuid7(job_id)
    assert made == sorted(set(made))
    assert len({ids.token() for _ in range(2_000)}) == 2_000
    assert all(0 <= ids.random() < 1 for _ in range(2_000))


def test_a_manager_with_seeded_ids_gives_the_same_ids_and_tokens_in_every_run() -> None:
    def run() -> list[object]:
        clock = VirtualClock()
        with QueueManager(clock=clock, background=False, _ids=SeededIds(5)) as manager:
            jobs = [manager.push("mail", n) for n in range(5)]
            pulled = manager.pull("mail")
            manager.fail(pulled, "no")
            return [job.id for job in jobs] + [pulled.token, manager.get_job(pulled.id).run_at]

    assert run() == run()
