"""The manager of the process, for programs that need only one; the one module-level holder."""

from __future__ import annotations

import os
import threading
from typing import Any

from .config import ManagerConfig
from .errors import BunqueueError, StorageError, ValidationError
from .manager import QueueManager
from .manager import _storage as chosen_storage
from .storage.base import Storage
from .storage.memory import MemoryStorage

DATA_PATH = "BUNQUEUE_DATA_PATH"

_lock = threading.Lock()
_manager: QueueManager | None = None
_chosen: tuple[Any, ManagerConfig] | None = None


def get_default_manager() -> QueueManager:
    """The process's own manager, opened on first use: on what `configure` chose, otherwise on the
    file that the environment variable `BUNQUEUE_DATA_PATH` names, in memory if that is unset or
    empty. Raises what `QueueManager` does; an error about the file names the variable."""
    global _manager
    with _lock:
        if _manager is None:
            if _chosen is not None:
                storage, config = _chosen
                _manager = QueueManager(storage, config=config)
            else:
                _manager = _from_environment()
        return _manager


def _from_environment() -> QueueManager:
    path = os.environ.get(DATA_PATH)
    if not path:
        return QueueManager()
    try:
        return QueueManager(path)
    except (StorageError, ValidationError) as error:
        # whoever reads it may never have heard of the variable
        error.args = (f"{DATA_PATH}: {error}", *error.args[1:])
        raise


def configure(
    storage: MemoryStorage | Storage | str | os.PathLike[str] | None = None, **config: Any
) -> None:
    """Chooses the storage (as `QueueManager` takes it; nothing is opened yet) and the
    `ManagerConfig` fields of the default manager, before its first use; `BUNQUEUE_DATA_PATH` does
    not matter then. Raises `BunqueueError` after that, `ValidationError` for what is no storage."""
    global _chosen
    chosen = (chosen_storage(storage), ManagerConfig(**config))
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
