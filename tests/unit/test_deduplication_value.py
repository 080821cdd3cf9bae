"""`Deduplication` as a value: what a dataclass would give, without being one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from bunqueue_py import Deduplication

FULL = Deduplication("k", 60, "extend", "ttl")


def test_all_but_the_key_have_their_defaults() -> None:
    made = Deduplication("k")
    assert (made.key, made.ttl, made.mode, made.hold) == ("k", None, "skip", "live")


def test_every_field_may_be_given_by_name_and_by_position() -> None:
    named = Deduplication(hold="ttl", mode="extend", ttl=60, key="k")
    assert (named.key, named.ttl, named.mode, named.hold) == ("k", 60, "extend", "ttl")
    assert named == FULL


@pytest.mark.parametrize("wrong", [{}, {"key": "k", "size": 1}])
def test_a_missing_key_and_an_unknown_field_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Deduplication(**wrong)


def test_its_repr_is_the_call_that_makes_it() -> None:
    assert repr(FULL) == "Deduplication(key='k', ttl=60, mode='extend', hold='ttl')"
    assert eval(repr(FULL)) == FULL


def test_two_of_equal_fields_are_equal_and_one_in_a_set() -> None:
    same = Deduplication("k", 60, "extend", "ttl")
    assert same == FULL
    assert hash(same) == hash(FULL)
    assert {same, FULL} == {FULL}


@pytest.mark.parametrize(
    "other",
    [
        Deduplication("K", 60, "extend", "ttl"),
        Deduplication("k", 61, "extend", "ttl"),
        Deduplication("k", 60, "replace", "ttl"),
        Deduplication("k", 60, "extend", "live"),
        ("k", 60, "extend", "ttl"),
        "k",
        None,
    ],
)
def test_it_equals_nothing_that_differs_in_a_field_or_is_no_deduplication(other: object) -> None:
    assert other != FULL


@pytest.mark.parametrize("field", ["key", "ttl", "mode", "hold", "size"])
def test_it_cannot_be_changed(field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(FULL, field, "new")
    with pytest.raises(AttributeError):
        delattr(FULL, field)
    assert Deduplication("k", 60, "extend", "ttl") == FULL


@pytest.mark.parametrize(
    "how",
    [
        copy.copy,
        copy.deepcopy,
        *(
            lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol))
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
    ],
)
def test_a_copy_and_what_comes_out_of_a_pickle_are_equal(how: Callable[[Any], Any]) -> None:
    for value in (FULL, Deduplication("k", timedelta(minutes=1))):
        again = how(value)
        assert type(again) is Deduplication
        assert again == value


def test_it_can_be_matched_by_position() -> None:
    match FULL:
        case Deduplication(key, ttl, mode, hold):
            assert (key, ttl, mode, hold) == ("k", 60, "extend", "ttl")
        case _:
            raise AssertionError("it did not match")
