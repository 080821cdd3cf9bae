"""The tagged form of JSON: what JSON lacks, written as arrays that begin with a tag.

In a tagged payload every array begins with one (a plain list with `"list"`), so no data of a
user's can be mistaken for a tag, and one level of theirs costs one level of JSON. Both walks keep
their own stack: nesting never becomes recursion.
"""

from __future__ import annotations

import dataclasses
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from functools import cached_property, partial
from inspect import getattr_static
from itertools import repeat
from math import isfinite
from typing import Any, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from bunqueue_py.errors import SerializationError, ValidationError

MAX_DEPTH = 500
"""The most containers a value may have inside one another."""

_MICROSECOND = timedelta(microseconds=1)
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_COPYABLE = (str, int, float, dict, list, tuple, set, frozenset, bytes, Decimal)


class _Refusal(Exception):
    """Why a value cannot be stored; the walk adds where it is."""


class _Open:
    """A container the walk is inside of: what is left of it and what was made of it."""

    __slots__ = ("items", "key", "out", "source")

    def __init__(self, source: Any, items: Iterator[tuple[Any, Any]], out: Any) -> None:
        self.source = source
        self.items = items
        self.out = out
        self.key: Any = None

    def put(self, wire: Any) -> None:
        """The encoded form of the current item stands in this container's encoded form."""
        if type(self.source) is dict:
            self.out[self.key] = wire
            return
        if type(self.source) not in _SEQUENCES:
            self.out.append(self.key)
        self.out.append(wire)

    def step(self) -> str:
        """Return the part of a path that leads to the current item."""
        kind = type(self.source)
        if kind is list or kind is tuple:
            return f"[{self.key}]"
        if kind is set or kind is frozenset:
            return "{*}"
        return _step_to_key(self.key)


class Tags:
    """The classes declared to one serializer, and the walks to the tagged form and back."""

    __slots__ = ("_classes", "_names")

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}
        self._names: dict[type, str] = {}

    def declare(self, cls: type) -> None:
        """Instances of `cls` are kept from now on, under its module and qualified name."""
        name = f"{cls.__module__}.{cls.__qualname__}"
        if self._classes.setdefault(name, cls) is not cls:
            raise ValidationError(
                f"Another class is registered as {name}; stored data could not tell the two "
                "apart. Give one of them another name."
            )
        self._names[cls] = name

    def encode(self, value: object) -> Any:
        """Return `value` as a tree for the JSON encoder, copied throughout.

        Raises:
            SerializationError: a part of it cannot be kept; `path` says which.
        """
        out: list[Any] = []
        stack = [_Open([value], iter([(0, value)]), out)]
        inside: set[int] = set()
        while stack:
            top = stack[-1]
            try:
                opened = self._advance(top)
                if opened is None:
                    inside.discard(id(top.source))
                    stack.pop()
                    continue
                if id(opened.source) in inside:
                    depth = next(i for i, o in enumerate(stack) if o.source is opened.source)
                    raise _Refusal(
                        f"it is a cycle, the same object as {shown(_path(stack[:depth]))}. "
                        "Break it, for example by storing an id in its place."
                    )
                if len(stack) > MAX_DEPTH:
                    raise _Refusal(
                        f"it is nested more than {MAX_DEPTH} levels deep. Flatten it, for "
                        "example into a list of entries that refer to each other by id."
                    )
            except _Refusal as refusal:
                _refuse(stack, str(refusal), refusal.__cause__)
            except (RecursionError, MemoryError):
                raise
            except Exception as fault:  # a tzinfo, a metaclass or a property of the user's
                _refuse(stack, f"looking at it raised {type(fault).__name__}.", fault)
            top.put(opened.out)
            inside.add(id(opened.source))
            stack.append(opened)
        return out[0]

    def decode(self, tree: Any) -> Any:
        """Return the value `encode` made `tree` of; `tree` is used up.

        Raises:
            SerializationError: no registered class or known tag fits.
        """
        holder = [tree]
        arrays: list[tuple[Any, Any]] = []
        pending: list[tuple[Any, Any]] = [(holder, 0)]
        while pending:
            parent, key = pending.pop()
            node = parent[key]
            if type(node) is dict:
                pending.extend((node, k) for k, v in node.items() if type(v) in (dict, list))
            elif type(node) is list:
                arrays.append((parent, key))
                pending.extend((node, i) for i, v in enumerate(node) if type(v) in (dict, list))
        for parent, key in reversed(arrays):  # a parent was met before what is inside it
            parent[key] = self._build(parent[key])
        return holder[0]

    def _advance(self, top: _Open) -> _Open | None:
        """Copy scalars up to the next container inside `top`; `None` when there is none."""
        for key, child in top.items:
            top.key = key
            if type(top.source) is dict:
                _check_key(key)
            kind = type(child)
            leaf = _LEAVES.get(kind)
            if leaf is not None:
                top.put(leaf(child))
            elif kind is dict:
                return _Open(child, iter(child.items()), {})
            elif kind is list or kind is tuple:
                return _Open(child, enumerate(child), [_SEQUENCES[kind]])
            elif kind is set or kind is frozenset:
                return _Open(child, zip(repeat(None), child), [_SEQUENCES[kind]])
            elif kind not in self._names:
                raise _Refusal(
                    f"a value of {a_type(kind)} would not come back as it is. {_advice(kind)}"
                )
            elif issubclass(kind, Enum):
                top.put(["enum", self._names[kind], _member_key(child)])
            else:
                return _Open(child, _stored_fields(child), ["dataclass", self._names[kind]])
        return None

    def _build(self, node: list[Any]) -> Any:
        """Return what one tagged array stands for, its items having been built before."""
        tag = node[0] if node else None
        try:
            if tag == "enum":
                return _member(self._class(node[1], Enum), node[2])
            if tag == "dataclass":
                return _instance(self._class(node[1], object), node)
            if type(tag) is str and tag in _BUILDERS:
                return _BUILDERS[tag](*node[1:])
        except (SerializationError, RecursionError, MemoryError):
            raise
        except Exception as fault:  # malformed parts, or a __hash__ or default of the user's
            raise SerializationError(
                f"The payload cannot be read: its {tag} is malformed ({type(fault).__name__}: "
                f"{shown(str(fault))})."
            ) from fault
        raise SerializationError(
            f"The payload cannot be read: {shown(repr(tag))} is no tag this version knows. "
            "Was it written by another serializer, or by a newer version?"
        )

    def _class(self, name: str, base: type) -> type:
        cls = self._classes.get(name)
        if cls is None or issubclass(cls, Enum) is not (base is Enum):
            raise SerializationError(
                f"The payload holds {shown(str(name))}, which is not registered. Declare the "
                "class with serializer.register before reading."
            )
        return cls


def _refuse(stack: list[_Open], reason: str, cause: BaseException | None) -> NoReturn:
    path = _path(stack)
    raise SerializationError(f"Cannot store {shown(path)}: {reason}", path=path) from cause


def _path(stack: list[_Open]) -> str:
    return "$" + "".join(opened.step() for opened in stack[1:])


def shown(text: str) -> str:
    """Return `text` fit for a message: bounded, and valid Unicode whatever the data was."""
    if len(text) > 200:
        text = f"{text[:120]} ... {text[-60:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _step_to_key(key: object) -> str:
    if type(key) is str:
        return f".{key}" if key.isidentifier() else f"[{json.dumps(key)}]"
    short = key is None or (isinstance(key, (int, float)) and -1e9 < key < 1e9)
    return f"[{key!r}]" if short else f"[<{type(key).__qualname__}>]"


def a_type(kind: type) -> str:
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"the type {module}{kind.__qualname__}"


def _advice(kind: type) -> str:
    if issubclass(kind, Enum) or "__dataclass_fields__" in vars(kind):
        return f"Declare it with serializer.register({kind.__name__})."
    if issubclass(kind, (bytearray, memoryview)):
        return "Convert it with bytes(...)."
    for base in _COPYABLE:
        if issubclass(kind, base):
            return f"Convert it with {base.__name__}(...)."
    return "Convert it to JSON types or a registered dataclass, or store what it is found by."


def _check_key(key: object) -> None:
    if type(key) is not str:
        raise _Refusal(f"the key has {a_type(type(key))}. Convert it with str(...).")
    _text(key, "key")


def _text(value: str, what: str = "text") -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as fault:
            raise _Refusal(
                f"the {what} has a lone surrogate at index {fault.start}, which is no Unicode "
                "character. Remove it, or store bytes."
            ) from fault
    return value


def _integer(value: int) -> int:
    if value.bit_length() > 2000:  # Python refuses nothing below 640 digits
        try:
            repr(value)
        except ValueError as fault:
            raise _Refusal(
                "the integer has more digits than Python turns into text "
                "(sys.set_int_max_str_digits). Store it as bytes."
            ) from fault
    return value


def _float(value: float) -> float:
    if not isfinite(value):
        raise _Refusal(f"{value!r} is not a JSON number. Store None or a text in its place.")
    return value


def _decimal(value: Decimal) -> list[Any]:
    if not value.is_finite():
        raise _Refusal(f"Decimal {value} is not a number. Store None or a text in its place.")
    return ["decimal", str(value)]


def _zone(value: datetime | time) -> list[Any]:
    """Return a zone's key, or an offset in microseconds and the name given to it if any."""
    zone = value.tzinfo
    if zone is None:
        return []
    if type(zone) is ZoneInfo and zone.key:
        return [zone.key]
    offset = value.utcoffset()
    if offset is None:
        raise _Refusal("its time zone has no UTC offset. Use a datetime.timezone or a ZoneInfo.")
    name = zone.tzname(None) if type(zone) is timezone else None
    if name is None or name == timezone(offset).tzname(None):
        return [offset // _MICROSECOND]
    return [offset // _MICROSECOND, _text(name)]


def _moment(kind: Any, text: str, fold: int, *zone: Any) -> Any:
    info: tzinfo | None = None
    if zone:
        named = type(zone[0]) is str
        info = ZoneInfo(zone[0]) if named else timezone(zone[0] * _MICROSECOND, *zone[1:])
    return kind.fromisoformat(text).replace(fold=fold, tzinfo=info)


def _member_key(member: Any) -> Any:
    """Return a member's name, or the value of a combination of flags, which has none."""
    if type(member).__members__.get(member._name_) is member:
        return _text(member._name_)
    if isinstance(member, Flag):
        return int(member._value_)
    raise _Refusal(f"it is not among the members of {type(member).__qualname__}. Use one of them.")


def _member(cls: Any, key: Any) -> Any:
    if type(key) is int and issubclass(cls, Flag):
        return cls(key)
    return cls.__members__[key]


def _stored_fields(value: Any) -> Iterator[tuple[str, Any]]:
    names = [field.name for field in dataclasses.fields(value)]
    for extra in getattr(value, "__dict__", {}):
        if extra not in names and not isinstance(
            getattr_static(type(value), extra, None), cached_property
        ):
            raise _Refusal(f"its attribute {extra!a} is no field and would be lost.")
    try:
        return iter([(name, getattr(value, name)) for name in names])
    except AttributeError as fault:
        raise _Refusal(f"a field of it has no value ({shown(str(fault))}).") from fault


def _instance(cls: Any, node: list[Any]) -> Any:
    """Return an instance of `cls` with the stored fields; its `__init__` does not run."""
    stored = dict(zip(node[2::2], node[3::2], strict=True))
    missing = []
    known = {field.name: field for field in dataclasses.fields(cls)}
    for name, field in known.items():
        if name in stored:
            continue
        if field.default is not dataclasses.MISSING:
            stored[name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            stored[name] = field.default_factory()
        else:
            missing.append(name)
    gone = [name for name in stored if name not in known]
    if gone or missing:
        raise SerializationError(
            f"The payload holds a {cls.__qualname__} of another shape. Fields that no longer "
            f"exist: {shown(repr(gone))}; without a value or default: {shown(repr(missing))}."
        )
    instance = object.__new__(cls)
    for name, item in stored.items():
        object.__setattr__(instance, name, item)
    return instance


def _distinct(kind: Callable[[Any], Any], *items: Any) -> Any:
    built = kind(items)
    if len(built) != len(items):
        raise ValueError("some of its elements are equal")
    return built


_LEAVES: dict[type, Callable[[Any], Any]] = {
    type(None): lambda v: v,
    bool: lambda v: v,
    str: _text,
    int: _integer,
    float: _float,
    datetime: lambda v: ["datetime", v.replace(tzinfo=None).isoformat(), v.fold, *_zone(v)],
    date: lambda v: ["date", v.isoformat()],
    time: lambda v: ["time", v.replace(tzinfo=None).isoformat(), v.fold, *_zone(v)],
    timedelta: lambda v: ["timedelta", v.days, v.seconds, v.microseconds],
    Decimal: _decimal,
    UUID: lambda v: ["uuid", str(v)],
    bytes: lambda v: ["bytes", b64encode(v).decode()],
}
_BUILDERS: dict[str, Callable[..., Any]] = {
    "list": lambda *items: list(items),
    "tuple": lambda *items: items,
    "set": partial(_distinct, set),
    "frozenset": partial(_distinct, frozenset),
    "datetime": partial(_moment, datetime),
    "date": date.fromisoformat,
    "time": partial(_moment, time),
    "timedelta": timedelta,
    "decimal": Decimal,
    "uuid": UUID,
    "bytes": lambda text: b64decode(text, validate=True),
}
