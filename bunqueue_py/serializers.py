"""How payloads, results and progress become bytes, and come back as they went in.

`JsonSerializer.dumps` has two roads. What is plain JSON already, found out by one flat pass over
exact types, goes to the C encoder as it is. Anything else, and anything the encoder refuses, goes
through the walk of `_json_tags`, which tags it or says where the fault is. The first byte tells
the two apart: tagged output begins with one space.
"""

from __future__ import annotations

import json
import json.encoder
import pickle
from collections.abc import Callable, Iterable
from enum import Enum
from types import BuiltinFunctionType
from typing import Any, Final, NoReturn, Protocol, TypeVar

from bunqueue_py._json_tags import MAX_DEPTH, Tags, a_type, shown
from bunqueue_py.errors import SerializationError, ValidationError

__all__ = ["MAX_DEPTH", "JsonSerializer", "PickleSerializer", "Serializer"]

_Class = TypeVar("_Class", bound=type)

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_PICKLE_PROTOCOL: Final = 5
_OUT_OF_STACK: Final = (
    "Ran out of Python's stack: the value is nested too deeply for the depth of the call."
)


class Serializer(Protocol):
    """Anything with a name, `dumps` and `loads` serves as one."""

    @property
    def name(self) -> str:
        """The name a database file remembers; another one at open is refused."""

    def dumps(self, value: object) -> bytes:
        """Return `value` as bytes that `loads` turns back into an equal value."""

    def loads(self, data: bytes) -> Any:
        """Return a new value, sharing no mutable object with any other."""


class JsonSerializer:
    """JSON, and each value comes back with the type it had, or is refused when stored.

    Kept as they are, nested in any way: `None`, `bool`, `int`, `float`, `str`, `list`,
    `dict` with `str` keys, `tuple`, `set`, `frozenset`, `bytes`, `datetime`,
    `date`, `time`, `timedelta`, `Decimal`, `UUID`, and what `register` declared.
    A time zone comes back as the `ZoneInfo` it was; any other kind as its UTC offset.

    >>> serializer = JsonSerializer()
    >>> serializer.dumps({"to": "ada@example.com", "n": 3})
    b'{"to":"ada@example.com","n":3}'
    >>> serializer.loads(serializer.dumps({"size": (3, 4), "seen": {b"x"}}))
    {'size': (3, 4), 'seen': {b'x'}}
    """

    __slots__ = ("_encode", "_tags")

    name: Final = "json"

    def __init__(self) -> None:
        self._encode = _make_encode()
        self._tags = Tags()

    def register(self, cls: _Class) -> _Class:
        """Members or instances of `cls` are kept from now on; returns `cls`, to decorate with.

        They are stored under the class's module and qualified name, enum members by their name,
        dataclass instances by their fields. Loading does not run `__init__`; a field added since
        takes its default.

        Raises:
            ValidationError: not an `Enum` or a dataclass, or its name is taken.
        """
        _check_registrable(cls)
        self._tags.declare(cls)
        return cls

    def registered(self) -> list[str]:
        """The paths of the classes that were registered, `module:qualified.name`."""
        return [f"{cls.__module__}:{cls.__qualname__}" for cls in self._tags._names]

    def dumps(self, value: Any) -> bytes:
        """Return `value` as JSON in UTF-8.

        Raises:
            SerializationError: a part of it would not come back as it is, its containers are
                nested more than 500 deep, or it is a cycle; `path` says where.
        """
        encode = self._encode
        try:
            # A flat dict is the usual payload: spelled out, it saves a call that costs as much.
            # Reading by key is faster here than items(), which makes a tuple of each pair.
            if type(value) is dict:
                for key in value:
                    if type(key) is not str or type(value[key]) not in _SCALARS:
                        break
                else:
                    return "".join(encode(value, 0)).encode()
            if type(value) in _SCALARS or _is_plain(value):
                return "".join(encode(value, 0)).encode()
        except (ValueError, TypeError, RuntimeError, KeyError):
            pass  # the walk below finds the place; outside this block, so as to leave no context
        return self._dumps_tagged(value)

    def loads(self, data: bytes) -> Any:
        """Return the value `data` was made of. Nothing is imported or evaluated.

        Raises:
            SerializationError: malformed data, or a class that is not registered.
        """
        text = ""
        try:
            text = data.decode()
            value, end = _scan(text, 0)
            if end == len(text):
                return value
        except StopIteration:
            if text[:1] != " ":
                _malformed("it is not JSON")
        except (ValueError, RecursionError) as fault:
            _malformed(fault)
        return self._loads_tagged(text)

    def _dumps_tagged(self, value: object) -> bytes:
        try:
            tree = self._tags.encode(value)
            return f" {''.join(self._encode(tree, 0))}".encode()
        except RecursionError as fault:
            raise SerializationError(_OUT_OF_STACK) from fault

    def _loads_tagged(self, text: str) -> Any:
        try:
            if text[:1] == " ":
                tree, end = _scan(text, 1)
                if end == len(text):
                    return self._tags.decode(tree)
        except (StopIteration, ValueError, RecursionError) as fault:
            if isinstance(fault, SerializationError):
                raise
            _malformed(fault)
        _malformed("there is more after its end")


class PickleSerializer:
    """Pickle, for those who alone can write to the database: loading runs code in the data.

    >>> serializer = PickleSerializer(allow_unsafe=True)
    >>> serializer.loads(serializer.dumps({1: 2j}))
    {1: 2j}
    """

    __slots__ = ()

    name: Final = "pickle"

    def __init__(self, *, allow_unsafe: bool) -> None:
        """Raises `ValidationError` unless `allow_unsafe` is `True`."""
        if allow_unsafe is not True:
            raise ValidationError(
                "Pickle is unsafe: whoever can write to the database can run any code in the "
                "process that reads it. Use JsonSerializer, or accept the risk with "
                f"PickleSerializer(allow_unsafe=True); allow_unsafe was {allow_unsafe!r}."
            )

    def dumps(self, value: object) -> bytes:
        """Return `value` pickled, in a protocol that Python 3.10 reads.

        Raises:
            SerializationError: pickle refuses it; its error is the `__cause__`.
        """
        try:
            return pickle.dumps(value, _PICKLE_PROTOCOL)
        except Exception as fault:  # __reduce__ and the like are code of the user's
            raise SerializationError(
                f"Cannot pickle a value of the type {type(value).__qualname__} "
                f"({type(fault).__name__}: {shown(str(fault))})."
            ) from fault

    def loads(self, data: bytes) -> Any:
        """Return the value `data` was made of, running what code it holds.

        Raises:
            SerializationError: pickle refuses it; its error is the `__cause__`.
        """
        try:
            return pickle.loads(data)
        except Exception as fault:  # unpickling runs code of the user's
            raise SerializationError(
                f"The payload cannot be unpickled ({type(fault).__name__}: {shown(str(fault))})."
            ) from fault


def _check_registrable(cls: object) -> None:
    if isinstance(cls, type) and issubclass(cls, Enum):
        return
    if not isinstance(cls, type) or "__dataclass_fields__" not in vars(cls):
        shown = cls.__qualname__ if isinstance(cls, type) else a_type(type(cls))
        raise ValidationError(
            f"Only Enum classes and dataclasses can be registered, not {shown}. If it is to be a "
            "dataclass, put @register above @dataclass."
        )
    for base in cls.__mro__[:-1]:
        # A __new__ written in C means state of its own that the fields do not show.
        if isinstance(vars(base).get("__new__"), BuiltinFunctionType):
            raise ValidationError(
                f"{cls.__qualname__} cannot be registered: what it inherits from "
                f"{base.__qualname__} is not in its fields and would be lost."
            )


def _is_plain(value: object) -> bool:
    """Whether `value` is JSON as it stands, at most `MAX_DEPTH` deep.

    Goes level by level, each container once a level: a cycle ends at the bound, however many ways
    lead around it. A lone surrogate, NaN or a huge integer is left to the encoder.
    """
    if type(value) not in (dict, list):
        return False
    level: Iterable[Any] = (value,)
    for _ in range(MAX_DEPTH):
        below: dict[int, Any] = {}
        for container in level:
            if type(container) is dict:
                for key, item in container.items():
                    if type(key) is not str:
                        return False
                    if type(item) not in _SCALARS:
                        if type(item) is not dict and type(item) is not list:
                            return False
                        below[id(item)] = item
            else:
                for item in container:
                    if type(item) not in _SCALARS:
                        if type(item) is not dict and type(item) is not list:
                            return False
                        below[id(item)] = item
        if not below:
            return True
        level = below.values()
    return False


def _make_encode() -> Callable[[Any, int], Iterable[str]]:
    """Return the C encoder without the wrapping `json.dumps` pays for on each call."""
    make = getattr(json.encoder, "c_make_encoder", None)
    quote = getattr(json.encoder, "c_encode_basestring", None)
    if make is None or quote is None:  # an interpreter without the C accelerator
        encoder = json.JSONEncoder(
            ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
        )
        return lambda value, _: (encoder.encode(value),)
    # markers, default, encoder, indent, key_separator, item_separator, sort_keys, skipkeys,
    # allow_nan. No markers: the walk has found the cycles.
    encode: Callable[[Any, int], Iterable[str]] = make(
        None, _no_default, quote, None, ":", ",", False, False, False
    )
    return encode


def _no_default(value: object) -> NoReturn:
    # Reached only if another thread changes the value between the check and the encoding.
    raise TypeError(f"{type(value).__qualname__} is not JSON")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _malformed(why: str | Exception) -> NoReturn:
    cause = why if isinstance(why, Exception) else None
    detail = "it is nested too deeply" if isinstance(why, RecursionError) else shown(str(why))
    raise SerializationError(f"The payload cannot be read: {detail}.") from cause


_decoder: Any = json.JSONDecoder(parse_constant=_no_constant)
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _decoder.scan_once
