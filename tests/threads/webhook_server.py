"""A local HTTP server that behaves as its path says, and remembers what it was sent."""

import socket
import ssl
import threading
from types import TracebackType
from typing import NamedTuple

ANSWERS = {
    "/ok": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "/created": b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
    "/broken": b"HTTP/1.1 500 Oops\r\nContent-Length: 6\r\n\r\nsecret",
    "/missing": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "/nonsense": b"SMTP 220 hello\r\n\r\n",
}


class Request(NamedTuple):
    """One request: its path, its headers by lower-case name, its body."""

    path: str
    headers: dict[str, str]
    body: bytes


class HookServer:
    """Listens on a loopback port. `/redirect` answers 302 to `/ok`; `/hang` never answers, and
    `/drip` sends a byte of its head every 10 ms, until `release` is set; `/close` hangs up;
    `/endless` sends a body that has no end; `/flaky` fails twice, then answers 200."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self.requests: list[Request] = []
        self.release = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def __enter__(self) -> "HookServer":
        self._accepting.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release.set()
        # wakes accept()
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._accepting.join()
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def to(self, path: str) -> list[Request]:
        """What was sent to that path."""
        return [request for request in self.requests if request.path == path]

    def _accept(self) -> None:
        while not self.release.is_set():
            sock, _ = self._listener.accept()
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            with sock:
                self._answer(sock)
        except OSError:
            sock.close()  # the sender has hung up

    def _answer(self, sock: socket.socket) -> None:
        request = _read(sock)
        if request is None:
            return
        self.requests.append(request)
        path = request.path.partition("?")[0]
        if path in ANSWERS:
            sock.sendall(ANSWERS[path])
        elif path == "/redirect":
            where = self.url("/ok").encode()
            sock.sendall(
                b"HTTP/1.1 302 Found\r\nLocation: " + where + b"\r\nContent-Length: 0\r\n\r\n"
            )
        elif path == "/flaky":
            sock.sendall(ANSWERS["/ok" if len(self.to(path)) > 2 else "/broken"])
        elif path == "/hang":
            self.release.wait()
        elif path == "/drip":
            sock.sendall(b"HTTP/1.1 200 OK\r\n")
            while not self.release.wait(0.01):
                sock.sendall(b"x")
        elif path == "/endless":
            sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not self.release.is_set():
                sock.sendall(b"x" * 65_536)


def _read(sock: socket.socket) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65_536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    while len(body) < int(headers.get("content-length", 0)):
        body += sock.recv(65_536)
    return Request(first.split(" ")[1], headers, body)
