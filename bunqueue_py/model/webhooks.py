"""Webhooks as users see them, and the checks of what registers one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..durations import shown
from ..errors import ValidationError
from .checks import checked_choices, checked_name

WEBHOOK_EVENTS = {
    "job.pushed": "pushed",
    "job.started": "active",
    "job.completed": "completed",
    "job.failed": "failed",
    "job.progress": "progress",
    "job.stalled": "stalled",
}
"""What a webhook calls an event, and what the event bus does."""

MAX_URL = 2_048
MAX_SECRET = 1_024
MAX_HEADERS = 32
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_OURS = frozenset(
    ("host", "content-length", "content-type", "transfer-encoding", "connection", "expect")
)


@dataclass(frozen=True)
class Webhook:
    """A registered webhook. Its secret and the values of its headers are not shown.

    `queue` is `None` for all queues. `delivered` and `failed` count deliveries since the manager
    was opened (one that failed has had its three tries); after 20 that failed in a row
    (`failures_in_a_row`) `enabled` turns False by itself. `last_error` is why the last one failed.
    """

    id: str
    url: str
    events: tuple[str, ...]
    queue: str | None
    enabled: bool
    has_secret: bool
    header_names: tuple[str, ...] = ()
    delivered: int = 0
    failed: int = 0
    failures_in_a_row: int = 0
    last_error: str | None = None


@dataclass(frozen=True)
class WebhookTest:
    """What came of `webhooks.test`: the status of the answer, or the error."""

    ok: bool
    status: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Target:
    """Where a URL leads, taken apart once: what was checked is what is used."""

    scheme: str
    host: str
    port: int
    path: str


@dataclass(frozen=True)
class HookSpec:
    """What was registered. Not shown to anybody: it has the secret in it."""

    url: str
    events: tuple[str, ...]
    queue: str | None = None
    secret: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def checked_target(url: object) -> Target:
    """The parts of an http(s) URL without credentials. Raises `ValidationError`; does not look the
    host up."""
    if not isinstance(url, str) or not 1 <= len(url) <= MAX_URL:
        raise ValidationError(f"url must be text of 1 to {MAX_URL:,} characters, not {shown(url)}")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValidationError("url must be of printable ASCII without spaces and backslashes")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValidationError(f"url is not one: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValidationError(f"url must begin with http:// or https://, not {parts.scheme!r}")
    # the text after an @ would be the host for some readers, and the text before it for others
    if "@" in parts.netloc:
        raise ValidationError("url must not have credentials in it; send them in headers")
    if not host or "%" in host or port == 0:
        raise ValidationError("url must name a host, and a port of 1 to 65535 if any")
    path = parts.path or "/"
    return Target(
        parts.scheme,
        host,
        port or (443 if parts.scheme == "https" else 80),
        f"{path}?{parts.query}" if parts.query else path,
    )


def checked_hook(
    url: object,
    events: object,
    queue: str | None,
    secret: object,
    headers: object,
) -> HookSpec:
    """What is to be registered. Raises `ValidationError`, which never shows a secret."""
    checked_target(url)
    assert isinstance(url, str)
    wanted = checked_choices(events, "events", WEBHOOK_EVENTS, among=", ".join(WEBHOOK_EVENTS))
    if not wanted:
        raise ValidationError("events must name at least one")
    if secret is not None and (not isinstance(secret, str) or not 1 <= len(secret) <= MAX_SECRET):
        raise ValidationError(f"secret must be text of 1 to {MAX_SECRET:,} characters")
    if secret is not None:
        _checked_text(secret, "secret")
    known = tuple(name for name in WEBHOOK_EVENTS if name in wanted)
    return HookSpec(url, known, queue, secret, _headers(headers))


def _checked_text(text: str, option: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"{option} must be valid text") from None


def _headers(given: Any) -> tuple[tuple[str, str], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ValidationError("headers must be a mapping of names to values")
    if len(given) > MAX_HEADERS:
        raise ValidationError(f"headers may be at most {MAX_HEADERS}, not {len(given)}")
    found = []
    for name, value in given.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ValidationError(f"headers: {shown(name)} cannot be the name of one")
        if name.lower() in _OURS or name.lower().startswith("x-webhook-"):
            raise ValidationError(f"headers: {name} is set by the sender itself")
        right = isinstance(value, str) and len(value) <= 4_096
        if not right or not value.isascii() or not (value.isprintable() or value == ""):
            raise ValidationError(f"headers: the value of {name} must be printable ASCII text")
        found.append((name, value))
    return tuple(found)


_LOCAL_TRANSLATION = ipaddress.IPv6Network("64:ff9b:1::/48")
_EMBEDDING = (
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
)
"""Networks whose addresses have an IPv4 one in them, and how many bits stand behind that."""


def is_public(address: str) -> bool:
    """Whether the address is one of the public internet: not loopback, private, shared, link-local
    (metadata services among them), multicast, reserved or unspecified, nor one that leads to such
    an address by translation.

    >>> is_public("127.0.0.1"), is_public("::ffff:10.0.0.1"), is_public("1.1.1.1")
    (False, False, True)
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found.teredo is not None or found.is_site_local or found in _LOCAL_TRANSLATION:
            return False
        else:
            for network, shift in _EMBEDDING:
                if found in network:
                    found = ipaddress.IPv4Address(int(found) >> shift & 0xFFFFFFFF)
                    break
    return found.is_global and not found.is_multicast and not found.is_reserved


def refused_addresses(host: str, addresses: Iterable[str]) -> str | None:
    """Why the host may not be connected to, by all addresses that it resolves to; `None` if it
    may. One that is not public is enough: nobody knows which of them is used."""
    for address in addresses:
        try:
            public = is_public(address)
        except ValueError:
            public = False
        if not public:
            return (
                f"{host} resolves to {address}, which is no public address; "
                "ManagerConfig(allow_private_webhooks=True) allows those"
            )
    return None


def checked_hook_id(hook_id: object) -> str:
    """The id of a webhook, or of a `Webhook`."""
    return checked_name(getattr(hook_id, "id", hook_id), "id")
