"""The house rules that can be read off the source: who imports whom, time and dice, file lengths.

Each rule is a function from a `Source` to complaints, so that the tests below can also show it bad
sources made up for it: a checker that cannot fail keeps nothing. This file is over 400 lines
because each rule stands beside the sources that break it.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "bunqueue_py"

# -- the tables ------------------------------------------------------------------------------------

# Each room and what it may import beside itself. A room is a module or package directly under
# bunqueue_py, but for the foundation (several modules, one room) and for client, which is two: the
# front (protocol, job, schedulers) that a manager implements, and the rest, which knows nothing
# behind it.
FOUNDATION = frozenset(
    "errors types config durations serializers _json_tags clock ids sync offload".split()
)
NOUNS = frozenset({"shard", "stores", "registry", "storage"})  # do not know each other
BELOW_STATE = NOUNS | {"foundation", "model"}
BELOW_FRONT = BELOW_STATE | {"state", "ops", "tasks", "observe"}
BELOW_CLIENT = BELOW_FRONT | {
    "client-front",
    "aio",
    "backend",
    "event_hub",
    "readonly",
    "watchmen",
    "manager",
    "default_manager",
}
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "foundation": frozenset(),
    "model": frozenset({"foundation"}),
    "shard": frozenset({"foundation", "model"}),
    "stores": frozenset({"foundation", "model"}),
    "registry": frozenset({"foundation", "model"}),
    "storage": frozenset({"foundation", "model"}),
    "state": BELOW_STATE,
    "ops": BELOW_STATE | {"state"},
    "tasks": BELOW_STATE | {"state", "ops"},
    "observe": BELOW_STATE | {"state", "ops"},
    "client-front": BELOW_FRONT,
    # what the façade is made of: the workers' side of the protocol, and the listeners
    "backend": BELOW_FRONT | {"client-front", "aio"},
    # the coroutines of the façade, and the threads behind them
    "aio": BELOW_FRONT | {"client-front"},
    "event_hub": BELOW_FRONT | {"client-front"},
    # its background tasks, and who works for it
    "watchmen": BELOW_FRONT,
    # the other façade: what a process sees that does not own the file
    "readonly": BELOW_FRONT | {"client-front"},
    "manager": BELOW_FRONT
    | {"client-front", "aio", "backend", "event_hub", "readonly", "watchmen"},
    "default_manager": BELOW_FRONT | {"client-front", "manager"},
    # default_manager is what `Queue("emails")` without a manager asks; the rest is the rule.
    "client": frozenset({"foundation", "model", "client-front", "default_manager"}),
    "front door": BELOW_CLIENT | {"client"},
    "testing": BELOW_CLIENT | {"client", "front door"},  # everything; nothing imports it
}

# (importer, imported) -> why: upward imports under `if TYPE_CHECKING:`, which no run ever makes.
TYPE_ONLY: Mapping[tuple[str, str], str] = {
    ("aio", "manager"): "whose calls they are",
}

# The four that the core depends on, and each extra's one module.
CORE = frozenset({"cachetools", "sortedcontainers", "typing_extensions", "uuid_utils"})
EXTRAS: Mapping[str, str] = {
    "opentelemetry": "observe.tracing",
    "prometheus_client": "observe.collector",
    "pytest": "testing.pytest_plugin",
    "urllib3": "observe.http",
    "cronsim": "model.cron",
}

# Where time and dice come from, and where a line may go round them if it says why, in the comment
# that ruff wants there anyway: noqa, TID251, a dash and the reason.
SOURCES_OF_TIME_AND_DICE = frozenset({"clock", "ids", "testing.ids"})
EXCEPTED_WITH_A_REASON = frozenset({"storage.sqlite.writer"})
REASON = re.compile(r"#\s*noqa:\s*TID251\s*[-—:(]+\s*\w+")

MAX_LINES = 400
LONG_BECAUSE = f"over {MAX_LINES} lines because"


# -- reading a source ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One imported name: `module` is as written out in full, `name` what was taken from it."""

    module: str
    name: str | None
    line: int
    type_only: bool


@dataclass(frozen=True)
class Source:
    """A module of the package: its name below the package ("" is the front door) and its text."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def room(self) -> str:
        return room_of(self.name)

    def imports(self) -> Iterator[Import]:
        yield from self._imports(self.tree, type_only=False)

    def _imports(self, node: ast.AST, type_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno, type_only)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(self._absolute(node), alias.name, node.lineno, type_only)
        elif isinstance(node, ast.If) and any(
            "TYPE_CHECKING" in (getattr(part, "id", ""), getattr(part, "attr", ""))
            for part in ast.walk(node.test)
        ):
            for child in node.body:
                yield from self._imports(child, type_only=True)
            for child in node.orelse:
                yield from self._imports(child, type_only)
        else:
            for child in ast.iter_child_nodes(node):
                yield from self._imports(child, type_only)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        here = [PACKAGE, *self.name.split(".")] if self.name else [PACKAGE]
        if not self.is_package:
            here = here[:-1]
        here = here[: len(here) - (node.level - 1)]
        return ".".join([*here, node.module] if node.module else here)


def room_of(module: str) -> str:
    """The room of a module named from below the package."""
    first, _, rest = module.partition(".")
    if not first:
        return "front door"
    if first in FOUNDATION:
        return "foundation"
    if first == "client" and rest.partition(".")[0] in ("", "protocol", "job", "schedulers"):
        return "client-front"  # the package's __init__ too: it runs before either of the two
    return first


def own_module(imported: Import, modules: frozenset[str]) -> str | None:
    """Which of our modules an import reaches, named from below the package; None if not ours."""
    if imported.module != PACKAGE and not imported.module.startswith(f"{PACKAGE}."):
        return None
    below = imported.module[len(PACKAGE) + 1 :]
    if imported.name is not None:
        submodule = f"{below}.{imported.name}" if below else imported.name
        if submodule in modules:
            return submodule
    return below


@cache
def read_package() -> list[Source]:
    sources = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        sources.append(Source(name, path.read_text(encoding="utf-8"), is_package))
    return sources


def modules_of(sources: list[Source]) -> frozenset[str]:
    return frozenset(source.name for source in sources)


# -- the rules -------------------------------------------------------------------------------------


def upward_imports(source: Source, modules: frozenset[str]) -> list[str]:
    """Imports of our own modules that the table does not allow."""
    if source.room not in MAY_IMPORT:
        return [f"{source.name}: no such room in the table; give {source.room!r} its place"]
    complaints = []
    for imported in source.imports():
        module = own_module(imported, modules)
        if module is None:
            continue
        room = room_of(module)
        if room == source.room or room in MAY_IMPORT[source.room]:
            continue
        if imported.type_only and (source.name, module) in TYPE_ONLY:
            continue
        complaints.append(
            f"{source.name or PACKAGE}:{imported.line}: {source.room} may not import "
            f"{module or PACKAGE} ({room})"
        )
    return complaints


def foreign_imports(source: Source) -> list[str]:
    """Imports of others' packages that are no core dependency, nor an extra in its one module."""
    complaints = []
    for imported in source.imports():
        top = imported.module.partition(".")[0]
        if top == PACKAGE or top in sys.stdlib_module_names or top in CORE:
            continue
        if EXTRAS.get(top) == source.name:
            continue
        where = f"only {EXTRAS[top]} may" if top in EXTRAS else "the core may not"
        complaints.append(f"{source.name or PACKAGE}:{imported.line}: imports {top}; {where}")
    return complaints


def time_and_dice(source: Source, banned: frozenset[str]) -> list[str]:
    """Uses of a banned name, or of anything in a banned module, however it was imported."""
    if source.name in SOURCES_OF_TIME_AND_DICE:
        return []
    known: dict[str, str] = {}  # the name in this file -> the name in full
    uses: list[tuple[int, str]] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                known[bound] = alias.name if alias.asname else bound
                uses.append((node.lineno, alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                uses.append((node.lineno, f"{node.module}.{alias.name}"))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            first, _, rest = dotted.partition(".")
            if first in known:
                uses.append((node.lineno, f"{known[first]}.{rest}"))

    lines = source.text.splitlines()
    complaints = []
    for line, name in sorted(set(uses)):
        if not any(name == ban or name.startswith(f"{ban}.") for ban in banned):
            continue
        if source.name in EXCEPTED_WITH_A_REASON and REASON.search(lines[line - 1]):
            continue
        complaints.append(f"{source.name or PACKAGE}:{line}: {name}; ask the clock or ids given")
    return complaints


def too_long(source: Source) -> list[str]:
    """A file over the ceiling whose docstring does not say why."""
    lines = len(source.text.splitlines())
    if lines <= MAX_LINES or LONG_BECAUSE in (ast.get_docstring(source.tree) or ""):
        return []
    return [
        f"{source.name or PACKAGE}: {lines} lines; split it, or let its docstring say "
        f"that it is '{LONG_BECAUSE} ...'"
    ]


def banned_names() -> frozenset[str]:
    """The names that ruff's TID251 bans, from pyproject.toml: one list for both."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return frozenset(project["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"])


def report(complaints: list[str]) -> str:
    return "\n".join(["", *complaints])


# -- the package keeps them ------------------------------------------------------------------------


def test_modules_import_downward_only() -> None:
    sources = read_package()
    found = [line for source in sources for line in upward_imports(source, modules_of(sources))]
    assert not found, report(found)


def test_others_packages_are_imported_where_they_belong() -> None:
    found = [line for source in read_package() for line in foreign_imports(source)]
    assert not found, report(found)


def test_time_and_dice_are_read_in_their_two_modules_only() -> None:
    banned = banned_names()
    found = [line for source in read_package() for line in time_and_dice(source, banned)]
    assert not found, report(found)


def test_a_long_file_says_why() -> None:
    found = [line for source in read_package() for line in too_long(source)]
    assert not found, report(found)


def test_the_package_was_found_at_all() -> None:
    assert "" in modules_of(read_package())


def test_the_declared_dependencies_are_the_core() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = (re.match(r"[\w-]+", line) for line in project["dependencies"])
    assert {match[0].replace("-", "_") for match in names if match} == CORE


# -- and the rules can fail ------------------------------------------------------------------------

MODULES = frozenset(
    """
    errors clock sync model model.job shard shard.shard stores.index storage.base storage.sqlite
    storage.sqlite.writer registry.workers state ops.push tasks.stalls observe.metrics client
    client.protocol client.job client.queue client.worker manager default_manager testing.harness
    """.split()
) | {""}


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("errors", "from bunqueue_py.model.job import JobRecord"),
        ("model.job", "import bunqueue_py.shard.shard"),
        ("model.job", "from ..shard import shard"),
        ("shard.shard", "from bunqueue_py.stores.index import Index"),
        ("stores.index", "from bunqueue_py.storage.base import Storage"),
        ("storage.sqlite.writer", "from ...shard.shard import Shard"),
        ("registry.workers", "from ..stores import index"),
        ("state", "from .ops import push"),
        ("ops.push", "def push():\n    from bunqueue_py.tasks import stalls"),
        ("tasks.stalls", "from ..observe.metrics import Metrics"),
        ("ops.push", "from bunqueue_py.client.job import Job"),
        ("client.protocol", "from bunqueue_py.manager import QueueManager"),
        ("client.job", "from .queue import Queue"),
        ("client.queue", "from bunqueue_py.state import State"),
        ("client.worker", "from bunqueue_py import ops"),
        ("client.worker", "from ..manager import QueueManager"),
        ("manager", "from .client.queue import Queue"),
        ("manager", "from . import default_manager"),
        ("client.queue", "from bunqueue_py import Worker"),
        ("client.queue", "from ..testing.harness import Harness"),
        ("", "from .testing.harness import Harness"),
        ("model.job", "if TYPE_CHECKING:\n    from ..client.job import Job"),
        ("attic.box", "import bunqueue_py.errors"),
    ],
)
def test_an_upward_import_is_found(importer: str, statement: str) -> None:
    source = Source(importer, statement, is_package=not importer)
    assert len(upward_imports(source, MODULES)) == 1


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("sync", "from . import errors"),
        ("shard.shard", "from ..model import job\nfrom .ready_queue import ReadyQueue"),
        ("state", "from .shard.shard import Shard\nfrom .stores.index import Index"),
        ("observe.metrics", "from bunqueue_py.state import State"),
        ("client.protocol", "from .job import Job\nfrom ..model.job import JobRecord"),
        ("client.queue", "from . import protocol, worker\nfrom ..default_manager import get"),
        ("manager", "from .client.protocol import Manager\nfrom .client import job"),
        ("testing.harness", "import bunqueue_py\nfrom ..client.queue import Queue"),
        ("", "from .client.queue import Queue as Queue\nfrom .manager import QueueManager"),
        ("ops.push", "import os, json\nfrom collections import abc"),
    ],
)
def test_a_downward_import_is_left_alone(importer: str, statement: str) -> None:
    source = Source(importer, statement, is_package=not importer)
    assert upward_imports(source, MODULES) == []


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("ops.push", "import requests"),
        ("ops.push", "from pytest import fixture"),
        ("observe.metrics", "def tracer():\n    import opentelemetry.trace as trace"),
    ],
)
def test_a_foreign_import_in_the_wrong_place_is_found(importer: str, statement: str) -> None:
    assert len(foreign_imports(Source(importer, statement))) == 1


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("stores.results", "from cachetools import LRUCache\nimport sqlite3, zoneinfo"),
        ("testing.pytest_plugin", "import pytest"),
    ],
)
def test_a_foreign_import_in_its_place_is_left_alone(importer: str, statement: str) -> None:
    assert foreign_imports(Source(importer, statement)) == []


@pytest.mark.parametrize(
    ("importer", "text"),
    [
        ("ops.push", "import time\nnow = time.time()"),
        ("ops.push", "import time as t\ntick = t.monotonic_ns"),
        ("ops.push", "from time import sleep as pause"),
        ("model.cron", "from datetime import datetime\ndatetime.now()"),
        ("model.cron", "import datetime as dt\ndt.datetime.utcnow()"),
        ("model.backoff", "def jitter():\n    import random"),
        ("model.backoff", "from random import random"),
        ("client.worker", "import uuid\nuuid.uuid4().hex"),
        ("client.worker", "from uuid_utils import uuid7"),
        ("client.worker", "import os\nos.urandom(8)"),
        ("ops.push", "import time\ntime.time()  # noqa: TID251 - it seemed fine here"),
        ("storage.sqlite.writer", "import time\ntime.monotonic()  # noqa: TID251"),
    ],
)
def test_time_and_dice_are_found(importer: str, text: str) -> None:
    assert len(time_and_dice(Source(importer, text), banned_names())) == 1


@pytest.mark.parametrize(
    ("importer", "text"),
    [
        ("clock", "import time\ntime.monotonic()"),
        ("ids", "import random\nfrom uuid_utils import uuid7"),
        ("serializers", "from uuid import UUID\nimport datetime\ndatetime.datetime.min"),
        ("ops.push", "state.clock.time()\nself.random.random()\nimport time\ntime.gmtime(0)"),
        (
            "storage.sqlite.writer",
            "import time\ntime.monotonic()  # noqa: TID251 - lag is the file's, not the clock's",
        ),
    ],
)
def test_what_is_neither_time_nor_dice_is_left_alone(importer: str, text: str) -> None:
    assert time_and_dice(Source(importer, text), banned_names()) == []


def test_a_long_file_is_found_unless_it_says_why() -> None:
    body = "x = 1\n" * MAX_LINES
    assert too_long(Source("ops.push", body)) == []
    assert len(too_long(Source("ops.push", body + "x = 1\n"))) == 1
    reason = f'"""The verbs, {LONG_BECAUSE} each is one line."""\n'
    assert too_long(Source("manager", reason + body)) == []
