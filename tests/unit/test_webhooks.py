"""Webhooks: what may be registered, where they may lead, and that they are kept. B137."""

import json
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import ManagerClosedError, ManagerConfig, QueueManager, ValidationError
from bunqueue_py.model.webhooks import Target, is_public
from bunqueue_py.observe.webhooks import signature
from bunqueue_py.testing import VirtualClock

PRIVATE = ManagerConfig(allow_private_webhooks=True)
URL = "https://93.184.215.14/hook"


def to(*addresses: str) -> Any:
    """A resolver that answers so."""

    def resolve(host: str, port: int, *more: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in addresses]

    return resolve


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        yield manager


INSIDE = """127.0.0.1 127.8.9.1 0.0.0.0 0.1.2.3 10.1.2.3 172.16.0.1 172.31.255.255 192.168.0.1
169.254.169.254 169.254.0.1 100.64.0.1 100.127.255.255 192.0.0.1 192.0.2.1 198.18.0.1 198.51.100.1
203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 ::1 :: fe80::1 fe80::1%eth0 fc00::1
fd00:ec2::254 ff02::1 fec0::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::127.0.0.1
64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 2002:7f00:1:: 2002:a00:1:: 2001::1 2001:db8::1
100::1""".split()
OUTSIDE = """1.1.1.1 93.184.215.14 172.32.0.1 100.128.0.1 2606:4700::1111 ::ffff:1.1.1.1
64:ff9b::101:101""".split()


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_that_is_not_public_is_known_in_every_form(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_a_public_address_may_be_told(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    """localhost 127.0.0.1 127.1 2130706433 0x7f000001 0177.0.0.1 0 [::1] [::ffff:127.0.0.1]
    10.0.0.8 169.254.169.254 [fd00::1] 192.168.1.1""".split(),
)
def test_hosts_inside_are_refused_however_they_are_written(
    manager: QueueManager, host: str
) -> None:
    with pytest.raises(ValidationError, match="no public address"):
        manager.webhooks.add(f"http://{host}/", "job.completed")
    assert manager.webhooks.list() == []


def test_one_address_inside_among_those_of_a_name_is_enough(manager: QueueManager) -> None:
    manager.webhooks._resolve = to("1.1.1.1", "10.0.0.1")
    with pytest.raises(ValidationError, match=r"resolves to 10\.0\.0\.1"):
        manager.webhooks.add("http://both.example/", "job.completed")
    manager.webhooks._resolve = to("1.1.1.1", "not an address")
    with pytest.raises(ValidationError, match="resolves to not an address"):
        manager.webhooks.add("http://odd.example/", "job.completed")


def test_a_name_that_cannot_be_looked_up_now_is_taken(manager: QueueManager) -> None:
    manager.webhooks._resolve = to()
    assert manager.webhooks.add("http://later.example/", "job.completed")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com",
        "javascript:alert(1)",
        "//example.com/x",
        "example.com",
        "",
        None,
        b"http://example.com",
        "http://",
        "http:///path",
        "http://user:pw@example.com/",
        "http://user@example.com/",
        "http://@example.com/",
        "http://good.example@127.0.0.1/",
        "http://good.example\\@127.0.0.1/",
        "http://exa mple.com/",
        "http://example.com/\r\nX-Evil: 1",
        "http://example.com:99999/",
        "http://example.com:0/",
        "http://example.com:x/",
        "http://[::1/",
        "http://[fe80::1%25eth0]/",
        "http://exämple.com/",
        "http://example.com/" + "x" * 3000,
    ],
)
def test_what_is_no_plain_http_url_is_refused(manager: QueueManager, url: Any) -> None:
    with pytest.raises(ValidationError, match="url"):
        manager.webhooks.add(url, "job.completed")


@pytest.mark.parametrize(
    "arguments",
    [
        {"events": []},
        {"events": "completed"},
        {"events": ["job.completed", "job.gone"]},
        {"events": 3},
        {"events": [["job.completed"]]},
        {"queue": "no spaces please"},
        {"secret": ""},
        {"secret": 7},
        {"secret": "\ud800"},
        {"secret": "x" * 2000},
        {"headers": {"Host": "evil"}},
        {"headers": {"content-length": "0"}},
        {"headers": {"X-Webhook-Signature": "0"}},
        {"headers": {"X-A": "b\r\nX-Evil: 1"}},
        {"headers": {"X A": "b"}},
        {"headers": {"X-A": 1}},
        {"headers": {"": "b"}},
        {"headers": [("a", "b")]},
        {"headers": {f"x-{n}": "" for n in range(40)}},
    ],
    ids=str,
)
def test_other_arguments_are_checked(manager: QueueManager, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        manager.webhooks.add(**{"url": URL, "events": "job.completed", **arguments})
    assert "x" * 100 not in str(raised.value)
    assert manager.webhooks.list() == []


def test_a_registered_webhook_shows_all_but_its_secrets(manager: QueueManager) -> None:
    hook_id = manager.webhooks.add(
        URL,
        ["job.stalled", "job.completed", "job.stalled"],
        queue="mail",
        secret="hush",
        headers={"Authorization": "Bearer hush"},
    )
    (hook,) = manager.webhooks.list()
    assert (hook.id, hook.url, hook.queue, hook.enabled) == (hook_id, URL, "mail", True)
    assert hook.events == ("job.completed", "job.stalled")
    assert (hook.has_secret, hook.header_names) == (True, ("Authorization",))
    shown = repr(hook) + repr(manager.webhooks) + repr(manager._state.webhooks.spec(hook_id))
    assert "hush" not in shown


def test_enabling_and_disabling_say_whether_they_changed_anything(manager: QueueManager) -> None:
    hook = manager.webhooks.add(URL, "job.completed")
    assert manager._state.events.any
    assert not manager.webhooks.enable(hook)
    assert manager.webhooks.disable(hook)
    assert not manager.webhooks.disable(hook)
    assert not manager._state.events.any, "nobody listens for it, so events cost nothing"
    assert manager.webhooks.enable(manager.webhooks.list()[0])
    assert manager.webhooks.remove(hook)
    assert not manager.webhooks.remove(hook)
    assert not manager._state.events.any
    for call in (manager.webhooks.enable, manager.webhooks.disable, manager.webhooks.test):
        with pytest.raises(ValidationError, match="there is no webhook"):
            call(hook)


def test_webhooks_survive_restarts_with_their_secrets(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    clock = VirtualClock()
    with QueueManager(path, clock=clock, background=False) as manager:
        a = manager.webhooks.add(URL, "job.failed", "mail", "hush", {"X-A": "b"})
        b = manager.webhooks.add(URL, "job.pushed")
        gone = manager.webhooks.add(URL, "job.pushed")
        manager.webhooks.disable(b)
        manager.webhooks.remove(gone)
        before = {hook.id: hook for hook in manager.webhooks.list()}
        spec = manager._state.webhooks.spec(a)
    with QueueManager(path, clock=clock, background=False) as manager:
        assert {hook.id: hook for hook in manager.webhooks.list()} == before
        assert manager._state.webhooks.spec(a) == spec
        assert set(manager._state.events.heard) == {"failed"}


def test_a_damaged_webhook_in_a_file_is_passed_over(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "jobs.db"
    with QueueManager(path, clock=VirtualClock(), background=False) as manager:
        kept = manager.webhooks.add(URL, "job.failed")
    with sqlite3.connect(path) as connection:
        bad = {"url": "file:///x", "events": ["job.failed"], "queue": None, "secret": None}
        for i, body in enumerate(("[]", "{}", "7", json.dumps({**bad, "headers": {}}))):
            connection.execute("INSERT INTO rest VALUES ('webhook', ?, ?)", (f"id{i}", body))
    connection.close()
    with QueueManager(path, clock=VirtualClock(), background=False) as manager:
        assert [hook.id for hook in manager.webhooks.list()] == [kept]


def test_without_threads_run_pending_posts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    posted: list[Any] = []

    def post(target: Any, body: bytes, headers: dict[str, str], **options: Any) -> int:
        posted.append(json.loads(body))
        return 200 if len(posted) > 2 else 503

    monkeypatch.setattr("bunqueue_py.observe.http.post", post)
    with QueueManager(clock=clock, background=False) as manager:
        manager.webhooks.add(URL, "job.pushed", queue="mail")
        manager.push("mail")
        manager.push("other")
        assert posted == []
        manager.run_pending()
        assert len(posted) == 1
        memory = manager.stats().memory
        assert (memory["webhooks"], memory["webhook_deliveries"]) == (1, 1)
        manager.run_pending()
        assert len(posted) == 1, "the second try is a second later"
        clock.advance(seconds=1)
        manager.run_pending()
        assert len(posted) == 2
        clock.advance(seconds=1)
        manager.run_pending()
        assert len(posted) == 2, "and the third two seconds after that"
        clock.advance(seconds=1)
        manager.run_pending()
        assert [body["queue"] for body in posted] == ["mail"] * 3
        assert manager.webhooks.list()[0].delivered == 1


def test_a_result_that_json_does_not_know_or_is_too_long_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from datetime import date

    posted: list[Any] = []
    monkeypatch.setattr(
        "bunqueue_py.observe.http.post", lambda t, body, h, **o: posted.append(body) or 200
    )
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        manager.webhooks.add(URL, "job.completed")
        for result in (date(2030, 1, 2), {"x": b"\0"}, "x" * 300_000):
            manager.push("q")
            job = manager.pull("q")
            assert job is not None
            manager.ack(job, result)
            manager.run_pending()
    first, second, third = (json.loads(body) for body in posted)
    assert first["data"] == "2030-01-02"
    assert "data" in second
    assert third["dataOmitted"] is True
    assert "data" not in third


def test_a_jump_of_the_wall_clock_moves_no_try_and_each_is_signed_with_its_own_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    tries: list[dict[str, str]] = []

    def post(target: Target, body: bytes, headers: dict[str, str], **options: Any) -> int:
        stamp = str(clock.wall_ms())
        tries.append({**headers, "now": stamp, "signed": signature("hush", stamp, body)})
        return 503

    monkeypatch.setattr("bunqueue_py.observe.http.post", post)
    with QueueManager(clock=clock, background=False) as manager:
        manager.webhooks.add(URL, "job.pushed", secret="hush")
        manager.push("q")
        manager.run_pending()
        clock.set_wall_clock(clock.now + timedelta(days=3650))
        manager.run_pending()
        assert len(tries) == 1, "a leap of ten years is not a second"
        clock.advance(seconds=1)
        manager.run_pending()
        clock.set_wall_clock(clock.now - timedelta(days=7300))
        clock.advance(seconds=2)
        manager.run_pending()
        assert len(tries) == 3
        assert manager.webhooks.list()[0].failed == 1
    for headers in tries:
        assert headers["X-Webhook-Timestamp"] == headers["now"]
        assert headers["X-Webhook-Signature"] == headers["signed"]
    assert len({headers["now"] for headers in tries}) == 3
    assert len({headers["X-Webhook-Id"] for headers in tries}) == 1


def test_what_waits_for_a_webhook_that_was_disabled_or_removed_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A webhook that fails at each try would keep the senders from all others for hours."""
    posted: list[str] = []

    def post(target: Target, *arguments: Any, **options: Any) -> int:
        posted.append(target.path)
        return 500

    monkeypatch.setattr("bunqueue_py.observe.http.post", post)
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False, config=PRIVATE) as manager:
        bad = manager.webhooks.add("http://10.0.0.1/bad", "job.pushed", queue="q")
        for _ in range(25):
            manager.push("q")
        for _ in range(3):
            manager.run_pending()
            clock.advance(seconds=3)
        (hook,) = manager.webhooks.list()
        assert not hook.enabled
        # the retries that bring it to 20 failures in a row, and none of the other five
        assert (hook.failed, len(posted)) == (20, 25 + 25 + 20)
        manager.webhooks.remove(bad)
        gone = manager.webhooks.add("http://10.0.0.1/gone", "job.pushed")
        manager.push("q")
        manager.webhooks.remove(gone)
        manager.run_pending()
        assert "/gone" not in posted


def test_a_closed_manager_has_no_webhooks_to_change() -> None:
    manager = QueueManager(clock=VirtualClock(), background=False)
    hook = manager.webhooks.add(URL, "job.completed")
    manager.close()
    for call in (
        lambda: manager.webhooks.add(URL, "job.completed"),
        lambda: manager.webhooks.remove(hook),
        lambda: manager.webhooks.disable(hook),
        lambda: manager.webhooks.test(hook),
        manager.webhooks.list,
    ):
        with pytest.raises(ManagerClosedError):
            call()


def test_without_its_extra_adding_says_what_to_install(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "bunqueue_py.observe.http", raising=False)
    monkeypatch.delattr("bunqueue_py.observe.http", raising=False)
    monkeypatch.setitem(sys.modules, "urllib3.connection", None)
    with pytest.raises(ImportError, match=r"pip install 'bunqueue-py\[webhooks\]'"):
        manager.webhooks.add(URL, "job.completed")
    assert manager.webhooks.list() == []
