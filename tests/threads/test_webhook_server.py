"""Webhooks against a real server that answers, fails, hangs, drips, redirects. B137."""

import hashlib
import hmac
import json
import logging
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import JobEvent, ManagerConfig, Queue, QueueManager, Worker
from bunqueue_py.observe import webhooks as webhooks_module
from bunqueue_py.observe.outbox import SHARE
from tests.threads.patience import until
from tests.threads.webhook_server import HookServer

PRIVATE = ManagerConfig(allow_private_webhooks=True)
SECRET = "only the two of us know"


@pytest.fixture
def server() -> Iterator[HookServer]:
    with HookServer() as server:
        yield server


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueManager]:
    monkeypatch.setattr("bunqueue_py.observe.outbox.FIRST_RETRY_MS", 1)
    monkeypatch.setattr(webhooks_module, "TIMEOUT", 0.15)
    with QueueManager(config=PRIVATE) as manager:
        yield manager
    assert not [t for t in threading.enumerate() if "webhook" in t.name], "threads that stay"


def run_one(manager: QueueManager, **options: Any) -> str:
    queue = Queue("mail", manager)
    job = queue.add("x", {"to": "ada"}, **options)
    with Worker(queue, lambda job: {"sent": True}):
        job.result(10)
    return job.id


def test_the_life_of_a_job_is_posted_signed_and_in_json(
    manager: QueueManager, server: HookServer
) -> None:
    events = ["job.pushed", "job.started", "job.completed", "job.failed", "job.progress"]
    hook = manager.webhooks.add(
        server.url("/ok?from=here"), events, secret=SECRET, headers={"Authorization": "Bearer t"}
    )

    def handler(job: Any) -> dict[str, bool]:
        job.update_progress(50, "half")
        if job.name == "bad":
            raise ValueError("no")
        return {"sent": True}

    queue = Queue("mail", manager)
    with Worker(queue, handler):
        good, bad = queue.add("good"), queue.add("bad", attempts=1)
        until(lambda: len(server.requests) == 8, "eight posts")
    until(lambda: manager.webhooks.list()[0].delivered == 8, "eight deliveries")
    bodies = {}
    for request in server.requests:
        assert request.path == "/ok?from=here"
        body, headers = json.loads(request.body), request.headers
        stamp = headers["x-webhook-timestamp"]
        signed = stamp.encode() + b"." + request.body
        expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        assert headers["x-webhook-signature"] == expected
        assert headers["x-webhook-event"] == body["event"]
        assert headers["content-type"] == "application/json"
        assert headers["authorization"] == "Bearer t"
        assert body["queue"] == "mail"
        assert abs(int(stamp) - body["timestamp"]) < 60_000
        bodies[body["jobId"], body["event"]] = body
    assert len({request.headers["x-webhook-id"] for request in server.requests}) == 8
    assert bodies[good.id, "job.pushed"]["data"] == {"state": "waiting"}
    assert bodies[good.id, "job.progress"]["progress"] == 50
    assert bodies[good.id, "job.progress"]["data"] == {"message": "half"}
    assert bodies[good.id, "job.completed"]["data"] == {"sent": True}
    assert bodies[bad.id, "job.failed"]["error"] == "ValueError: no"
    assert bodies[bad.id, "job.failed"]["data"]["terminal"] is True
    assert set(bodies[good.id, "job.started"]) == {"event", "timestamp", "jobId", "queue"}
    assert manager.webhooks.remove(hook)


@pytest.mark.parametrize(
    ("path", "tries", "error"),
    [
        ("/ok", 1, None),
        ("/created", 1, None),
        ("/flaky", 3, None),
        ("/endless", 1, None),
        ("/broken", 3, "the answer was 500"),
        ("/missing", 3, "the answer was 404"),
        ("/redirect", 3, "the answer was 302"),
        ("/nonsense", 3, "BadStatusLine"),
        ("/close", 3, "RemoteDisconnected"),
        ("/hang", 3, "Timeout"),
        ("/drip", 3, "Timeout"),
    ],
)
def test_what_a_server_does_decides_what_becomes_of_a_delivery(
    manager: QueueManager, server: HookServer, path: str, tries: int, error: str | None
) -> None:
    manager.webhooks.add(server.url(path), "job.completed")
    run_one(manager)

    def ended() -> bool:
        (hook,) = manager.webhooks.list()
        return hook.delivered + hook.failed == 1

    until(ended, "the end of the delivery")
    (hook,) = manager.webhooks.list()
    assert len(server.requests) == tries, "and no redirect is followed"
    assert len({request.headers["x-webhook-id"] for request in server.requests}) == 1
    assert (hook.delivered, hook.failed) == ((1, 0) if error is None else (0, 1))
    if error is not None:
        assert error in str(hook.last_error)
        assert "secret" not in str(hook.last_error), "no answer is shown"


def test_a_webhook_that_fails_twenty_times_in_a_row_disables_itself_and_says_so(
    manager: QueueManager, server: HookServer, caplog: pytest.LogCaptureFixture
) -> None:
    hook = manager.webhooks.add(server.url("/broken?token=hush"), "job.pushed", secret=SECRET)
    told: list[JobEvent] = []
    manager.events.subscribe(told.append, types="health")
    with caplog.at_level(logging.INFO, "bunqueue_py"):
        for n in range(20):
            manager.push("q", n)
        until(lambda: not manager.webhooks.list()[0].enabled, "it is disabled")
        until(lambda: told, "an event")
    assert told[0].reason == "webhook_disabled"
    assert hook in str(told[0].error)
    assert any("is disabled" in record.getMessage() for record in caplog.records)
    assert SECRET not in caplog.text
    assert "hush" not in caplog.text
    before = len(server.requests)
    manager.push("q")
    assert manager.webhooks.enable(hook)
    assert manager.webhooks.list()[0].failures_in_a_row == 0
    manager.push("q")
    until(lambda: len(server.requests) == before + 3, "it is told again")


def test_test_posts_once_and_tells_what_came_of_it(
    manager: QueueManager, server: HookServer
) -> None:
    good = manager.webhooks.add(server.url("/ok"), "job.failed", secret=SECRET)
    bad = manager.webhooks.add(server.url("/broken"), "job.failed")
    manager.webhooks.disable(good)
    assert manager.webhooks.test(good).ok
    result = manager.webhooks.test(bad)
    assert (result.ok, result.status, result.error) == (False, 500, "the answer was 500")
    assert [json.loads(r.body)["event"] for r in server.requests] == ["webhook.test"] * 2


def test_a_name_that_leads_inside_at_the_second_look_is_not_connected_to(
    server: HookServer,
) -> None:
    """B137: rebinding. The address that is checked is the one that is connected to."""
    answers = [["1.1.1.1"], ["127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["::ffff:127.0.0.1"]]
    asked = []

    def resolve(host: str, port: int, *more: Any) -> list[Any]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, server.port)) for a in found]

    with QueueManager() as manager:
        manager.webhooks._resolve = resolve
        hook = manager.webhooks.add(f"http://rebind.example:{server.port}/ok", "job.pushed")
        for bad in ("127.0.0.1", "127.0.0.1", "::ffff:127.0.0.1"):
            result = manager.webhooks.test(hook)
            assert not result.ok
            assert f"resolves to {bad}, which is no public address" in str(result.error)
    assert server.requests == []
    assert asked == ["rebind.example"] * 4


def test_what_is_connected_to_is_what_was_looked_up_once(
    manager: QueueManager, server: HookServer
) -> None:
    asked = []

    def resolve(host: str, port: int, *more: Any) -> list[Any]:
        asked.append((host, port))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))]

    manager.webhooks._resolve = resolve
    hook = manager.webhooks.add("http://no.such.name.example/ok", "job.pushed")
    assert manager.webhooks.test(hook).ok
    assert asked == [("no.such.name.example", 80)]
    assert server.requests[0].headers["host"] == "no.such.name.example"


def test_a_server_without_a_known_certificate_is_refused(
    manager: QueueManager, server: HookServer
) -> None:
    hook = manager.webhooks.add(f"https://127.0.0.1:{server.port}/ok", "job.pushed")
    assert not manager.webhooks.test(hook).ok


def test_tls_is_checked_against_the_known_certificates(
    manager: QueueManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes its certificate with openssl, which is not here")
    make = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=hook.example", "-addext", "subjectAltName=DNS:hook.example"]
    files = ["-out", str(cert), "-keyout", str(key)]
    subprocess.run([*make.split(), *names, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with HookServer(context) as server:
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))
        manager.webhooks._resolve = lambda *given: [address]
        monkeypatch.setattr(webhooks_module, "TIMEOUT", 5.0)
        good = manager.webhooks.add(f"https://hook.example:{server.port}/ok", "job.pushed")
        other = manager.webhooks.add(f"https://other.example:{server.port}/ok", "job.pushed")
        refused = manager.webhooks.test(good)
        assert not refused.ok
        assert "certificate verify failed" in str(refused.error).lower()
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert manager.webhooks.test(good).ok, "and the name is that of the URL"
        assert not manager.webhooks.test(other).ok, "and no other"
        assert len(server.requests) == 1


def test_a_closing_manager_sends_what_waits_and_gives_up_on_what_hangs(
    server: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bunqueue_py.observe.outbox.CLOSE_MS", 50)
    with QueueManager(config=PRIVATE) as manager:
        manager.webhooks.add(server.url("/ok"), "job.pushed")
        for _ in range(5):
            manager.push("q")
    assert len(server.requests) == 5
    with QueueManager(config=PRIVATE) as manager:
        manager.webhooks.add(server.url("/hang"), "job.pushed")
        manager.push("q")
        until(lambda: server.to("/hang"), "the request")
        assert not manager.close()
    server.release.set()
    until(lambda: not any("webhook" in t.name for t in threading.enumerate()), "its end")


def test_a_webhook_that_hangs_leaves_a_sender_to_the_others(
    server: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks_module, "TIMEOUT", 30.0)
    with QueueManager(config=PRIVATE) as manager:
        manager.webhooks.add(server.url("/hang"), "job.pushed")
        for n in range(8):
            manager.push("q", n)
        until(lambda: len(server.requests) == SHARE, "as many hang as may")
        manager.webhooks.add(server.url("/ok"), "job.pushed")
        for n in range(8):
            manager.push("q", n)
        until(lambda: len(server.to("/ok")) == 8, "the other hears all the same")
        assert len(server.to("/hang")) == SHARE
        assert manager.stats().memory["webhook_deliveries"] == 16 - SHARE
        for hook in manager.webhooks.list():
            manager.webhooks.disable(hook)
        server.release.set()
        until(lambda: not manager.stats().memory["webhook_deliveries"], "what waits is let go")
        until(lambda: not manager.webhooks._outbox._busy, "nothing is counted as under way")


def test_deliveries_beyond_the_bound_are_dropped_and_counted(
    server: HookServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bunqueue_py.observe.outbox.MAX_DELIVERIES", 3)
    monkeypatch.setattr(webhooks_module, "TIMEOUT", 0.5)
    monkeypatch.setattr("bunqueue_py.observe.outbox.CLOSE_MS", 50)
    with QueueManager(config=PRIVATE) as manager:
        manager.webhooks.add(server.url("/hang"), "job.pushed")
        for _ in range(20):
            manager.push("q")
        until(lambda: len(server.requests) == 3, "every sender that one webhook may have hangs")
        until(lambda: manager.webhooks._outbox.dropped, "the rest is dropped")
        assert manager.counts("q").waiting == 20, "the engine goes on"
        server.release.set()
    assert "were dropped" in caplog.text
    until(lambda: not any("webhook" in t.name for t in threading.enumerate()), "its end")
