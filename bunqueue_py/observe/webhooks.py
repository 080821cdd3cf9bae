"""`manager.webhooks`: what happens is told to other programs over HTTP."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..errors import ManagerClosedError, ValidationError
from ..model.events import WEBHOOK_DISABLED, RawEvent
from ..model.mailbox import Inbox, Mailbox
from ..model.options import checked_queue_name
from ..model.webhooks import (
    WEBHOOK_EVENTS,
    Webhook,
    WebhookTest,
    checked_hook,
    checked_hook_id,
    checked_target,
    refused_addresses,
)
from ..ops.webhooks import mark_hook, refuse_closed
from ..state import State
from ..sync import MANAGER, make_lock, nothing_held
from .outbox import Delivery, Outbox

TIMEOUT = 10.0
"""Seconds for one try."""
MAX_DATA = 256 * 1024
"""Characters of JSON that `data` may have in a body."""
_log = logging.getLogger("bunqueue_py.webhooks")
_NAMES = {kind: name for name, kind in WEBHOOK_EVENTS.items()}


class Webhooks:
    """The webhooks of a manager. They need the extra `webhooks`.

    Each event is posted as JSON, `{event, timestamp, jobId, queue, data?, error?, progress?}`, by
    at most four threads, three of them for one webhook: 10 seconds a try, three tries, 1 and 2
    seconds between. 2xx is success; redirects are not followed. The headers are
    `X-Webhook-Event`, `X-Webhook-Timestamp` (of the try, epoch milliseconds), `X-Webhook-Id` (of
    the delivery, the same in every try) and, with a secret, `X-Webhook-Signature`: the hex
    HMAC-SHA256 of `timestamp + "." + raw body`.
    """

    def __init__(self, state: State, *, threaded: bool) -> None:
        self._state = state
        self._threaded = threaded
        self._resolve: Callable[..., list[Any]] = socket.getaddrinfo
        self._outbox = Outbox(
            state.clock, state.webhooks.is_enabled, self._send, self._ended, threaded=threaded
        )
        state.webhooks.waiting = self._outbox.__len__
        self._shared = Mailbox("webhook-events", self._deliver, state.clock.timeline_ms)
        self._listening = False
        # taken before everything: what is registered, marked and listened for agree
        self._order = make_lock("webhook changes", MANAGER)
        self._ears: dict[str, Callable[[], None]] = {}
        for hook in state.webhooks.views():
            if hook.enabled:
                self._listen(hook)

    def __len__(self) -> int:
        return len(self._state.webhooks)

    def add(
        self,
        url: str,
        events: str | Iterable[str],
        queue: Any = None,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Registers a webhook and returns its id. On a file it survives restarts; its secret and
        headers then stand in the file as they are.

        `events`: of `job.pushed`, `job.started`, `job.completed`, `job.failed`, `job.progress`,
        `job.stalled`. `queue`: `None` for all. Raises `ValidationError` for what is no http(s) URL
        without credentials, and for a host that is, or resolves to, an address which is not public
        (looked at again whenever it is connected to); `ImportError` without the extra.
        """
        from . import http  # says how to get the extra, before anything is registered

        refuse_closed(self._state)
        name = None if queue is None else checked_queue_name(getattr(queue, "name", queue))
        spec = checked_hook(url, events, name, secret, headers)
        if not self._state.config.allow_private_webhooks:
            target = checked_target(url)
            # a name that cannot be looked up now may be later, and is checked then
            with suppress(OSError):
                found = http.addresses_of(target.host, target.port, self._resolve)
                refused = refused_addresses(target.host, (str(entry[4][0]) for entry in found))
                if refused is not None:
                    raise ValidationError(f"url is refused: {refused}")
        hook_id = self._state.new_id()
        with self._order:
            self._state.webhooks.add(hook_id, spec)
            self._changed(hook_id)
        return hook_id

    def list(self) -> list[Webhook]:
        """All of them, in the order in which they were added."""
        refuse_closed(self._state)
        return self._state.webhooks.views()

    def remove(self, hook_id: str | Webhook) -> bool:
        """Says whether there was one. What waits for it is let go; a try under way may arrive."""
        refuse_closed(self._state)
        hook_id = checked_hook_id(hook_id)
        with self._order:
            removed = self._state.webhooks.remove(hook_id)
            if removed:
                self._changed(hook_id)
        return removed

    def enable(self, hook_id: str | Webhook) -> bool:
        """Has it told again, its failures counted anew; says whether it was disabled. Raises
        `ValidationError` for an unknown id."""
        return self._set(hook_id, True)

    def disable(self, hook_id: str | Webhook) -> bool:
        """Has it told no more, of what waits for it either; says whether it was enabled. Raises
        `ValidationError` for an unknown id."""
        return self._set(hook_id, False)

    def _set(self, given: str | Webhook, enabled: bool) -> bool:
        refuse_closed(self._state)
        hook_id = checked_hook_id(given)
        with self._order:
            changed = self._state.webhooks.set_enabled(hook_id, enabled)
            if changed:
                self._changed(hook_id)
        if changed is None:
            raise ValidationError(f"there is no webhook {hook_id!r}")
        return changed

    def test(self, hook_id: str | Webhook) -> WebhookTest:
        """Posts an event `webhook.test` to it now, once, enabled or not, and returns what came of
        it; blocks for that, 10 seconds at most. Raises `ValidationError` for an unknown id."""
        refuse_closed(self._state)
        found = checked_hook_id(hook_id)
        if self._state.webhooks.spec(found) is None:
            raise ValidationError(f"there is no webhook {found!r}")
        body = _body("webhook.test", self._state.now(), None, None, {})
        nothing_held()
        status, error = self._post(Delivery(self._state.new_id(), found, "webhook.test", body))
        return WebhookTest(error is None, status, error)

    # -- listening ---------------------------------------------------------------------------

    def _changed(self, hook_id: str) -> None:
        """Listens for the webhook if it is there and enabled, and no more if it is not; has the
        storage keep how it is. Called in the order of changes."""
        end = self._ears.pop(hook_id, None)
        if end is not None:
            end()
        for hook in self._state.webhooks.views():
            if hook.id == hook_id and hook.enabled:
                self._listen(hook)
        with suppress(ManagerClosedError):
            mark_hook(self._state, hook_id)

    def _listen(self, hook: Webhook) -> None:
        kinds = frozenset(WEBHOOK_EVENTS[name] for name in hook.events)
        end = self._state.events.add(_Ear(hook.id, self._shared), hook.queue, kinds)
        if end is not None:
            self._ears[hook.id] = end
            if self._threaded and not self._listening:
                self._listening = True
                self._shared.start()

    def _deliver(self, item: tuple[str, RawEvent]) -> None:
        """On the mailbox's thread: what was heard becomes a delivery."""
        hook_id, (kind, queue, job_id, at_ms, _, carried) = item
        name = _NAMES[kind]
        told = self._told(kind, carried or {})
        body = _body(name, at_ms, job_id, queue, told)
        self._outbox.put(Delivery(self._state.new_id(), hook_id, name, body))

    def _told(self, kind: str, carried: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        if carried.get("error") is not None:
            told["error"] = carried["error"]
        if kind == "completed" and carried.get("result") is not None:
            told["data"] = self._state.loads(carried["result"])
        elif kind == "pushed":
            told["data"] = {"state": carried["state"]}
        elif kind == "progress":
            told["progress"] = carried["percent"]
            if carried["message"] is not None:
                told["data"] = {"message": carried["message"]}
        elif kind == "failed":
            told["data"] = {"attempt": carried["attempt"], "terminal": carried["terminal"]}
            if carried["terminal"]:
                told["data"]["reason"] = carried["reason"]
            else:
                told["data"]["retryAt"] = carried["retry_at_ms"]
        return told

    # -- sending -----------------------------------------------------------------------------

    def _send(self, delivery: Delivery) -> str | None:
        return self._post(delivery)[1]

    def _post(self, delivery: Delivery) -> tuple[int | None, str | None]:
        """One try: the status of the answer, and what went wrong."""
        from . import http

        spec = self._state.webhooks.spec(delivery.hook_id)
        if spec is None:
            return None, "the webhook was removed"
        stamp = str(self._state.wall())
        headers = dict(spec.headers)
        headers["Content-Type"] = "application/json"
        headers.setdefault("User-Agent", "bunqueue_py")
        headers["X-Webhook-Event"] = delivery.event
        headers["X-Webhook-Timestamp"] = stamp
        headers["X-Webhook-Id"] = delivery.id
        if spec.secret is not None:
            headers["X-Webhook-Signature"] = signature(spec.secret, stamp, delivery.body)
        try:
            status = http.post(
                checked_target(spec.url),
                delivery.body,
                headers,
                timeout=TIMEOUT,
                elapsed_ns=self._state.clock.elapsed_ns,
                resolve=self._resolve,
                allow_private=self._state.config.allow_private_webhooks,
            )
        except http.PROBLEMS as error:
            return None, f"{type(error).__name__}: {error}"[:500]
        if 200 <= status < 300:
            return status, None
        return status, f"the answer was {status}"

    def _ended(self, delivery: Delivery, error: str | None) -> None:
        hook_id = delivery.hook_id
        if error is not None:
            _log.info("a delivery of %s to webhook %s failed: %s", delivery.event, hook_id, error)
        if not self._state.webhooks.note(hook_id, error):
            return
        text = f"webhook {hook_id} is disabled, after its last deliveries all failed: {error}"
        _log.warning("%s", text)
        with self._order:
            self._changed(hook_id)
        if self._state.events.any:
            carried = {"reason": WEBHOOK_DISABLED, "error": text}
            self._state.events.tell_health(self._state.now(), carried)

    # -- life --------------------------------------------------------------------------------

    def step(self) -> int:
        """Makes the tries that are due, on this thread; for `background=False`."""
        return 0 if self._threaded else self._outbox.step()

    def close(self, timeout: float | None = None) -> bool:
        """Sends what waits for its first try, then ends the threads; says whether in time."""
        self._shared.close(timeout)
        return self._outbox.close(timeout)


class _Ear(Mailbox):
    """The place of one webhook among the listeners: hands what it hears to the mailbox that all
    webhooks share, and its thread."""

    def __init__(self, hook_id: str, shared: Mailbox) -> None:
        super().__init__("webhook", lambda item: None, lambda: 0)
        self._hook_id = hook_id
        self._shared = shared

    @property
    def buffer(self) -> Inbox | None:
        return self._shared

    def offer(self, item: Any) -> bool:
        return self._shared.offer((self._hook_id, item))

    def report(self) -> None:
        self._shared.report()

    def drain(self) -> int:
        return self._shared.drain()

    def close(self, timeout: float | None = None) -> bool:
        return self._shared.close(timeout)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """The hex HMAC-SHA256 of `timestamp + "." + body`.

    >>> signature("s", "1", b"{}")[:8]
    'b253639b'
    """
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _body(
    event: str, at_ms: int, job_id: str | None, queue: str | None, told: dict[str, Any]
) -> bytes:
    whole = {"event": event, "timestamp": at_ms, "jobId": job_id, "queue": queue, **told}
    if "data" in told:
        try:
            data = json.dumps(told["data"], default=str, allow_nan=False, skipkeys=True)
        except (ValueError, TypeError, RecursionError):
            data = None
        if data is None or len(data) > MAX_DATA:
            # the receiver can ask for the job; a body has to stay small
            del whole["data"]
            whole["dataOmitted"] = True
    return json.dumps(whole, default=str, allow_nan=False, skipkeys=True).encode()
