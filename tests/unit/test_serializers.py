"""What the serializers keep, what they refuse, and that they say where and why.

Over 400 lines because most of it is tables: what is kept, what is refused, what is unreadable.
"""

from __future__ import annotations

import collections
import enum
import json
import pickle
import threading
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, make_dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from bunqueue_py.errors import SerializationError, ValidationError
from bunqueue_py.serializers import MAX_DEPTH, JsonSerializer, PickleSerializer, Serializer

PARIS = ZoneInfo("Europe/Paris")
T = TypeVar("T")


class Colour(enum.Enum):
    RED = (255, 0, 0)
    NAMELESS = None
    ALSO_RED = RED


class Size(enum.IntEnum):
    SMALL = 1


class Right(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


@dataclass
class Order:
    items: list[Any]
    when: datetime | None = None
    total: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.total = len(self.items)

    @cached_property
    def first(self) -> Any:
        return self.items[0]


@dataclass(frozen=True)
class Point:
    __slots__ = ("x", "y")
    x: object
    y: object


@dataclass
class Box(Generic[T]):
    held: T


class Pair(NamedTuple):
    a: int
    b: int


class OwnInt(int):
    pass


class OwnStr(str):
    __slots__ = ()


class FoldingZone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=5, minutes=30)

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "IST"


class NoOffset(FoldingZone):
    def utcoffset(self, moment: datetime | None) -> Any:
        return None


class RaisingZone(FoldingZone):
    def utcoffset(self, moment: datetime | None) -> Any:
        raise LookupError("no table")


@pytest.fixture
def serializer() -> JsonSerializer:
    serializer = JsonSerializer()
    for cls in (Colour, Size, Right, Order, Point, Box):
        serializer.register(cls)
    return serializer


def refusal(value: object, serializer: Serializer | None = None) -> SerializationError:
    with pytest.raises(SerializationError) as caught:
        (serializer or JsonSerializer()).dumps(value)
    str(caught.value).encode()  # a message can always be logged
    return caught.value


def unreadable(data: bytes, serializer: Serializer | None = None) -> SerializationError:
    with pytest.raises(SerializationError) as caught:
        (serializer or JsonSerializer()).loads(data)
    str(caught.value).encode()
    return caught.value


def nested(levels: int, kind: type = list) -> Any:
    value: Any = kind()
    for _ in range(levels - 1):
        value = kind([value])
    return value


# What is kept


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -7,
        10**600,
        0.1,
        -0.0,
        "",
        'CJK 漢字, emoji 🐇, NUL \0, "quotes"',
        [],
        {},
        {"to": "ada@example.com", "n": 12345},
        {"a": [1, {"b": [None, False]}], "": {"odd key": 2.5}},
        (),
        (1, (2,), [3]),
        {1, "a", (2, 3)},
        frozenset({frozenset({b"x"})}),
        b"\x00\xff",
        date(1, 1, 1),
        datetime(2024, 2, 29, 12, 0, 0, 1),
        datetime(2024, 10, 27, 2, 30, tzinfo=timezone.utc),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, seconds=1, microseconds=5))),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
        time(23, 59, 59, 999999),
        time(1, 2, tzinfo=PARIS),
        time(1, 2, tzinfo=timezone.utc),
        timedelta(days=-1, microseconds=3),
        timedelta.max,
        Decimal("1.500"),
        Decimal("-0E-7"),
        Decimal("1E+1000"),
        UUID(int=77),
        Colour.RED,
        Colour.NAMELESS,
        Size.SMALL,
        Right.READ,
        Right.READ | Right.WRITE,
        Right(0),
        Order([(1, 2)], datetime(2024, 1, 1, tzinfo=timezone.utc)),
        {"order": [Order([Order([])])]},
        {Point(1, frozenset({Colour.RED})), Point(1, (2,))},
        Box([Box(1)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_as_it_went_in(serializer: JsonSerializer, value: object) -> None:
    again = serializer.loads(serializer.dumps(value))
    assert again == value
    assert type(again) is type(value)
    if not isinstance(value, (set, frozenset)):
        assert repr(again) == repr(value)


@pytest.mark.parametrize("fold", [0, 1])
def test_an_ambiguous_hour_keeps_its_fold_zone_and_offset(fold: int) -> None:
    value = datetime(2024, 10, 27, 2, 30, tzinfo=PARIS, fold=fold)
    again = JsonSerializer().loads(JsonSerializer().dumps(value))
    assert again == value
    assert again.fold == fold
    assert again.tzinfo is PARIS
    assert again.utcoffset() == value.utcoffset() == timedelta(hours=2 - fold)


def test_a_zone_of_another_kind_comes_back_as_its_offset() -> None:
    value = [datetime(2024, 1, 1, tzinfo=FoldingZone()), time(5, tzinfo=FoldingZone())]
    again = JsonSerializer().loads(JsonSerializer().dumps(value))
    assert again == value
    assert {type(moment.tzinfo) for moment in again} == {timezone}


@pytest.mark.parametrize(
    "value",
    [
        ["tuple", 1],
        {"datetime": "2024-01-01T00:00:00"},
        [["list"], ["enum", "os.system", "x"], ["dataclass"], [["set"]]],
        {"list": ["list", {"tuple": ["tuple"]}]},
    ],
)
def test_data_that_looks_like_a_tag_is_still_data(value: Any) -> None:
    serializer = JsonSerializer()
    assert serializer.loads(serializer.dumps(value)) == value
    mixed = {"special": (1,), "lookalike": value}
    assert serializer.loads(serializer.dumps(mixed)) == mixed


def test_plain_data_is_compact_json_and_tagged_data_json_after_one_space() -> None:
    serializer = JsonSerializer()
    assert serializer.dumps(None) == b"null"
    assert serializer.dumps({"a": [1, 2.5, "é", None]}) == '{"a":[1,2.5,"é",null]}'.encode()
    assert serializer.dumps({"a": (1, [2])}) == b' {"a":["tuple",1,["list",2]]}'


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = [1]
    for value in ({"a": shared, "b": shared}, {"a": shared, "b": (shared, [shared])}):
        assert JsonSerializer().loads(JsonSerializer().dumps(value)) == value


def test_what_was_stored_shares_nothing_with_what_was_given_or_read() -> None:
    """B073: a payload changed after the push, or by a handler, is not the stored one."""
    serializer = JsonSerializer()
    values: list[dict[str, Any]] = [{"to": ["ada"]}, {"to": ["ada"], "also": ({"x"},)}]
    for value in values:
        data = serializer.dumps(value)
        value["to"].append("eve")
        serializer.loads(data)["to"].append("mallory")
        assert serializer.loads(data)["to"] == ["ada"]


def test_an_interpreter_without_the_c_encoder_writes_the_same(
    serializer: JsonSerializer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    slow = JsonSerializer()
    for value in (None, "é", {"a": [1, 2.5, {"b": "\n"}]}, ((b"x",), "é"), nested(MAX_DEPTH)):
        assert slow.dumps(value) == serializer.dumps(value)
    assert refusal({"a": [float("inf")]}, slow).path == "$.a[0]"


def test_a_serializer_has_a_name_that_stays() -> None:
    kinds: list[Serializer] = [JsonSerializer(), PickleSerializer(allow_unsafe=True)]
    assert [kind.name for kind in kinds] == ["json", "pickle"]
    for kind in kinds:
        with pytest.raises(AttributeError):
            kind.name = "other"  # type: ignore[misc]


# What is refused


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_json_lacks_is_refused_with_its_path(number: float) -> None:
    """B077: NaN and the infinities are refused when stored, never later."""
    assert refusal(number).path == "$"
    fault = refusal({"items": [0, 1, 2, {"when": number}]})
    assert fault.path == "$.items[3].when"
    assert "$.items[3].when" in str(fault)
    assert refusal({"also": (number,)}).path == "$.also[0]"
    assert refusal([Decimal(repr(number))]).path == "$[0]"
    assert refusal([Decimal("sNaN")]).path == "$[0]"
    assert refusal({"a": {number: 1}}).path.startswith("$.a[")  # type: ignore[union-attr]


def test_a_lone_surrogate_is_refused_in_values_and_in_keys() -> None:
    """B071: text that is not Unicode never reaches a driver; B070: the message can be printed."""
    assert refusal("\ud83d").path == "$"
    assert refusal({"a": ["ok", "x\udfff"]}).path == "$.a[1]"
    assert refusal({"a": {"\ud83d": 1}}).path == '$.a["\\ud83d"]'
    assert refusal({"a": {"\ud83d": (1,)}}).path == '$.a["\\ud83d"]'
    assert refusal(("\ud83d",)).path == "$[0]"
    assert refusal(datetime(2024, 1, 1, tzinfo=timezone(timedelta(0), "\ud83d"))).path == "$"
    assert "surrogate" in str(refusal(["\ud83d"]))


@pytest.mark.parametrize(
    "value, path",
    [
        ({1: 2}, "$[1]"),
        ({"odd key": {None: 2}}, '$["odd key"][None]'),
        ([{(1, 2): 3}], "$[0][<tuple>]"),
        ([{OwnStr("a"): 3}], "$[0][<OwnStr>]"),
        ({"a": (1,), "b": {True: 3}}, "$.b[True]"),
        ({10**5000: 1}, "$[<int>]"),
    ],
)
def test_a_key_that_is_no_str_is_refused(value: object, path: str) -> None:
    fault = refusal(value)
    assert fault.path == path
    assert "str(...)" in str(fault)


@pytest.mark.parametrize(
    "value, named, way_out",
    [
        (threading.Lock(), "lock", "Convert"),
        ((n for n in [1]), "generator", "Convert"),
        (object(), "object", "Convert"),
        (lambda: None, "function", "Convert"),
        (3j, "complex", "Convert"),
        (range(3), "range", "Convert"),
        (bytearray(b"x"), "bytearray", "bytes(...)"),
        (memoryview(b"x"), "memoryview", "bytes(...)"),
        (OwnInt(1), "OwnInt", "int(...)"),
        (OwnStr("x"), "OwnStr", "str(...)"),
        (collections.OrderedDict(a=1), "collections.OrderedDict", "dict(...)"),
        (collections.Counter("a"), "collections.Counter", "dict(...)"),
        (collections.deque(), "collections.deque", "Convert"),
        (Pair(1, 2), "Pair", "tuple(...)"),
        (Colour.RED, "Colour", "serializer.register(Colour)"),
        (Size.SMALL, "Size", "serializer.register(Size)"),
        (Point(1, 2), "Point", "serializer.register(Point)"),
        (Point, "type", "Convert"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_other_type_is_refused_by_name_with_a_way_out(
    value: object, named: str, way_out: str
) -> None:
    """B068: a result that cannot be stored is named, at the door."""
    for whole, path in (
        (value, "$"),
        ({"x": [value]}, "$.x[0]"),
        ({"a": (), "odd key": (value,)}, '$["odd key"][0]'),
    ):
        fault = refusal(whole)
        assert fault.path == path
        assert named in str(fault)
        assert way_out in str(fault)


def test_paths_lead_through_dataclasses_and_sets(serializer: JsonSerializer) -> None:
    assert refusal({"o": Order([1, Order([3j])])}, serializer).path == "$.o.items[1].items[0]"
    assert refusal({"tags": {(1, 3j)}}, serializer).path == "$.tags{*}[1]"


def test_a_cycle_is_called_a_cycle(serializer: JsonSerializer) -> None:
    """B068: a value that contains itself is refused by name, not by the depth it would have."""
    looped: list[Any] = [1]
    looped.append(looped)
    fault = refusal(looped, serializer)
    assert fault.path == "$[1]"
    assert "cycle" in str(fault)
    wide: dict[str, Any] = {}
    wide["a"] = [wide, wide, wide]
    fault = refusal({"top": wide}, serializer)
    assert fault.path == "$.top.a[0]"
    assert "the same object as $.top." in str(fault)
    order = Order([])
    order.items.append((order,))
    assert "cycle" in str(refusal(order, serializer))


@pytest.mark.parametrize("kind", [list, tuple])
def test_nesting_is_kept_to_the_bound_and_refused_beyond(kind: type) -> None:
    serializer = JsonSerializer()
    deepest = nested(MAX_DEPTH, kind)
    assert serializer.loads(serializer.dumps(deepest)) == deepest
    for levels in (MAX_DEPTH + 1, 200_000):
        fault = refusal(nested(levels, kind))
        assert f"more than {MAX_DEPTH} levels" in str(fault)
        assert fault.path == "$" + "[0]" * MAX_DEPTH
        assert len(str(fault)) < 500


def test_deep_nesting_of_dicts_and_dataclasses_is_refused_too(serializer: JsonSerializer) -> None:
    value: Any = None
    for _ in range(20_000):
        value = {"down": Box(value)}
    assert f"more than {MAX_DEPTH} levels" in str(refusal(value, serializer))


def levels_left(so_far: int = 0) -> int:
    try:
        return levels_left(so_far + 1)
    except RecursionError:
        return so_far


def below(levels: int, call: Callable[[Any], Any], argument: Any) -> Any:
    return call(argument) if levels <= 0 else below(levels - 1, call, argument)


@pytest.mark.parametrize("left", [12, 15, 20, 30, 50, 100, 300])
def test_a_caller_deep_in_the_stack_gets_our_error_or_the_value(left: int) -> None:
    serializer = JsonSerializer()
    for value in (nested(400), nested(400, tuple), {"a": [{"b": (1,)}]}):
        data = serializer.dumps(value)
        for call, argument, result in (
            (serializer.dumps, value, data),
            (serializer.loads, data, value),
        ):
            try:
                given = below(levels_left() - left, call, argument)
            except SerializationError:
                continue
            assert given == result
    with pytest.raises(SerializationError):
        below(levels_left() - left, serializer.dumps, {"a": {"b": 3j}})


def test_an_integer_too_long_for_text_is_refused_with_its_path() -> None:
    for value in ({"a": [10**5000]}, {"a": [10**5000, (1,)]}):
        fault = refusal(value)
        assert fault.path == "$.a[0]"
        assert "digits" in str(fault)


def test_a_time_zone_that_gives_no_offset_is_refused() -> None:
    assert refusal([datetime(2024, 1, 1, tzinfo=NoOffset())]).path == "$[0]"
    fault = refusal([time(1, tzinfo=RaisingZone())])
    assert fault.path == "$[0]"
    assert isinstance(fault.__cause__, LookupError)


# Classes of the user's


def test_register_decorates_and_gives_the_class_back() -> None:
    serializer = JsonSerializer()

    @serializer.register
    class Local(enum.Enum):
        ONE = object()

    @serializer.register
    @dataclass(frozen=True)
    class Held:
        what: Any

    assert serializer.register(Local) is Local
    again = serializer.loads(serializer.dumps([Held(Local.ONE)]))
    assert again == [Held(Local.ONE)]
    assert again[0].what is Local.ONE


@pytest.mark.parametrize("value", [object, int, Pair, OwnStr, Exception, 3, "Order", Order([])])
def test_only_enums_and_dataclasses_can_be_registered(value: Any) -> None:
    with pytest.raises(ValidationError, match="Enum"):
        JsonSerializer().register(value)


def test_a_class_that_only_inherits_from_a_dataclass_cannot_be_registered() -> None:
    class Child(Order):
        pass

    with pytest.raises(ValidationError, match="Child"):
        JsonSerializer().register(Child)


@pytest.mark.parametrize("base", [dict, list, Exception, int])
def test_a_dataclass_with_state_beyond_its_fields_cannot_be_registered(base: type) -> None:
    with pytest.raises(ValidationError, match=base.__name__):
        JsonSerializer().register(make_dataclass("Mixed", ["a"], bases=(base,)))


def test_two_classes_of_one_name_cannot_both_be_registered() -> None:
    serializer = JsonSerializer()
    first, second = (make_dataclass("Twin", ["a"]) for _ in range(2))
    serializer.register(first)
    with pytest.raises(ValidationError, match="Twin"):
        serializer.register(second)
    assert type(serializer.loads(serializer.dumps(first(1)))) is first


def test_loading_a_dataclass_does_not_run_its_code() -> None:
    serializer = JsonSerializer()
    runs: list[str] = []

    @serializer.register
    @dataclass
    class Noisy:
        a: int
        seed: InitVar[int]
        made: int = field(init=False)

        def __post_init__(self, seed: int) -> None:
            runs.append("ran")
            self.made = seed

    data = serializer.dumps(Noisy(1, 9))
    assert serializer.loads(data).made == 9
    assert runs == ["ran"]


def test_a_dataclass_with_an_attribute_that_is_no_field_is_refused(
    serializer: JsonSerializer,
) -> None:
    order = Order([1])
    assert order.first == 1  # a cache is no data
    assert serializer.loads(serializer.dumps(order)) == order
    order.extra = 1  # type: ignore[attr-defined]
    assert "'extra'" in str(refusal([order], serializer))


def test_a_dataclass_field_without_a_value_is_refused(serializer: JsonSerializer) -> None:
    fault = refusal([object.__new__(Point)], serializer)
    assert fault.path == "$[0]"
    assert "x" in str(fault)


def test_fields_that_came_or_went_since_are_named_unless_they_have_a_default() -> None:
    def version(*fields: Any) -> JsonSerializer:
        serializer = JsonSerializer()
        serializer.register(make_dataclass("Thing", fields))
        return serializer

    name = f"{make_dataclass('Thing', []).__module__}.Thing"
    data = f' ["dataclass","{name}","a",1,"b",2]'.encode()
    assert vars(version("a", "b").loads(data)) == {"a": 1, "b": 2}
    wider = version("a", "b", ("c", int, 5), ("d", list, field(default_factory=list)))
    assert vars(wider.loads(data)) == {"a": 1, "b": 2, "c": 5, "d": []}
    assert "['b']" in str(unreadable(data, version("a")))
    assert "['c', 'd']" in str(unreadable(data, version("a", "b", "c", "d")))


def test_an_instance_of_an_enum_that_is_no_member_is_refused(serializer: JsonSerializer) -> None:
    stray = object.__new__(Colour)
    stray._name_, stray._value_ = "STRAY", 1
    assert "member" in str(refusal(stray, serializer))


def test_an_unregistered_class_in_the_data_is_refused_by_name(serializer: JsonSerializer) -> None:
    for value in (Colour.RED, [Point(1, 2)]):
        fault = unreadable(serializer.dumps(value))
        assert f"{__name__}.{type(value if value is Colour.RED else value[0]).__name__}" in str(
            fault
        )
        assert "register" in str(fault)


# What loads refuses


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"  ",
        b"{",
        b'{"a":1',
        b"[1,]",
        b"1 2",
        b"nul",
        b"[1]x",
        b"\xff",
        b'"\xed\xa0\xbd"',
        b"NaN",
        b'{"a":[-Infinity]}',
        b"1" * 5000,
        b"[" * 200_000,
        b" " + b"[" * 200_000,
        b'{"a":' * 200_000,
        b" []",
        b" [1]",
        b' [["list"]]',
        b' ["no such tag"]',
        b' ["list"',
        b' ["list"] ',
        b' ["date","tomorrow"]',
        b' ["date",["list"]]',
        b' ["date"]',
        b' ["datetime","2024-01-01",2]',
        b' ["datetime","2024-01-01",0,"No/Where"]',
        b' ["datetime","2024-01-01",0,"../../etc/passwd"]',
        b' ["datetime","2024-01-01",0,86400000000]',
        b' ["timedelta",1e300]',
        b' ["decimal","one"]',
        b' ["uuid","xyz"]',
        b' ["bytes","?"]',
        b' ["bytes",5]',
        b' ["set",["list"]]',
        b' ["set",1,1]',
        b' ["enum"]',
        b' ["enum","os.system","x"]',
        b' ["enum",["list"],"x"]',
        b' ["dataclass","builtins.object"]',
    ],
    ids=lambda data: data[:40],
)
def test_data_that_was_never_written_is_refused(data: bytes) -> None:
    assert len(str(unreadable(data))) < 500


@pytest.mark.parametrize(
    "rest",
    [
        '"enum","{}.Colour","BLUE"',
        '"enum","{}.Colour",1',
        '"enum","{}.Right",64',
        '"enum","{}.Point","x"',
        '"dataclass","{}.Colour"',
        '"dataclass","{}.Point","x"',
        '"dataclass","{}.Point","x",1,"y",2,"__class__",3',
    ],
)
def test_a_registered_class_in_the_wrong_shape_is_refused(
    serializer: JsonSerializer, rest: str
) -> None:
    unreadable(f" [{rest.format(__name__)}]".encode(), serializer)


# Pickle


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("consent", [False, None, 1, "yes", Shy()])
def test_pickle_wants_to_be_asked_for(consent: Any) -> None:
    with pytest.raises(ValidationError, match="run any code"):
        PickleSerializer(allow_unsafe=consent)


def test_pickle_keeps_what_json_refuses() -> None:
    serializer = PickleSerializer(allow_unsafe=True)
    value = {1: 2j, None: [Pair(1, 2), Colour.RED], "s": "\ud83d"}
    again = serializer.loads(serializer.dumps(value))
    assert again == value
    assert type(again[None][0]) is Pair


def test_an_error_of_pickle_is_ours_with_its_own_as_the_cause() -> None:
    serializer = PickleSerializer(allow_unsafe=True)
    assert refusal(threading.Lock(), serializer).__cause__ is not None
    assert refusal(lambda: None, serializer).__cause__ is not None
    assert isinstance(refusal(nested(200_000), serializer).__cause__, RecursionError)
    assert isinstance(unreadable(b"junk", serializer).__cause__, pickle.UnpicklingError)
    unreadable(b"", serializer)
