"""The manager of the process, for programs that need only one; the one module-level holder."""

from __future__ import annotations

import os
import threading
from typing import Any

from .config import ManagerConfig
from .errors import BunqueueError, ValidationError
from .manager import QueueManager
from .storage.memory import MemoryStorage

DATA_PATH = "BUNQUEUE_DATA_PATH"

_lock = threading.Lock()
_manager: QueueManager | None = None
_chosen: tuple[MemoryStorage | None, ManagerConfig] | None = None


def get_default_manager() -> QueueManager:
    """The process's own manager, opened on first use, in memory unless `configure` chose
    otherwise. Raises `ValidationError` if `BUNQUEUE_DATA_PATH` is set: files come with the SQLite
    storage."""
    global _manager
    with _lock:
        if _manager is None:
            if _chosen is None and os.environ.get(DATA_PATH):
                raise ValidationError(
                    f"{DATA_PATH} names a file, but this version keeps jobs in memory only; "
                    "unset it"
                )
            storage, config = _chosen or (None, ManagerConfig())
            _manager = QueueManager(storage, config=config)
        return _manager


def configure(storage: MemoryStorage | None = None, **config: Any) -> None:
    """Chooses the storage and the `ManagerConfig` fields of the default manager, before its first
    use. Raises `BunqueueError` after that."""
    global _chosen
    chosen = (storage, ManagerConfig(**config))
    with _lock:
        if _manager is not None:
            raise BunqueueError(
                "the default manager is open already; call configure() before its first use"
            )
        _chosen = chosen


def _forget_in_child() -> None:
    """A forked child opens its own: the one of its parent refuses every call."""
    global _lock, _manager
    _lock = threading.Lock()
    _manager = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
