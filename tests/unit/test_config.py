"""A manager's settings are checked when they are made, and never change."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    JsonSerializer,
    ManagerConfig,
    MemoryStorage,
    PickleSerializer,
    QueueManager,
    ValidationError,
)
from bunqueue_py.testing import VirtualClock

MIB = 1024 * 1024
BOUNDS = {
    "max_data_bytes": (1, 1024 * MIB),
    "keep_completed": (0, 100_000_000),
    "max_completed_bytes": (0, 1 << 50),
    "keep_results": (0, 100_000_000),
    "shards": (1, 64),
}
NO_INTS = [True, False, 1.0, 5.5, "5", b"5", math.nan, math.inf, -math.inf, 1e300, [], {}, object()]


def test_the_defaults_are_the_documented_ones() -> None:
    config = ManagerConfig()
    assert isinstance(config.serializer, JsonSerializer)
    assert config.max_data_bytes == 10 * MIB
    assert config.keep_completed == 50_000
    assert config.max_completed_bytes == 256 * MIB
    assert config.keep_results == 10_000
    assert config.shards is None


@pytest.mark.parametrize("field", BOUNDS)
def test_each_bound_itself_is_accepted(field: str) -> None:
    for value in BOUNDS[field]:
        assert getattr(ManagerConfig(**{field: value}), field) == value


@pytest.mark.parametrize("field", BOUNDS)
def test_one_past_each_bound_is_refused_and_field_value_and_bounds_are_named(field: str) -> None:
    low, high = BOUNDS[field]
    for value in (low - 1, high + 1, -(10**30), 10**30):
        with pytest.raises(ValidationError, match=field) as caught:
            ManagerConfig(**{field: value})
        assert str(value) in str(caught.value)
        assert f"{low:,} to {high:,}" in str(caught.value)


@pytest.mark.parametrize("field", BOUNDS)
@pytest.mark.parametrize("value", NO_INTS)
def test_what_is_no_int_is_refused_and_the_field_named(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        ManagerConfig(**{field: value})


@pytest.mark.parametrize("field", sorted(set(BOUNDS) - {"keep_completed", "shards"}))
def test_none_is_refused_where_it_means_nothing(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        ManagerConfig(**{field: None})


def test_none_means_without_bound_for_completed_jobs_and_the_cpu_count_for_shards() -> None:
    config = ManagerConfig(keep_completed=None, shards=None)
    assert config.keep_completed is None
    assert config.shards is None


@pytest.mark.parametrize("shards", sorted(set(range(1, 65)) - {1, 2, 4, 8, 16, 32, 64}))
def test_shards_that_are_no_power_of_two_are_refused(shards: int) -> None:
    with pytest.raises(ValidationError, match="power of two"):
        ManagerConfig(shards=shards)


@pytest.mark.parametrize("shards", [1, 2, 4, 8, 16, 32, 64])
def test_a_manager_has_the_shards_it_was_told_to_have(shards: int) -> None:
    assert ManagerConfig(shards=shards).shard_count() == shards
    config = ManagerConfig(shards=shards)
    with QueueManager(config=config, clock=VirtualClock(), background=False) as manager:
        assert len(manager._state.shards.shards) == shards
        for n in range(20):
            manager.push(f"queue{n}", n)
        assert [manager.pull(f"queue{n}").data for n in range(20)] == list(range(20))


@pytest.mark.parametrize(
    ("cpus", "shards"), [(None, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (48, 64), (500, 64)]
)
def test_without_a_number_there_are_as_many_shards_as_the_next_power_of_two_of_the_cpus(
    monkeypatch: pytest.MonkeyPatch, cpus: int | None, shards: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    assert ManagerConfig().shard_count() == shards


@pytest.mark.parametrize(
    "field", ["keep_complete", "max_data", "Shards", "durable", "attempts", "storage"]
)
def test_an_unknown_field_is_a_type_error_naming_it(field: str) -> None:
    """B124."""
    with pytest.raises(TypeError, match=field):
        ManagerConfig(**{field: 5})


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ManagerConfig)])
def test_a_config_is_frozen(field: str) -> None:
    config = ManagerConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, field, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(config, field)


def test_a_changed_copy_of_a_config_is_checked_too() -> None:
    config = ManagerConfig(keep_results=5)
    assert dataclasses.replace(config, shards=4).keep_results == 5
    with pytest.raises(ValidationError, match="shards"):
        dataclasses.replace(config, shards=3)


class Half:
    name = "half"

    def dumps(self, value: object) -> bytes:
        return b""


@pytest.mark.parametrize("serializer", [None, "json", 5, object(), Half(), JsonSerializer])
def test_what_is_no_serializer_is_refused_and_what_is_missing_named(serializer: Any) -> None:
    with pytest.raises(ValidationError, match="serializer"):
        ManagerConfig(serializer=serializer)


def test_a_half_serializer_is_told_what_it_lacks() -> None:
    with pytest.raises(ValidationError, match="no loads"):
        ManagerConfig(serializer=Half())


@pytest.mark.parametrize("name", [None, "", 5, b"x", "a\0b", "\ud83d", "x" * 257, object()])
def test_a_serializer_has_a_name_that_a_file_can_remember(name: Any) -> None:
    class Named(Half):
        def loads(self, data: bytes) -> object:
            return data

    named = Named()
    named.name = name
    with pytest.raises(ValidationError, match="serializer's name"):
        ManagerConfig(serializer=named)


@pytest.mark.parametrize("serializer", [JsonSerializer(), PickleSerializer(allow_unsafe=True)])
def test_the_serializers_of_the_library_serve(serializer: Any) -> None:
    assert ManagerConfig(serializer=serializer).serializer is serializer


def test_two_configs_do_not_share_a_serializer() -> None:
    assert ManagerConfig().serializer is not ManagerConfig().serializer


@pytest.mark.parametrize("config", [{}, {"shards": 4}, 5, "x", ManagerConfig, True])
def test_a_manager_takes_a_config_and_nothing_else(config: Any) -> None:
    with pytest.raises(ValidationError, match="config"):
        QueueManager(config=config, background=False)


@pytest.mark.parametrize("storage", [":memory:", b"x", 5, True, MemoryStorage, object()])
def test_a_manager_refuses_what_is_no_storage(storage: Any) -> None:
    with pytest.raises(ValidationError, match="storage"):
        QueueManager(storage, background=False)


@pytest.mark.parametrize("background", [None, 0, 1, "yes"])
def test_background_is_true_or_false(background: Any) -> None:
    with pytest.raises(ValidationError, match="background"):
        QueueManager(background=background)


@pytest.mark.parametrize("clock", [0, 5, "", [], object()])
def test_a_clock_is_one_or_absent(clock: Any, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="clock must be a Clock"):
        QueueManager(background=False, clock=clock)
    QueueManager(tmp_path / "jobs.db", background=False).close()
    with pytest.raises(ValidationError, match="clock must be a Clock"):
        QueueManager.open_readonly(tmp_path / "jobs.db", clock=clock)


def test_memory_storage_and_none_are_the_same() -> None:
    for storage in (None, MemoryStorage()):
        with QueueManager(storage, background=False) as manager:
            manager.push("mail", 1)
            assert manager.pull("mail").data == 1
