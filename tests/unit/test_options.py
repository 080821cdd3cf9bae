"""Every option, name and number is checked at the call, whichever way a job comes in, and what is
refused changes nothing."""

import math
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    Deduplication,
    JobSpec,
    KeepJobs,
    Queue,
    QueueManager,
    Repeat,
    ValidationError,
)
from bunqueue_py.client.job import Ack, Job
from bunqueue_py.model.options import JobOptions, OptionsCache
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock

UTC = timezone.utc
START = datetime(2030, 1, 1, tzinfo=UTC)
LONGEST = timedelta(days=36_500)
MS = timedelta(milliseconds=1)
BILLION_YEARS = 1e9 * 365 * 86_400
KNOWN = sorted(JobOptions.__annotations__)
SURROGATE = "\ud83d"


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    with QueueManager(clock=VirtualClock(START), background=False) as opened:
        yield opened


Door = Callable[[QueueManager, str, dict[str, Any]], Job]


def by_push(manager: QueueManager, queue: str, options: dict[str, Any]) -> Job:
    return manager.push(queue, **options)


def by_add(manager: QueueManager, queue: str, options: dict[str, Any]) -> Job:
    return Queue(queue, manager).add("job", **options)


def by_batch(manager: QueueManager, queue: str, options: dict[str, Any]) -> Job:
    return manager.push_batch(queue, [JobSpec("a"), JobSpec("b", **options)])[1]


def by_bulk(manager: QueueManager, queue: str, options: dict[str, Any]) -> Job:
    return Queue(queue, manager).add_bulk([("a", 1), JobSpec("b", **options)])[1]


def by_defaults(manager: QueueManager, queue: str, options: dict[str, Any]) -> Job:
    return Queue(queue, manager, defaults=options).add("job")


DOORS: list[Door] = [by_push, by_add, by_batch, by_bulk, by_defaults]


def books(manager: QueueManager) -> object:
    """All that could have changed."""
    check(manager._state)
    return manager.queues(), manager.counts(), sorted(manager._state.index), manager.next_due()


def no_numbers(*rest: object) -> list[object]:
    return ["5", b"5", [], {}, object(), 1j, True, False, math.nan, math.inf, -math.inf, *rest]


BAD_INTS = no_numbers(None, 1.0, 1e300, 10**400, timedelta(1))
BAD_DURATIONS = no_numbers(
    -1, -0.001, -1e-9, 1e300, 10**400, BILLION_YEARS, timedelta.max, timedelta.min,
    LONGEST + MS, LONGEST.total_seconds() + 0.001, -MS, START,
)  # fmt: skip
NOT_ZERO = [0, 0.0, timedelta(0)]
BAD_BOOLS = [0, 1, 1.0, None, "yes", "True", [], math.nan]
BAD_NAMES = [
    "",
    "x" * 257,
    "a\0b",
    SURROGATE,
    "ok" + SURROGATE,
    5,
    5.0,
    True,
    b"x",
    ["x"],
    object(),
]
BAD_KEEPS = [
    0, 1, -1, 1.0, None, "5", [], math.nan, timedelta(1),
    KeepJobs(),
    *(KeepJobs(count=n) for n in (True, -1, 1_000_001, 1.0, "5", math.nan, math.inf, 1e300)),
    *(KeepJobs(age=age) for age in BAD_DURATIONS),
    KeepJobs(count=-1, age=5),
]  # fmt: skip
BAD_DEDUPLICATIONS = [
    0, 1, True, "key", ("key",), ("key", None, "skip", "live"), {"key": "key"}, Deduplication,
    *(Deduplication(name) for name in BAD_NAMES), Deduplication(None),
    *(Deduplication("key", ttl) for ttl in (*BAD_DURATIONS, *NOT_ZERO)),
    *(Deduplication("key", mode=bad) for bad in ("", "Skip", "keep", None, 0, True, math.nan, [])),
    *(Deduplication("key", 1, hold=bad) for bad in ("", "LIVE", "ever", None, 0, True, {})),
    Deduplication("key", hold="ttl"),
]  # fmt: skip
BAD_BACKOFFS = [None, *BAD_DURATIONS, "fixed", lambda attempt, error: 1]

BAD: dict[str, list[object]] = {
    "priority": [*BAD_INTS, -1_000_001, 1_000_001],
    "delay": BAD_DURATIONS,
    "run_at": [
        0, 5, 5.0, True, "2031-01-01", math.nan, date(2031, 1, 1), timedelta(1),
        datetime(2031, 1, 1), datetime.max, datetime.max.replace(tzinfo=UTC),
        START + LONGEST + MS,
    ],
    "attempts": [*BAD_INTS, 0, -1, 1001],
    "backoff": BAD_BACKOFFS,
    "timeout": [*BAD_DURATIONS, *NOT_ZERO],
    "ttl": [*BAD_DURATIONS, *NOT_ZERO],
    "custom_id": BAD_NAMES,
    "deduplication": BAD_DEDUPLICATIONS,
    "group": BAD_NAMES,
    "group_limit": [*(bad for bad in BAD_INTS if bad is not None), 0, -1, 1_000_001],
    "lifo": BAD_BOOLS,
    "remove_on_complete": BAD_KEEPS,
    "remove_on_fail": BAD_KEEPS,
    "tags": ["abc", "", 5, b"ab", {"a"}, iter(["a"]), *([name] for name in BAD_NAMES),
             ["ok", ""]],
    "stack_trace_limit": [*BAD_INTS, -1, 1001],
    "stall_timeout": [*BAD_DURATIONS, *NOT_ZERO],
    "durable": BAD_BOOLS,
    "repeat": [
        5,
        "daily",
        Repeat(),
        Repeat(every=5, cron="* * * * *"),
        Repeat(every=0),
        Repeat(every=-1),
        Repeat(every=True),
        Repeat(every=5, tz="Europe/Rome"),
        Repeat(every=5, limit=0),
        Repeat(every=5, limit=True),
        Repeat(every=5, start=datetime(2030, 1, 1)),
        Repeat(every=5, end=datetime(2020, 1, 1, tzinfo=timezone.utc)),
    ],
    "depends_on": [
        None, 5, 5.0, True, "abc", b"abc", {"a"}, {"a": 1}, iter(["a"]), object(),
        [None], [5], [b"a"], [["a"]], [JobSpec("of no call")], ["x"] * 10_001,
    ],
    "on_dependency_failure": ["", "Fail", "fail_parent", None, 0, True, b"fail", ["fail"]],
}  # fmt: skip
GOOD: dict[str, list[object]] = {
    "priority": [0, 1, -1, -1_000_000, 1_000_000],
    "delay": [0, 0.0, 0.001, 1, 1.5, 1e-9, timedelta(0), timedelta(hours=1), LONGEST,
              LONGEST.total_seconds(), None],
    "run_at": [START, START - timedelta(days=20_000), START + MS, START + LONGEST, None,
               datetime.min.replace(tzinfo=UTC),
               datetime(2031, 1, 1, tzinfo=timezone(timedelta(hours=14)))],
    "attempts": [1, 3, 1000],
    "backoff": [0, 1, 2.5, timedelta(minutes=1), LONGEST, Backoff.fixed(5),
                Backoff.exponential(1, max_delay=10, jitter=0), Backoff.custom(lambda n, error: n)],
    "timeout": [0.001, 1e-9, 5, LONGEST, None],
    "ttl": [0.001, 1e-9, 5, LONGEST, None],
    "custom_id": ["x", "x" * 256, "\N{SNOWMAN} with spaces", None],
    "deduplication": [None, Deduplication("x"), Deduplication("\N{SNOWMAN}" * 256),
                      Deduplication("a", 1e-9, "extend"), Deduplication("a", LONGEST, "replace"),
                      Deduplication("b", timedelta(seconds=1), hold="ttl")],
    "group": ["x", "x" * 256, "\N{SNOWMAN} with spaces", None],
    "group_limit": [1, 1_000_000, None],
    "lifo": [True, False],
    "remove_on_complete": [True, False, KeepJobs(count=0), KeepJobs(count=1_000_000),
                           KeepJobs(age=0), KeepJobs(age=LONGEST), KeepJobs(count=5, age=1.5)],
    "remove_on_fail": [True, False, KeepJobs(count=0), KeepJobs(age=timedelta(1))],
    "tags": [[], (), ["a"], ("a", "a"), ["x" * 256], ["\N{SNOWMAN}"]],
    "stack_trace_limit": [0, 10, 1000],
    "stall_timeout": [0.001, 1e-9, 5, LONGEST, None],
    "durable": [True, False],
    "repeat": [None, Repeat(every=60), Repeat(cron="@daily", tz="Europe/Rome", limit=3)],
    "depends_on": [(), []],
    "on_dependency_failure": ["fail", "wait", "ignore"],
}  # fmt: skip
NEEDS: dict[str, dict[str, Any]] = {"group_limit": {"group": "acme"}}
"""What an option cannot do without."""


def test_the_tables_below_know_every_option() -> None:
    assert sorted(BAD) == sorted(GOOD) == KNOWN


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("option", KNOWN)
def test_a_bad_value_is_refused_with_the_option_named_and_nothing_changed(
    manager: QueueManager, option: str, door: Door
) -> None:
    """B139, B077: every option with 0, -1, NaN, inf, 1e300, True, '5', None and their like."""
    manager.push("mail", delay=60)
    before = books(manager)
    for value in BAD[option]:
        with pytest.raises(ValidationError) as caught:
            door(manager, "mail", {option: value})
            pytest.fail(f"{option}={value!r} was accepted")
        assert option in str(caught.value), f"{option}={value!r} says {caught.value}"
        assert books(manager) == before


@pytest.mark.parametrize("door", [by_batch, by_bulk])
@pytest.mark.parametrize("option", KNOWN)
def test_a_bad_value_in_a_batch_names_its_job(
    manager: QueueManager, option: str, door: Door
) -> None:
    with pytest.raises(ValidationError, match=r"^jobs\[1\]: "):
        door(manager, "mail", {option: BAD[option][0]})


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("option", KNOWN)
def test_a_good_value_is_accepted(manager: QueueManager, option: str, door: Door) -> None:
    for value in GOOD[option]:
        door(manager, "mail", {option: value, **NEEDS.get(option, {})})
        check(manager._state)
        manager.obliterate("mail")


@pytest.mark.parametrize("door", DOORS)
def test_a_group_limit_without_a_group_is_refused(manager: QueueManager, door: Door) -> None:
    before = books(manager)
    for options in ({"group_limit": 5}, {"group_limit": 5, "group": None}):
        with pytest.raises(ValidationError, match="group_limit needs a group"):
            door(manager, "mail", options)
    assert manager.counts() == before[1]  # type: ignore[index]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("option", KNOWN)
def test_a_misspelt_option_is_a_type_error_naming_it_and_the_known_ones(
    manager: QueueManager, option: str, door: Door
) -> None:
    """B124, B139: every option name misspelt."""
    manager.push("mail")
    before = books(manager)
    for misspelt in (option + "s", option.upper(), option[1:]):
        for value in (GOOD[option][0], ["unhashable"]):
            with pytest.raises(TypeError) as caught:
                door(manager, "mail", {misspelt: value})
            text = str(caught.value)
            assert repr(misspelt) in text
            assert all(known in text for known in KNOWN)
            assert books(manager) == before


@pytest.mark.parametrize("door", DOORS)
def test_a_misspelt_option_is_found_among_good_ones(manager: QueueManager, door: Door) -> None:
    options = {"priority": 5, "tags": ["a"], "attempts": 2, "atempts": 2, "retries": 1}
    with pytest.raises(TypeError, match=r"'atempts', 'retries'"):
        door(manager, "mail", options)


@pytest.mark.parametrize("door", [by_push, by_batch])
@pytest.mark.parametrize(
    "options",
    [{"attempts": 0}, {"priority": True}, {"prioritty": 1}, {"run_at": datetime(2031, 1, 1)}],
)
def test_a_refused_push_does_not_bring_a_queue_into_being(
    manager: QueueManager, options: dict[str, Any], door: Door
) -> None:
    """SPEC 16.5: an operation that raised changed nothing."""
    with pytest.raises((ValidationError, TypeError)):
        door(manager, "fresh", options)
    assert manager.queues() == []


@pytest.mark.parametrize(
    "defaults", [{"attempts": 0}, {"prioritty": 1}, {"delay": 1, "run_at": START}]
)
def test_bad_defaults_do_not_bring_a_queue_into_being(
    manager: QueueManager, defaults: dict[str, Any]
) -> None:
    with pytest.raises((ValidationError, TypeError)):
        Queue("fresh", manager, defaults=defaults)
    assert manager.queues() == []


@pytest.mark.parametrize(
    "option", ["attempts", "stack_trace_limit", "timeout", "ttl", "lifo", "durable"]
)
def test_an_equal_value_of_another_type_is_refused_after_the_good_one_was_seen(
    manager: QueueManager, option: str
) -> None:
    """True == 1 == 1.0, and they are not equally welcome."""
    good = True if option in ("lifo", "durable") else 1
    manager.push("mail", **{option: good})
    for bad in [value for value in (True, 1.0, 1) if type(value) is not type(good)]:
        if option in ("timeout", "ttl") and type(bad) is float:
            manager.push("mail", **{option: bad})  # a float is a duration too
            continue
        with pytest.raises(ValidationError, match=option):
            manager.push("mail", **{option: bad})


@pytest.mark.parametrize("option", ["remove_on_complete", "remove_on_fail"])
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (KeepJobs(count=1), KeepJobs(count=True)),
        (KeepJobs(count=1), KeepJobs(count=1.0)),
        (KeepJobs(age=1), KeepJobs(age=True)),
    ],
)
def test_an_equal_retention_of_another_type_is_refused_after_the_good_one_was_seen(
    manager: QueueManager, option: str, good: KeepJobs, bad: KeepJobs
) -> None:
    with pytest.raises(ValidationError, match=option):
        manager.push("mail", **{option: bad})
    manager.push("mail", **{option: good})
    with pytest.raises(ValidationError, match=option):
        manager.push("mail", **{option: bad})


def test_jobs_of_equal_settings_share_one_options_object() -> None:
    cache = OptionsCache()

    def resolved(**options: object) -> object:
        return cache.resolve(options, lambda: 0)[0]

    assert resolved() is resolved(priority=5) is resolved(tags=["a"]) is cache.default
    assert resolved(attempts=5) is resolved(attempts=5, priority=7, delay=3)
    assert resolved(attempts=5) is not resolved(attempts=6)
    assert resolved(timeout=1, lifo=True) is resolved(timeout=1, lifo=True)
    assert resolved(backoff=Backoff.fixed(1)) is resolved(backoff=Backoff.fixed(1))
    assert resolved(timeout=1).timeout_ms == resolved(timeout=1.0).timeout_ms == 1000


def test_the_cache_of_settings_and_of_names_is_bounded() -> None:
    cache = OptionsCache()
    for n in range(5_000):
        assert cache.resolve({"timeout": n + 1}, lambda: 0)[0].timeout_ms == (n + 1) * 1000
        assert cache.name(f"job {n}") == f"job {n}"
    kept = [getattr(cache, field) for field in cache.__slots__]
    sizes = [len(part) for part in kept if isinstance(part, dict)]
    assert len(sizes) >= 2
    assert max(sizes) <= 1024


def test_options_arrive_as_they_were_given(manager: QueueManager) -> None:
    job = manager.push(
        "mail",
        {"to": "ada"},
        name="welcome",
        priority=7,
        delay=1.5,
        attempts=4,
        custom_id="w-1",
        tags=["a", "b", "a"],
    )
    for seen in (job, manager.get_job(job.id)):
        assert (seen.queue, seen.name, seen.data) == ("mail", "welcome", {"to": "ada"})
        assert (seen.priority, seen.max_attempts, seen.custom_id) == (7, 4, "w-1")
        assert seen.tags == ("a", "b", "a")
        assert seen.created_at == START
        assert seen.run_at == START + timedelta(seconds=1.5)
        assert seen.state == "delayed"
        assert not seen.duplicate


def test_options_that_are_not_given_have_the_documented_defaults(manager: QueueManager) -> None:
    job = manager.push("mail")
    assert (job.name, job.data, job.priority, job.max_attempts) == ("default", None, 0, 3)
    assert (job.custom_id, job.tags, job.run_at, job.state) == (None, (), START, "waiting")


# -- when --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [LONGEST, LONGEST.total_seconds()])
def test_a_delay_of_exactly_36500_days_is_kept(
    manager: QueueManager, delay: timedelta | float
) -> None:
    job = manager.push("mail", delay=delay)
    assert job.run_at == START + LONGEST
    assert manager.next_due() == START + LONGEST


def test_a_run_at_of_exactly_36500_days_is_kept_and_counted_from_the_wall_clock() -> None:
    clock = VirtualClock(START)
    clock.set_wall_clock(START + timedelta(days=10))
    with QueueManager(clock=clock, background=False) as manager:
        edge = START + timedelta(days=10) + LONGEST
        assert manager.push("mail", run_at=edge).run_at == edge
        with pytest.raises(ValidationError, match="run_at must be at most 36,500 days from now"):
            manager.push("mail", run_at=edge + MS)


def test_delay_and_run_at_together_are_refused(manager: QueueManager) -> None:
    before = books(manager)
    with pytest.raises(ValidationError, match="delay or run_at, not both"):
        manager.push("mail", delay=0, run_at=START)
    assert manager.counts() == before[1]


def test_a_part_of_a_millisecond_is_waited_for(manager: QueueManager) -> None:
    assert manager.push("mail", delay=0.0001).run_at == START + MS
    moment = START + timedelta(seconds=5, microseconds=1)
    assert manager.push("mail", run_at=moment).run_at == START + timedelta(seconds=5) + MS


@pytest.mark.parametrize("days", [1, 20_000])
def test_a_run_at_that_is_past_means_now(manager: QueueManager, days: int) -> None:
    job = manager.push("mail", run_at=START - timedelta(days=days))
    assert job.state == "waiting"
    assert manager.pull("mail") == job


def test_a_run_at_long_past_overtakes_no_higher_priority_when_the_wall_clock_is_ahead() -> None:
    clock = VirtualClock(START)
    with QueueManager(clock=clock, background=False) as manager:
        clock.set_wall_clock(START + timedelta(seconds=1))
        low = manager.push("mail", run_at=datetime(1970, 1, 1, tzinfo=UTC), priority=-5)
        high = manager.push("mail", priority=5)
        check(manager._state)
        assert [manager.pull("mail"), manager.pull("mail")] == [high, low]


# -- defaults of a queue -----------------------------------------------------------------------


def test_a_call_overrides_the_defaults_of_its_queue_one_by_one(manager: QueueManager) -> None:
    queue = Queue("mail", manager, defaults={"attempts": 5, "priority": 2, "tags": ["all"]})
    plain, own = queue.add("a"), queue.add("b", priority=9)
    assert (plain.max_attempts, plain.priority, plain.tags) == (5, 2, ("all",))
    assert (own.max_attempts, own.priority, own.tags) == (5, 9, ("all",))


def test_defaults_hold_for_bulk_too_and_belong_to_the_queue_object_alone(
    manager: QueueManager,
) -> None:
    queue = Queue("mail", manager, defaults={"attempts": 5, "priority": 2})
    jobs = queue.add_bulk([("a", 1), JobSpec("b", 2, priority=9)])
    assert [(job.max_attempts, job.priority) for job in jobs] == [(5, 2), (5, 9)]
    assert manager.push("mail").max_attempts == 3
    assert Queue("mail", manager).add("c").max_attempts == 3


def test_defaults_are_taken_over_and_not_shared(manager: QueueManager) -> None:
    defaults: JobOptions = {"attempts": 5}
    queue = Queue("mail", manager, defaults=defaults)
    defaults["attempts"] = 9
    assert queue.add("a").max_attempts == 5


def test_a_run_at_of_the_call_overrides_a_default_delay_and_the_other_way_round(
    manager: QueueManager,
) -> None:
    moment = START + timedelta(days=2)
    by_delay = Queue("mail", manager, defaults={"delay": 60})
    assert by_delay.add("a").run_at == START + timedelta(seconds=60)
    assert by_delay.add("b", run_at=moment).run_at == moment
    assert by_delay.add_bulk([JobSpec("c", run_at=moment)])[0].run_at == moment
    by_moment = Queue("mail", manager, defaults={"run_at": moment})
    assert by_moment.add("d").run_at == moment
    assert by_moment.add("e", delay=5).run_at == START + timedelta(seconds=5)
    with pytest.raises(ValidationError, match="not both"):
        by_delay.add("f", delay=5, run_at=moment)


def test_a_job_spec_is_not_used_up_by_adding_it(manager: QueueManager) -> None:
    spec = JobSpec("a", {"n": 1}, priority=5, delay=60, attempts=2)
    shown = repr(spec)
    first, second = manager.push_batch("mail", [spec, spec])
    assert first.id != second.id
    assert (first.priority, second.priority, second.max_attempts) == (5, 5, 2)
    assert repr(spec) == shown
    assert "priority=5" in shown


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*BAD_NAMES, None])
def test_a_bad_job_name_is_refused_at_every_door(manager: QueueManager, name: Any) -> None:
    """B071: text that is no text, in a name."""
    manager.push("mail")
    before = books(manager)
    queue = Queue("mail", manager)
    for refuse in (
        lambda: manager.push("mail", name=name),
        lambda: queue.add(name),
        lambda: queue.add_bulk([("ok", 1), (name, 2)]),
        lambda: manager.push_batch("mail", [JobSpec("ok"), JobSpec(name)]),
    ):
        with pytest.raises(ValidationError, match="name"):
            refuse()
        assert books(manager) == before


@pytest.mark.parametrize("name", ["x", "x" * 256, "\N{SNOWMAN}", " ", "a\nb", "1.0"])
def test_a_job_name_is_any_text_of_up_to_256_characters(manager: QueueManager, name: str) -> None:
    assert manager.push("mail", name=name).name == name
    assert manager.pull("mail").name == name


@pytest.mark.parametrize(
    "name", [*BAD_NAMES, None, "a b", "a/b", "a\n", "caf\u00e9", "a,b", "*", "\N{SNOWMAN}"]
)
def test_a_bad_queue_name_is_refused_by_every_verb(manager: QueueManager, name: Any) -> None:
    for refuse in (
        lambda: Queue(name, manager),
        lambda: manager.push(name),
        lambda: manager.push_batch(name, []),
        lambda: manager.pull(name),
        lambda: manager.pull_batch(name, 1),
        lambda: manager.get_jobs(name),
        lambda: manager.get_job(queue=name, custom_id="x"),
        lambda: manager.pause(name),
        lambda: manager.drain(name),
    ):
        with pytest.raises(ValidationError, match="queue"):
            refuse()
    if name is not None:  # which means all queues
        with pytest.raises(ValidationError, match="queue"):
            manager.counts(name)
    assert manager.queues() == []


def test_a_queue_name_has_letters_digits_and_five_signs(manager: QueueManager) -> None:
    names = ["a", "x" * 256, "ABCxyz019", "_.:-", "eu-west.1:mail_out"]
    for name in names:
        assert Queue(name, manager).add("job").queue == name
    assert manager.queues() == sorted(names)


def test_a_subclass_of_text_is_a_name_like_any_other(manager: QueueManager) -> None:
    class Name(str):
        pass

    job = manager.push(Name("mail"), name=Name("welcome"), custom_id=Name("w"))
    assert (type(job.queue), type(job.name), type(job.custom_id)) == (str, str, str)
    assert manager.get_job(queue="mail", custom_id="w") == job


@pytest.mark.parametrize("owner", BAD_NAMES)
def test_a_bad_owner_is_refused_and_nothing_pulled(manager: QueueManager, owner: Any) -> None:
    manager.push("mail")
    with pytest.raises(ValidationError, match="owner"):
        manager.pull("mail", owner=owner)
    with pytest.raises(ValidationError, match="owner"):
        manager.pull_batch("mail", 1, owner=owner)
    assert manager.counts("mail").active == 0


# -- custom ids --------------------------------------------------------------------------------


def test_a_custom_id_brings_back_the_live_job_unchanged(manager: QueueManager) -> None:
    first = manager.push("mail", {"n": 1}, custom_id="x", priority=1)
    again = manager.push("mail", {"n": 2}, custom_id="x", priority=9)
    assert again.duplicate
    assert (again.id, again.data, again.priority) == (first.id, {"n": 1}, 1)
    assert again.token is None
    assert manager.counts("mail").total == 1
    check(manager._state)


def test_a_custom_id_holds_in_every_live_state(manager: QueueManager) -> None:
    job = manager.push("mail", custom_id="x", delay=60)
    assert manager.push("mail", custom_id="x").id == job.id
    manager._state.clock.advance(seconds=60)
    assert manager.push("mail", custom_id="x").id == job.id
    held = manager.pull("mail")
    found = manager.push("mail", custom_id="x")
    assert found.id == job.id
    assert found.state == "active"
    manager.fail(held, "no")
    assert manager.push("mail", custom_id="x").id == job.id
    check(manager._state)


def test_the_duplicate_of_a_running_job_does_not_carry_its_token(manager: QueueManager) -> None:
    manager.push("mail", custom_id="x")
    held = manager.pull("mail")
    duplicate = manager.push("mail", custom_id="x")
    assert held.token
    assert duplicate.token is None


@pytest.mark.parametrize("remove", [False, True, KeepJobs(count=5)])
@pytest.mark.parametrize("how", ["completed", "failed"])
def test_a_finished_holder_makes_room_and_leaves_nothing_to_its_successor(
    manager: QueueManager, how: str, remove: bool | KeepJobs
) -> None:
    """B106: fresh timestamps, attempts, progress, result."""
    clock = manager._state.clock
    old = manager.push(
        "mail", custom_id="x", remove_on_complete=remove, remove_on_fail=remove, tags=["old"]
    )
    held = manager.pull("mail")
    held.update_progress(50, "half")
    clock.advance(seconds=10)
    if how == "completed":
        manager.ack(held, "result")
    else:
        manager.fail(held, "no", unrecoverable=True)
    new = manager.push("mail", custom_id="x")
    check(manager._state)
    assert not new.duplicate
    assert new.id != old.id
    assert (new.attempts_made, new.progress, new.error, new.tags) == (0, 0, None, ())
    assert new.created_at == START + timedelta(seconds=10)
    assert new.started_at is None
    assert manager.get_result(new.id) is None
    assert manager.get_job(queue="mail", custom_id="x") == new
    assert manager.get_job(old.id) is None
    assert manager.counts("mail").total == 1


def test_a_custom_id_belongs_to_its_queue(manager: QueueManager) -> None:
    one, two = manager.push("a", custom_id="x"), manager.push("b", custom_id="x")
    assert one.id != two.id
    assert not two.duplicate
    assert manager.get_job(queue="b", custom_id="x") == two


def test_a_custom_id_twice_in_one_batch_is_one_job(manager: QueueManager) -> None:
    """B104: the same rules in a batch, in order."""
    live = manager.push("mail", custom_id="live")
    jobs = manager.push_batch(
        "mail",
        [
            JobSpec("a", 1, custom_id="x"),
            JobSpec("b", 2, custom_id="x"),
            JobSpec("c", 3, custom_id="live"),
            JobSpec("d", 4),
        ],
    )
    assert [job.duplicate for job in jobs] == [False, True, True, False]
    assert jobs[0] == jobs[1]
    assert jobs[2] == live
    assert manager.counts("mail").waiting == 3
    check(manager._state)


# -- batches -----------------------------------------------------------------------------------


def test_an_empty_batch_is_no_error(manager: QueueManager) -> None:
    assert manager.push_batch("mail", []) == []
    assert Queue("mail", manager, defaults={"attempts": 2}).add_bulk(iter(())) == []


def test_a_batch_may_be_any_iterable_and_comes_back_in_order(manager: QueueManager) -> None:
    jobs = manager.push_batch("mail", ((f"job{n}", n) for n in range(100)))
    assert [job.data for job in jobs] == list(range(100))
    assert [job.data for job in manager.pull_batch("mail", 100)] == list(range(100))
    assert len({job.created_at for job in jobs}) == 1


@pytest.mark.parametrize(
    "entry",
    ["ab", ("a",), ("a", 1, {}), ["a", 1], None, 5, {"name": "a"}],
)
def test_what_is_no_job_in_a_batch_is_named(manager: QueueManager, entry: object) -> None:
    manager.push("mail")
    before = books(manager)
    queue = Queue("mail", manager, defaults={"attempts": 2})
    for door in (queue.add_bulk, Queue("mail", manager).add_bulk):
        with pytest.raises(ValidationError, match=r"jobs\[2\]"):
            door([("ok", 1), ("ok", 2), entry])
        assert books(manager) == before


@pytest.mark.parametrize("jobs", [None, 5, JobSpec("a")])
def test_a_batch_that_cannot_be_iterated_is_refused(manager: QueueManager, jobs: Any) -> None:
    manager.push("mail")
    before = books(manager)
    with pytest.raises((TypeError, ValidationError)):
        manager.push_batch("mail", jobs)
    assert books(manager) == before


def test_an_iterable_that_raises_half_way_leaves_nothing_behind(manager: QueueManager) -> None:
    manager.push("mail")
    before = books(manager)

    def jobs() -> Iterator[JobSpec]:
        yield JobSpec("a")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        manager.push_batch("mail", jobs())
    assert books(manager) == before


@pytest.mark.slow
def test_a_batch_of_100001_is_refused_whole_and_one_of_100000_is_not(manager: QueueManager) -> None:
    manager.push("mail")
    before = books(manager)
    with pytest.raises(ValidationError, match="100,000"):
        manager.push_batch("mail", (("job", None) for _ in range(100_001)))
    assert books(manager) == before
    assert len(manager.push_batch("mail", (("job", None) for _ in range(100_000)))) == 100_000
    for batch in (manager.ack_batch, manager.heartbeat_batch):
        with pytest.raises(ValidationError, match="100,000"):
            batch([Ack("x")] * 100_001 if batch == manager.ack_batch else ["x"] * 100_001)


@pytest.mark.slow
def test_a_batch_without_end_is_refused_by_a_queue_with_defaults_too(
    manager: QueueManager,
) -> None:
    taken = 0

    def without_end() -> Iterator[tuple[str, None]]:
        nonlocal taken
        while taken < 300_000:  # so that a bug is a failure and not the end of the memory
            taken += 1
            yield "job", None

    with pytest.raises(ValidationError, match="100,000"):
        Queue("mail", manager, defaults={"attempts": 2}).add_bulk(without_end())
    assert taken <= 100_001


# -- back-off and retention ----------------------------------------------------------------------


@pytest.mark.parametrize("jitter", no_numbers(-0.1, 1.1, -1, 2, None, 1e300))
def test_a_jitter_outside_0_to_1_is_refused(jitter: Any) -> None:
    for make in (Backoff.exponential, Backoff.fixed):
        with pytest.raises(ValidationError, match="jitter"):
            make(1, jitter=jitter)


@pytest.mark.parametrize("value", [None, *BAD_DURATIONS])
def test_a_back_off_of_no_duration_is_refused(value: Any) -> None:
    for make in (Backoff.exponential, Backoff.fixed):
        with pytest.raises(ValidationError, match="backoff"):
            make(value)
    with pytest.raises(ValidationError, match="max_delay"):
        Backoff.exponential(1, max_delay=value)


@pytest.mark.parametrize("fn", [None, 5, "fn"])
def test_a_custom_back_off_without_a_function_is_refused(fn: Any) -> None:
    with pytest.raises(ValidationError, match="custom"):
        Backoff.custom(fn)


# -- numbers that verbs take ---------------------------------------------------------------------


def held(manager: QueueManager) -> Job:
    manager.push("other")
    pulled = manager.pull("other")
    assert pulled is not None
    return pulled


NUMBERS: dict[str, tuple[str, Callable[[QueueManager, Job, Any], object], list[object]]] = {
    "pull timeout": ("timeout", lambda m, j, v: m.pull("mail", v), BAD_DURATIONS),
    "pull lock_duration": (
        "lock_duration",
        lambda m, j, v: m.pull("mail", lock_duration=v),
        BAD_DURATIONS + NOT_ZERO,
    ),
    "pull_batch max_jobs": (
        "max_jobs",
        lambda m, j, v: m.pull_batch("mail", v),
        [*BAD_INTS, 0, -1, 100_001],
    ),
    "pull_batch timeout": ("timeout", lambda m, j, v: m.pull_batch("mail", 1, v), BAD_DURATIONS),
    "pull_batch lock_duration": (
        "lock_duration",
        lambda m, j, v: m.pull_batch("mail", 1, lock_duration=v),
        BAD_DURATIONS + NOT_ZERO,
    ),
    "release delay": ("delay", lambda m, j, v: m.release(j, delay=v), [*BAD_DURATIONS, None]),
    "extend_lock": (
        "duration",
        lambda m, j, v: m.extend_lock(j, v),
        [*BAD_DURATIONS, *NOT_ZERO, None],
    ),
    "update_progress": (
        "percent",
        lambda m, j, v: m.update_progress(j, v),
        no_numbers(None, -1, -0.001, 100.001, 101, 1e300, 10**400, timedelta(1)),
    ),
    "wait_for timeout": ("timeout", lambda m, j, v: m.wait_for(j, v), BAD_DURATIONS),
    "result timeout": ("timeout", lambda m, j, v: j.result(v), BAD_DURATIONS),
    "wait_until_empty": ("timeout", lambda m, j, v: m.wait_until_empty("mail", v), BAD_DURATIONS),
    "close timeout": ("timeout", lambda m, j, v: m.close(v), BAD_DURATIONS),
    "get_jobs offset": ("offset", lambda m, j, v: m.get_jobs("mail", offset=v), [*BAD_INTS, -1]),
    "get_jobs limit": (
        "limit",
        lambda m, j, v: m.get_jobs("mail", limit=v),
        [*BAD_INTS, -1, 1_000_001],
    ),
    "get_jobs newest_first": (
        "newest_first",
        lambda m, j, v: m.get_jobs("mail", newest_first=v),
        BAD_BOOLS,
    ),
    "get_jobs with_data": ("with_data", lambda m, j, v: m.get_jobs("mail", with_data=v), BAD_BOOLS),
    "drain": ("delayed", lambda m, j, v: m.drain("mail", v), BAD_BOOLS),
    "obliterate": ("force", lambda m, j, v: m.obliterate("mail", v), BAD_BOOLS),
    "fail unrecoverable": (
        "unrecoverable",
        lambda m, j, v: m.fail(j, "no", unrecoverable=v),
        BAD_BOOLS,
    ),
    "fail error": ("error", lambda m, j, v: m.fail(j, v), [None, 5, b"no", True, ValueError]),
    "dlq offset": (
        "offset",
        lambda m, j, v: Queue("mail", m).dlq.entries(offset=v),
        [*BAD_INTS, -1],
    ),
    "dlq limit": (
        "limit",
        lambda m, j, v: Queue("mail", m).dlq.entries(limit=v),
        [*BAD_INTS, -1, 1_000_001],
    ),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_a_bad_argument_of_a_verb_is_refused_with_its_name_and_nothing_changed(
    manager: QueueManager, what: str
) -> None:
    """B139, B077."""
    option, call, values = NUMBERS[what]
    job = held(manager)
    manager.push("mail")
    manager.push("mail", delay=60)
    before = books(manager)
    for value in values:
        with pytest.raises(ValidationError) as caught:
            call(manager, job, value)
            pytest.fail(f"{what}: {value!r} was accepted")
        assert option in str(caught.value)
        assert books(manager) == before
    assert job.refresh().progress == 0


@pytest.mark.parametrize("percent", [0, 0.0, 1, 33.3, 100, 100.0])
def test_a_progress_of_0_to_100_is_kept_as_it_is(manager: QueueManager, percent: float) -> None:
    """B127: a progress of 0 is a value like any other."""
    job = held(manager)
    manager.update_progress(job, percent)
    assert manager.get_job(job.id).progress == percent


@pytest.mark.parametrize("message", [5, b"x", ["x"], True])
def test_a_progress_message_is_text(manager: QueueManager, message: Any) -> None:
    job = held(manager)
    with pytest.raises(ValidationError, match="message"):
        manager.update_progress(job, 5, message)
    assert manager.get_job(job.id).progress == 0


@pytest.mark.parametrize("job", [None, 5, b"x", ["x"], True, 1.5])
def test_what_is_no_job_and_no_id_is_refused_by_every_verb(manager: QueueManager, job: Any) -> None:
    for refuse in (
        lambda: manager.ack(job),
        lambda: manager.ack_batch([Ack(job)]),
        lambda: manager.fail(job, "no"),
        lambda: manager.release(job),
        lambda: manager.heartbeat(job),
        lambda: manager.heartbeat_batch([job]),
        lambda: manager.extend_lock(job, 5),
        lambda: manager.update_progress(job, 5),
        lambda: manager.get_state(job),
        lambda: manager.get_result(job),
        lambda: manager.wait_for(job),
        lambda: manager.remove(job),
        lambda: manager.retry(job),
        lambda: manager.get_job(job),
    ):
        with pytest.raises(ValidationError, match="job"):
            refuse()


def test_a_misplaced_keyword_of_a_constructor_is_a_type_error_naming_it() -> None:
    """B124: limiters, timeouts, retention given in the wrong place."""
    with pytest.raises(TypeError, match="keep_completed"):
        QueueManager(keep_completed=5)
    with (
        QueueManager(background=False) as manager,
        pytest.raises(TypeError, match="attempts"),
    ):
        Queue("mail", manager, attempts=5)
