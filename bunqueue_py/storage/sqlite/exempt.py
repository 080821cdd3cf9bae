"""Who is never held up until the writer has caught up."""

from __future__ import annotations

import sys
import threading


def is_exempt() -> bool:
    """Whether this thread must not be held up: it is ours, or runs an event loop."""
    name = threading.current_thread().name
    # those of `manager.aio` stand for the application's
    if name.startswith("bunqueue-") and not name.startswith("bunqueue-aio-"):
        return True
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
