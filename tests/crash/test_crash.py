"""A process that is killed loses nothing that was promised, and leaves nothing half done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.rounds import Losses, play

posix = pytest.mark.skipif("os.name == 'nt'", reason="kills with SIGKILL")
