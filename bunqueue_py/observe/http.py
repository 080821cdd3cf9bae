"""One HTTP request to one checked address: the one module that imports urllib3 (extra `webhooks`).

What is connected to is the very address that was checked, no name is looked up twice, nothing is
redirected, no proxy is asked, and of the answer nothing but its head is read.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from ..model.webhooks import Target, refused_addresses

try:
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.exceptions import HTTPError
except ImportError as error:
    raise ImportError("webhooks need urllib3: pip install 'bunqueue-py[webhooks]'") from error

Resolve = Callable[..., list[Any]]
"""What `socket.getaddrinfo` is."""


class RefusedAddressError(Exception):
    """The host leads to an address that may not be connected to."""


class _Deadline:
    """A moment, and the clock that it is of."""

    def __init__(self, elapsed_ns: Callable[[], int], seconds: float) -> None:
        self._elapsed_ns = elapsed_ns
        self._end_ns = elapsed_ns() + int(seconds * 1e9)

    def left(self) -> float:
        """The seconds that are left. Raises `TimeoutError` if none are."""
        left = (self._end_ns - self._elapsed_ns()) / 1e9
        if left <= 0:
            raise TimeoutError("the request took too long")
        return left


class _Socket(socket.socket):
    """A socket whose every read has only what is left until the deadline: a server that sends a
    byte now and then must not hold a sender for ever."""

    deadline: _Deadline | None = None

    def recv_into(self, *args: Any, **options: Any) -> int:
        if self.deadline is not None:
            self.settimeout(self.deadline.left())
        return super().recv_into(*args, **options)


class _TlsSocket(ssl.SSLSocket):
    """The same for TLS, and for writes, which Python makes in pieces there."""

    deadline: _Deadline | None = None

    def recv_into(self, *args: Any, **options: Any) -> int:
        if self.deadline is not None:
            self.settimeout(self.deadline.left())
        return super().recv_into(*args, **options)

    def send(self, *args: Any, **options: Any) -> int:
        if self.deadline is not None:
            self.settimeout(self.deadline.left())
        return super().send(*args, **options)


def addresses_of(host: str, port: int, resolve: Resolve) -> list[Any]:
    """What the host resolves to, as `getaddrinfo` tells it. Raises `OSError`."""
    try:
        found = resolve(host, port, 0, socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host} cannot be looked up: {error}") from None
    if not found:
        raise OSError(f"{host} has no address")
    return found


class _Pinned:
    """Connects to an address that was checked, in place of looking the name up again."""

    resolve: Resolve
    allow_private: bool
    deadline: _Deadline
    host: str
    port: int

    def _new_conn(self) -> socket.socket:
        found = addresses_of(self.host, self.port, self.resolve)
        if not self.allow_private:
            refused = refused_addresses(self.host, (str(entry[4][0]) for entry in found))
            if refused is not None:
                raise RefusedAddressError(refused)
        problem: OSError = OSError("no address")
        for family, kind, proto, _, address in found:
            sock = _Socket(family, kind, proto)
            try:
                sock.settimeout(self.deadline.left())
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.connect(address)
                sock.deadline = self.deadline
            except OSError as error:
                sock.close()
                problem = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise problem


class _Plain(_Pinned, HTTPConnection):
    pass


class _Tls(_Pinned, HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        if isinstance(self.sock, _TlsSocket):
            self.sock.deadline = self.deadline


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = _TlsSocket
    return context


def post(
    target: Target,
    body: bytes,
    headers: dict[str, str],
    *,
    timeout: float,
    elapsed_ns: Callable[[], int],
    resolve: Resolve,
    allow_private: bool,
) -> int:
    """Posts and returns the status of the answer, within `timeout` seconds in all but for the
    lookup of the name. Raises one of `PROBLEMS`."""
    deadline = _Deadline(elapsed_ns, timeout)
    connection: Any
    if target.scheme == "https":
        connection = _Tls(target.host, target.port, timeout=timeout, ssl_context=_context())
    else:
        connection = _Plain(target.host, target.port, timeout=timeout)
    connection.resolve, connection.allow_private = resolve, allow_private
    connection.deadline = deadline
    try:
        connection.request("POST", target.path, body=body, headers=headers, preload_content=False)
        status: int = connection.getresponse().status
    finally:
        connection.close()
    return status


PROBLEMS = (RefusedAddressError, OSError, HTTPError, HTTPException, ValueError)
"""What `post` may raise."""
