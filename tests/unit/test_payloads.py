"""Data and results: encoded once at the door, isolated from then on, refused before anything has
changed when they cannot be kept."""

import math
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from bunqueue_py import (
    JobFailedError,
    JobSpec,
    LockError,
    ManagerConfig,
    PickleSerializer,
    Queue,
    QueueManager,
    SerializationError,
)
from bunqueue_py.client.job import Ack, Job
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock

SURROGATE = "\ud83d"


def opened(**config: Any) -> QueueManager:
    return QueueManager(config=ManagerConfig(**config), clock=VirtualClock(), background=False)


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    with opened() as made:
        yield made


def books(manager: QueueManager) -> object:
    check(manager._state)
    return manager.queues(), manager.counts(), sorted(manager._state.index)


def pulled(manager: QueueManager, queue: str = "mail", **options: Any) -> Job:
    manager.push(queue, **options)
    job = manager.pull(queue)
    assert job is not None
    return job


# -- isolation ---------------------------------------------------------------------------------


def test_what_the_adder_does_to_its_object_afterwards_changes_no_job(
    manager: QueueManager,
) -> None:
    """B073."""
    data = {"to": ["ada"]}
    pushed = manager.push("mail", data)
    batched = manager.push_batch("mail", [("a", data), JobSpec("b", data)])
    data["to"].append("eve")
    assert pushed.data == {"to": ["ada"]}
    assert [job.data for job in batched] == [{"to": ["ada"]}] * 2
    assert [job.data for job in manager.pull_batch("mail", 3)] == [{"to": ["ada"]}] * 3


def test_what_a_handler_does_to_its_payload_is_not_seen_by_the_retry(
    manager: QueueManager,
) -> None:
    """B073."""
    first = pulled(manager, data={"left": [1, 2]}, backoff=0)
    first.data["left"].clear()
    manager.fail(first, "no")
    again = manager.pull("mail")
    assert again == first
    assert again.data == {"left": [1, 2]}
    again.data["left"].clear()
    assert manager.get_job(first.id).data == {"left": [1, 2]}
    assert Queue("mail", manager).get_jobs()[0].data == {"left": [1, 2]}


def test_two_readers_of_one_job_share_no_object(manager: QueueManager) -> None:
    job = manager.push("mail", {"a": [1]})
    one, two = manager.get_job(job.id), manager.get_job(job.id)
    one.data["a"].append(2)
    assert two.data == {"a": [1]}
    assert one.data is one.data


def test_results_are_isolated_from_the_handler_and_from_each_reader(
    manager: QueueManager,
) -> None:
    """B073."""
    job, result = pulled(manager), {"n": [1]}
    manager.ack(job, result)
    result["n"].append(2)
    first = manager.get_result(job.id)
    assert first == {"n": [1]}
    first["n"].append(3)
    assert manager.get_result(job.id) == manager.wait_for(job.id) == {"n": [1]}


def test_each_listener_gets_a_result_of_its_own(manager: QueueManager) -> None:
    """B073: a listener mutates the event."""
    seen = []

    def spoil(event: Any) -> None:
        seen.append(event.result["n"][0])
        event.result["n"][0] = "spoilt"

    for _ in range(2):
        manager.events.subscribe(spoil, types=["completed"])
    job = pulled(manager)
    manager.ack(job, {"n": [1]})
    manager.run_pending()
    assert seen == [1, 1]
    assert manager.get_result(job.id) == {"n": [1]}


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        False,
        "",
        [],
        {},
        -0.0,
        2**80,
        1.0,
        "\N{SNOWMAN} \U0001f600 e\u0301 \0",
        (1, (2,)),
        {"a": {1, 2}, "b": b"\xff", "c": Decimal("1.10"), "d": UUID(int=5)},
        [datetime(2030, 1, 1, tzinfo=timezone.utc), timedelta(days=1)],
        {"": None, " tag": 1},
    ],
    ids=repr,
)
def test_a_value_comes_out_as_it_went_in(manager: QueueManager, value: Any) -> None:
    job = pulled(manager, data=value)
    assert job.data == value
    assert type(job.data) is type(value)
    manager.ack(job, value)
    assert manager.get_result(job.id) == value
    assert type(manager.get_result(job.id)) is type(value)
    assert manager.get_job(job.id).return_value == value


# -- bounds ------------------------------------------------------------------------------------


def test_data_of_exactly_max_data_bytes_is_kept_and_one_byte_more_refused() -> None:
    with opened(max_data_bytes=100) as manager:
        exact = "x" * 98  # and two quotes
        manager.push("mail", exact)
        manager.push_batch("mail", [("a", exact)])
        before = books(manager)
        with pytest.raises(SerializationError, match="101 bytes") as caught:
            manager.push("mail", exact + "x")
        assert "max_data_bytes" in str(caught.value)
        with pytest.raises(SerializationError, match=r"^jobs\[1\]: .*101 bytes"):
            manager.push_batch("mail", [("a", exact), ("b", exact + "x")])
        assert books(manager) == before


def test_the_bound_counts_bytes_and_not_characters() -> None:
    with opened(max_data_bytes=8) as manager:
        manager.push("mail", "\N{SNOWMAN}\N{SNOWMAN}")
        with pytest.raises(SerializationError, match="11 bytes"):
            manager.push("mail", "\N{SNOWMAN}\N{SNOWMAN}\N{SNOWMAN}")


def test_a_result_of_exactly_max_data_bytes_is_kept_and_one_byte_more_fails_the_job() -> None:
    with opened(max_data_bytes=100) as manager:
        kept, lost = pulled(manager), pulled(manager)
        assert manager.ack(kept, "x" * 98).applied
        outcome = manager.ack(lost, "x" * 99)
        assert (outcome.applied, outcome.reason) == (False, "unserializable")
        failed = manager.get_job(lost.id)
        assert (failed.state, failed.failed_reason) == ("failed", "unrecoverable")
        assert "max_data_bytes" in failed.error
        assert manager.get_result(kept.id) == "x" * 98
        check(manager._state)


def test_the_smallest_bound_still_takes_a_digit() -> None:
    with opened(max_data_bytes=1) as manager:
        assert pulled(manager, data=7).data == 7
        with pytest.raises(SerializationError):
            manager.push("mail", 10)


@pytest.mark.slow
def test_the_default_bound_is_ten_mebibytes(manager: QueueManager) -> None:
    """B074, at the 10 MiB bound."""
    size = 10 * 1024 * 1024
    job = pulled(manager, data="x" * (size - 2))
    assert len(job.data) == size - 2
    with pytest.raises(SerializationError, match="10,485,761 bytes"):
        manager.push("mail", "x" * (size - 1))


# -- what cannot be encoded ----------------------------------------------------------------------


def cycle() -> list[object]:
    data: list[object] = [1]
    data.append({"again": data})
    return data


def nested(levels: int) -> list[object]:
    data: list[object] = []
    for _ in range(levels):
        data = [data]
    return data


class Custom:
    pass


UNFIT: dict[str, tuple[Any, str]] = {
    "a lock": ({"a": [threading.Lock()]}, "$.a[0]"),
    "a generator": ([1, (n for n in ())], "$[1]"),
    "a function": ({"f": cycle}, "$.f"),
    "an object": ({"o": Custom()}, "$.o"),
    "a class": ([Custom], "$[0]"),
    "NaN": ({"x": [1.0, math.nan]}, "$.x[1]"),
    "infinity": ([math.inf], "$[0]"),
    "minus infinity": ({"x": {"y": -math.inf}}, "$.x.y"),
    "a lone surrogate": ({"x": ["ok", SURROGATE]}, "$.x[1]"),
    "a key that is no text": ({"x": {1: 2}}, "$.x"),
    "a key of NaN": ({math.nan: 1}, "$"),
    "a surrogate in a key": ({"x": {SURROGATE: 1}}, "$.x"),
    "a cycle": (cycle(), "$[1].again"),
    "bare NaN": (math.nan, "$"),
    "bare surrogate": (SURROGATE, "$"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_data_that_cannot_be_kept_is_refused_with_its_path_before_anything_changed(
    manager: QueueManager, what: str
) -> None:
    """B071, B077: lone surrogates and numbers that are no numbers, at the door and never later."""
    data, path = UNFIT[what]
    queue = Queue("mail", manager)
    before = books(manager)
    with pytest.raises(SerializationError) as caught:
        manager.push("mail", data)
    assert caught.value.path is not None
    assert caught.value.path.startswith(path)
    assert caught.value.path in str(caught.value)
    str(caught.value).encode()
    for batch in (
        lambda: queue.add_bulk([("ok", 1), ("bad", data)]),
        lambda: manager.push_batch("mail", [JobSpec("ok"), JobSpec("bad", data, priority=5)]),
    ):
        with pytest.raises(SerializationError, match=r"^jobs\[1\]: ") as caught:
            batch()
        assert caught.value.path.startswith(path)
    assert books(manager) == before


@pytest.mark.parametrize("what", UNFIT)
def test_a_result_that_cannot_be_kept_fails_the_job_for_good_with_its_path(
    manager: QueueManager, what: str
) -> None:
    """B068, B071, B077: the work is done and is not done again."""
    result, path = UNFIT[what]
    one, two, three = (pulled(manager, attempts=5) for _ in range(3))
    outcome = manager.ack(one, result)
    assert (outcome.applied, outcome.reason) == (False, "unserializable")
    outcomes = manager.ack_batch([Ack(two, result), Ack(three, "fine")])
    assert [(o.applied, o.reason) for o in outcomes] == [(False, "unserializable"), (True, None)]
    for job in (one, two):
        seen = manager.get_job(job.id)
        assert (seen.state, seen.failed_reason) == ("failed", "unrecoverable")
        assert path in seen.error
        assert "SerializationError" in seen.error
        with pytest.raises(JobFailedError):
            job.result()
    assert manager.get_result(three.id) == "fine"
    assert manager.pull("mail") is None
    check(manager._state)


def test_a_result_that_cannot_be_kept_names_its_type(manager: QueueManager) -> None:
    """B068."""
    job = pulled(manager)
    manager.ack(job, {"handle": Custom()})
    assert "Custom" in manager.get_job(job.id).error


def test_a_result_that_cannot_be_kept_does_not_help_a_stranger(manager: QueueManager) -> None:
    job = pulled(manager)
    with pytest.raises(LockError):
        manager.ack(job.id, Custom())
    with pytest.raises(LockError):
        manager.ack(job.id, Custom(), token="never issued")
    assert manager.ack_batch([Ack(job.id, Custom())])[0].reason == "not_issued"
    assert manager.get_state(job.id) == "active"
    manager.release(job)
    assert manager.ack(job, Custom()).reason == "lock_lost"
    assert manager.get_state(job.id) == "waiting"
    assert manager.ack("gone", Custom()).reason == "gone"


@pytest.mark.slow
@pytest.mark.parametrize("serializer", [None, PickleSerializer(allow_unsafe=True)])
def test_200000_levels_of_nesting_are_refused_and_the_queue_goes_on(
    serializer: PickleSerializer | None,
) -> None:
    deep = nested(200_000)
    with opened(**({"serializer": serializer} if serializer else {})) as manager:
        manager.push("mail", 1)
        before = books(manager)
        with pytest.raises(SerializationError) as caught:
            manager.push("mail", deep)
        assert len(str(caught.value)) < 10_000
        assert books(manager) == before
        job = manager.pull("mail")
        assert manager.ack(job, deep).reason == "unserializable"
        assert len(manager.get_job(job.id).error) < 10_000
        assert pulled(manager, data=2).data == 2
        check(manager._state)


def test_a_cycle_is_kept_where_the_serializer_can() -> None:
    with opened(serializer=PickleSerializer(allow_unsafe=True)) as manager:
        data = pulled(manager, data=cycle()).data
        assert data[1]["again"] is data


def test_a_surrogate_in_a_message_or_an_error_is_escaped_and_kept(manager: QueueManager) -> None:
    """B071: progress, error text, and both again as an exception."""
    job = pulled(manager, backoff=0)
    job.update_progress(5, "half " + SURROGATE)
    assert manager.get_job(job.id).progress_message == "half \\ud83d"
    manager.fail(job, "no " + SURROGATE)
    assert manager.get_job(job.id).error == "no \\ud83d"
    again = manager.pull("mail")
    manager.fail(again, ValueError(SURROGATE), unrecoverable=True)
    assert "\\ud83d" in manager.get_job(job.id).error
    "".join(manager.get_job(job.id).stacktrace).encode()


# -- big payloads --------------------------------------------------------------------------------


class Counting:
    """A serializer of our own that counts; payloads are text."""

    name = "counting"

    def __init__(self) -> None:
        self.dumped = 0
        self.loaded = 0

    def dumps(self, value: object) -> bytes:
        self.dumped += 1
        return str(value).encode()

    def loads(self, data: bytes) -> object:
        self.loaded += 1
        return data.decode()


def test_a_payload_is_encoded_once_whatever_happens_to_its_job() -> None:
    """B074: 200 retries and 1,000 progress updates do not touch it."""
    serializer = Counting()
    with opened(serializer=serializer) as manager:
        manager.push("mail", "x" * 100_000, attempts=1000, backoff=0)
        assert serializer.dumped == 1
        for _ in range(200):
            job = manager.pull("mail")
            for percent in range(5):
                job.update_progress(percent)
            manager.fail(job, "no")
        job = manager.pull("mail")
        manager.release(job)
        manager.get_job(job.id)
        Queue("mail", manager).get_jobs(with_data=False)
        assert (serializer.dumped, serializer.loaded) == (1, 0)
        assert manager.pull("mail").data == "x" * 100_000
        assert (serializer.dumped, serializer.loaded) == (1, 1)


def test_data_is_decoded_once_for_each_snapshot_and_only_when_read() -> None:
    serializer = Counting()
    with opened(serializer=serializer) as manager:
        job = pulled(manager, data="text")
        assert serializer.loaded == 0
        assert job.data == job.data == "text"
        assert serializer.loaded == 1


def test_a_listing_without_data_does_not_carry_payloads_but_finds_them(
    manager: QueueManager,
) -> None:
    """B074: listing without payload."""
    queue = Queue("mail", manager)
    for n in range(3):
        queue.add("job", {"n": n})
    jobs = queue.get_jobs(with_data=False)
    assert all(job._encoded is None for job in jobs)
    assert [job.data for job in jobs] == [{"n": 0}, {"n": 1}, {"n": 2}]


# -- serializers ---------------------------------------------------------------------------------


def test_pickle_serves_for_data_and_results() -> None:
    with opened(serializer=PickleSerializer(allow_unsafe=True)) as manager:
        job = pulled(manager, data={1: math.inf, "when": (1, {2})})
        assert job.data == {1: math.inf, "when": (1, {2})}
        manager.ack(job, {frozenset([1]): SURROGATE})
        assert manager.get_result(job.id) == {frozenset([1]): SURROGATE}


def test_pickle_refuses_what_it_cannot_keep_before_anything_changed() -> None:
    with opened(serializer=PickleSerializer(allow_unsafe=True)) as manager:
        manager.push("mail")
        before = books(manager)
        with pytest.raises(SerializationError):
            manager.push("mail", threading.Lock())
        with pytest.raises(SerializationError, match=r"^jobs\[0\]"):
            manager.push_batch("mail", [("a", threading.Lock())])
        assert books(manager) == before
        job = manager.pull("mail")
        assert manager.ack(job, (n for n in ())).reason == "unserializable"


def test_a_serializer_of_ones_own_serves() -> None:
    with opened(serializer=Counting()) as manager:
        job = pulled(manager, data=5)
        assert job.data == "5"
        manager.ack(job, 7)
        assert manager.get_result(job.id) == job.result() == "7"


class Raising:
    """A serializer that raises what it was told to."""

    name = "raising"

    def __init__(self) -> None:
        self.on_dumps: BaseException | None = None
        self.on_loads: BaseException | None = None

    def dumps(self, value: object) -> bytes:
        if self.on_dumps is not None:
            raise self.on_dumps
        return str(value).encode()

    def loads(self, data: bytes) -> object:
        if self.on_loads is not None:
            raise self.on_loads
        return data.decode()


class Odd(BaseException):
    pass


FAULTS = [ValueError("v"), TypeError("t"), KeyError("k"), RecursionError("r"), MemoryError("m"),
          SerializationError("s", path="$.x"), StopIteration(), Odd("o"), KeyboardInterrupt(),
          SystemExit(3)]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_whatever_encoding_raises_reaches_the_adder_and_changes_nothing(
    fault: BaseException,
) -> None:
    serializer = Raising()
    with opened(serializer=serializer) as manager:
        manager.push("mail", "first")
        before = books(manager)
        serializer.on_dumps = fault
        with pytest.raises(type(fault)):
            manager.push("mail", "second")
        with pytest.raises(type(fault)):
            manager.push_batch("mail", [("a", 1)])
        assert books(manager) == before
        serializer.on_dumps = None
        assert pulled(manager, data="third").data == "first"


@pytest.mark.parametrize(
    "fault",
    [fault for fault in FAULTS if isinstance(fault, Exception)],
    ids=lambda fault: type(fault).__name__,
)
def test_whatever_encoding_a_result_raises_fails_that_job_alone(fault: Exception) -> None:
    """B068."""
    serializer = Raising()
    with opened(serializer=serializer) as manager:
        one, two, three = (pulled(manager) for _ in range(3))
        serializer.on_dumps = fault
        assert manager.ack(one, "x").reason == "unserializable"
        assert manager.ack_batch([Ack(two, "x"), Ack(three)])[0].reason == "unserializable"
        assert [manager.get_state(job.id) for job in (one, two, three)] == [
            "failed",
            "failed",
            "completed",
        ]
        assert type(fault).__name__ in manager.get_job(one.id).error
        check(manager._state)


@pytest.mark.parametrize(
    "fault", [Odd("o"), KeyboardInterrupt(), SystemExit(3)], ids=lambda fault: type(fault).__name__
)
def test_an_interrupt_while_a_result_is_encoded_leaves_the_job_active(
    fault: BaseException,
) -> None:
    serializer = Raising()
    with opened(serializer=serializer) as manager:
        job = pulled(manager)
        serializer.on_dumps = fault
        with pytest.raises(type(fault)):
            manager.ack(job, "x")
        serializer.on_dumps = None
        assert manager.get_state(job.id) == "active"
        assert manager.ack(job, "x").applied


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_data_that_does_not_decode_stops_nobody_but_its_reader(fault: BaseException) -> None:
    """B032, as far as memory goes; on a file: tests/unit/test_cases_of_files.py."""
    serializer = Raising()
    with opened(serializer=serializer) as manager:
        queue = Queue("mail", manager)
        one, two, three = queue.add_bulk([("a", 1), ("b", 2), ("c", 3)])
        serializer.on_loads = fault
        job = manager.pull("mail")
        # what the application's serializer raises comes out as our own error, if it is one at all
        wrapped = isinstance(fault, Exception) and not isinstance(fault, MemoryError)
        expected = SerializationError if wrapped else type(fault)
        with pytest.raises(expected):
            job.data
        manager.fail(job, "undecodable", unrecoverable=True)
        assert manager.get_state(one.id) == "failed"
        assert queue.remove(two)
        assert manager.ack(manager.pull("mail"), "x").applied
        with pytest.raises(expected):
            manager.get_result(three.id)
        check(manager._state)
        serializer.on_loads = None
        assert manager.get_job(one.id).data == "1"
        assert manager.get_result(three.id) == "x"


def test_a_listener_is_not_lost_over_a_result_that_does_not_decode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    serializer = Raising()
    with opened(serializer=serializer) as manager:
        heard: list[str] = []
        manager.events.subscribe(lambda event: heard.append(event.result), types=["completed"])
        one, two = pulled(manager), pulled(manager)
        serializer.on_loads = ValueError("rotten")
        manager.ack(one, "a")
        manager.run_pending()
        serializer.on_loads = None
        manager.ack(two, "b")
        manager.run_pending()
        assert heard == ["b"]
        assert "rotten" in caplog.text
