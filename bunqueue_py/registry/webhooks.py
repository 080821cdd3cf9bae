"""The webhooks of a manager. Leaf noun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..model.webhooks import HookSpec, Webhook, checked_hook
from ..sync import LEAF, make_lock

MAX_FAILURES = 20
"""So many deliveries that fail in a row disable a webhook."""


class Hook:
    """One webhook and what became of its deliveries. Guarded by its registry."""

    __slots__ = ("delivered", "enabled", "failed", "id", "in_a_row", "last_error", "spec")

    def __init__(self, hook_id: str, spec: HookSpec) -> None:
        self.id = hook_id
        self.spec = spec
        self.enabled = True
        self.delivered = self.failed = self.in_a_row = 0
        self.last_error: str | None = None

    def view(self) -> Webhook:
        """The copy that users see."""
        spec = self.spec
        return Webhook(
            id=self.id,
            url=spec.url,
            events=spec.events,
            queue=spec.queue,
            enabled=self.enabled,
            has_secret=spec.secret is not None,
            header_names=tuple(name for name, _ in spec.headers),
            delivered=self.delivered,
            failed=self.failed,
            failures_in_a_row=self.in_a_row,
            last_error=self.last_error,
        )

    def body(self) -> dict[str, Any]:
        """What a storage keeps of it, as something that JSON can hold."""
        spec = self.spec
        return {
            "url": spec.url,
            "events": list(spec.events),
            "queue": spec.queue,
            "secret": spec.secret,
            "headers": dict(spec.headers),
            "enabled": self.enabled,
        }


class WebhookRegistry:
    """All webhooks by id, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = make_lock("webhooks", LEAF)
        self._hooks: dict[str, Hook] = {}
        #: how many deliveries are on their way; whoever sends them tells
        self.waiting: Callable[[], int] = int

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, hook_id: str, spec: HookSpec) -> dict[str, Any]:
        """Adds one, enabled; returns its `body`."""
        with self._lock:
            hook = self._hooks[hook_id] = Hook(hook_id, spec)
            return hook.body()

    def restore(self, hook_id: str, body: dict[str, Any]) -> None:
        """Takes in what a storage has kept. Raises `ValueError` and its like."""
        enabled = body["enabled"]
        spec = checked_hook(
            body["url"], body["events"], body["queue"], body["secret"], body["headers"]
        )
        with self._lock:
            hook = self._hooks[hook_id] = Hook(hook_id, spec)
            hook.enabled = enabled is True

    def remove(self, hook_id: str) -> bool:
        """Says whether there was one."""
        with self._lock:
            return self._hooks.pop(hook_id, None) is not None

    def spec(self, hook_id: str) -> HookSpec | None:
        """What was registered; `None` if there is no such webhook."""
        with self._lock:
            hook = self._hooks.get(hook_id)
            return None if hook is None else hook.spec

    def is_enabled(self, hook_id: str) -> bool:
        """Whether it is there, and enabled."""
        with self._lock:
            hook = self._hooks.get(hook_id)
            return hook is not None and hook.enabled

    def views(self) -> list[Webhook]:
        """Copies of all."""
        with self._lock:
            return [hook.view() for hook in self._hooks.values()]

    def body(self, hook_id: str) -> dict[str, Any] | None:
        """What a storage keeps of it; `None` if there is no such webhook."""
        with self._lock:
            hook = self._hooks.get(hook_id)
            return None if hook is None else hook.body()

    def set_enabled(self, hook_id: str, enabled: bool) -> bool | None:
        """Enables or disables it; its failures count anew. Says whether that changed anything,
        `None` if there is no such webhook."""
        with self._lock:
            hook = self._hooks.get(hook_id)
            if hook is None:
                return None
            changed = hook.enabled is not enabled
            hook.enabled = enabled
            hook.in_a_row = 0
            return changed

    def note(self, hook_id: str, error: str | None) -> bool:
        """A delivery was made (`None`) or has failed; says whether that disables the webhook."""
        with self._lock:
            hook = self._hooks.get(hook_id)
            if hook is None:
                return False
            if error is None:
                hook.delivered += 1
                hook.in_a_row = 0
                return False
            hook.failed += 1
            hook.in_a_row += 1
            hook.last_error = error
            if not hook.enabled or hook.in_a_row < MAX_FAILURES:
                return False
            hook.enabled = False
            return True
