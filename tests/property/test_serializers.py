"""Any value that `JsonSerializer` takes comes back the same; any other is refused at its place."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, fields
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue_py.errors import SerializationError
from bunqueue_py.serializers import JsonSerializer

serializer = JsonSerializer()


@serializer.register
class Suit(enum.Enum):
    HEARTS = "h"
    SPADES = ("s", 4)


@serializer.register
class Mode(enum.IntFlag):
    R = 4
    W = 2


@serializer.register
@dataclass(frozen=True)
class Card:
    suit: Any
    rank: Any = None


@serializer.register
@dataclass
class Hand:
    cards: Any


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, type by type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (set, frozenset)):
        return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)
    if isinstance(one, (Card, Hand)):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, (datetime, time)):
        offsets = one.utcoffset(), other.utcoffset()
        return one == other and offsets[0] == offsets[1] and repr(one) == repr(other)
    if isinstance(one, (float, Decimal)):  # 0.0 is not -0.0, nor 1.0 1.00
        return repr(one) == repr(other)
    return bool(one == other)


offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23))
zones = st.none() | st.timezones() | offsets.map(timezone) | st.just(timezone.utc)
plain_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["list", "tuple", "enum", "dataclass", " "])
)
scalars = (
    plain_scalars
    | st.datetimes(timezones=zones)
    | st.dates()
    | st.times(timezones=zones)
    | st.timedeltas()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.binary()
    | st.sampled_from(Suit)
    | st.sampled_from([Mode(0), Mode.R, Mode.W, Mode.R | Mode.W])
)
hashables = st.recursive(
    scalars,
    lambda inner: (
        st.frozensets(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.builds(Card, inner, inner)
    ),
    max_leaves=6,
)
plain = st.recursive(
    plain_scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
values = st.recursive(
    hashables | st.sets(hashables, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.builds(Hand, inner)
    ),
    max_leaves=10,
)


@given(values)
def test_every_value_comes_back_exactly(value: Any) -> None:
    data = serializer.dumps(value)
    json.loads(data)
    assert same(serializer.loads(data), value)


@given(plain)
def test_plain_values_are_written_as_compact_json(value: Any) -> None:
    data = serializer.dumps(value)
    assert data.decode() == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert same(serializer.loads(data), value)


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[Any, str]:
    """A value with one part that cannot be kept, and the path to that part."""
    value: Any = draw(
        st.sampled_from([float("nan"), float("-inf"), Decimal("NaN"), "\udc00", 1j, object()])
    )
    path = ""
    for wrap in draw(st.lists(st.sampled_from(["list", "tuple", "dict", "Hand"]), max_size=8)):
        before = draw(st.lists(scalars, max_size=2))
        if wrap == "list":
            value, path = [*before, value, 1], f"[{len(before)}]{path}"
        elif wrap == "tuple":
            value, path = (*before, value), f"[{len(before)}]{path}"
        elif wrap == "Hand":
            value, path = Hand(value), f".cards{path}"
        else:
            key = draw(st.text())
            step = f".{key}" if key.isidentifier() else f"[{json.dumps(key)}]"
            value, path = {f"{key}_": before, key: value}, step + path
    return value, f"${path}"


@given(spoiled())
def test_what_json_refuses_is_refused_with_a_path(case: tuple[Any, str]) -> None:
    """B068, B071, B077: decided when it is stored, and the place is named."""
    value, path = case
    with pytest.raises(SerializationError) as caught:
        serializer.dumps(value)
    assert caught.value.path == path
    str(caught.value).encode()


names = [f"{cls.__module__}.{cls.__qualname__}" for cls in (Suit, Mode, Card, Hand)]
tags = ["list", "tuple", "set", "frozenset", "datetime", "date", "time", "timedelta", "decimal"]
words = st.sampled_from(
    [*tags, "uuid", "bytes", "enum", "dataclass", *names, "HEARTS", "suit", "rank", "cards"]
)
wire = st.recursive(
    words | plain_scalars,
    lambda inner: (
        st.tuples(words, st.lists(inner, max_size=4)).map(lambda t: [t[0], *t[1]])
        | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.binary() | wire.map(lambda tree: f" {json.dumps(tree)}".encode()))
def test_whatever_bytes_are_read_the_only_error_is_ours(data: bytes) -> None:
    try:
        serializer.loads(data)
    except SerializationError as fault:
        str(fault).encode()
