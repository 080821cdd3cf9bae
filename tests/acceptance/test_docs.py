"""Every ```python block of README and docs runs as a stranger would run it.

The blocks of a page become one script, each line at the number it has on the page, and the script
runs in an empty folder. If the page defines tests, pytest then runs them too. A block that cannot
run says why in a comment before it: `<!-- no-run: needs a mail server -->`.
"""

import ast
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w.+-]*)")
NO_RUN = re.compile(r"^\s*<!--\s*no-run\b:?(?P<reason>.*?)-->\s*$")
TIMEOUT = 60


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of the code's first line, from 1
    code: str
    no_run: str | None  # the reason; "" if there is a mark without one


def pages() -> list[str]:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in paths if path.exists()]


def blocks_of(text: str) -> list[Block]:
    blocks = []
    lines = text.splitlines()
    before = ""  # the last line above that was not blank
    at = 0
    while at < len(lines):
        opening = FENCE.match(lines[at])
        if not opening:
            before = lines[at] if lines[at].strip() else before
            at += 1
            continue
        ticks = opening["ticks"]
        end = at + 1
        while end < len(lines) and not re.match(
            rf"^\s*{ticks[0]}{{{len(ticks)},}}\s*$", lines[end]
        ):
            end += 1
        mark = NO_RUN.match(before)
        blocks.append(
            Block(
                language=opening["language"].lower(),
                line=at + 2,
                code=textwrap.dedent("\n".join(lines[at + 1 : end])),
                no_run=mark["reason"].strip() if mark else None,
            )
        )
        before = ""
        at = end + 1
    return blocks


def script_of(blocks: list[Block]) -> str:
    """The blocks that run, each line where it stands on the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.code.split("\n")
    return "\n".join(lines) + "\n"


def defines_tests(script: str) -> bool:
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        for node in ast.parse(script).body
    )


def run_page(page: str, text: str, folder: Path) -> None:
    """Runs a page's blocks, and its tests if it has some; fails with the block that failed."""
    blocks = [block for block in blocks_of(text) if block.language == "python"]
    unexplained = [block.line for block in blocks if block.no_run == ""]
    assert not unexplained, f"{page}: `no-run` without a reason before line {unexplained[0]}"
    runnable = [block for block in blocks if block.no_run is None]
    if not runnable:
        return
    # Not the page's own name: docs/queue.md would stand in the way of the standard library's queue.
    script = folder / f"page_{re.sub(r'[^a-z0-9]+', '_', page.lower().removesuffix('.md'))}.py"
    script.write_text(script_of(runnable), encoding="utf-8")
    commands = [[sys.executable, str(script)]]
    try:
        if defines_tests(script_of(runnable)):
            pytest_flags = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", "."]
            commands.append([sys.executable, "-m", "pytest", *pytest_flags, str(script)])
    except SyntaxError:
        pass  # the first command says where
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    for command in commands:
        run = subprocess.run(
            command,
            cwd=folder,
            env=environment,  # with BUNQUEUE_CHECK_LOCKS, from tests/conftest.py
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=TIMEOUT,
        )
        if run.returncode:
            output = run.stdout + run.stderr
            place = culprit(runnable, script.name, output)
            pytest.fail(f"{page}: {place} failed\n\n{output}", pytrace=False)


def culprit(blocks: list[Block], script: str, output: str) -> str:
    """The block that the last line of the page named in a traceback stands in."""
    named = re.findall(rf"{re.escape(script)}(?:\", line |:)(\d+)", output)
    if not named:
        return "a block"
    line = int(named[-1])
    start = max((block.line for block in blocks if block.line <= line), default=line)
    return f"the block from line {start}, in line {line},"


@pytest.mark.parametrize("page", pages())
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    run_page(page, (ROOT / page).read_text(encoding="utf-8"), tmp_path)


@pytest.mark.parametrize("page", pages())
def test_a_page_has_no_python_that_would_not_be_run(page: str) -> None:
    blocks = blocks_of((ROOT / page).read_text(encoding="utf-8"))
    stray = [block.line for block in blocks if block.language in ("py", "pycon", "python3")]
    assert not stray, f"{page}: name the block before line {stray[0]} `python`, so that it is run"


# -- and a broken page fails -----------------------------------------------------------------------


def test_a_failing_block_is_named_by_its_line_on_the_page(tmp_path: Path) -> None:
    page = "# Title\n\n```python\nx = 1\n```\n\n- item\n  ```python\n  y = x\n  y / 0\n  ```\n"
    with pytest.raises(pytest.fail.Exception) as failed:
        run_page("docs/bad.md", page, tmp_path)
    assert "docs/bad.md: the block from line 9, in line 10, failed" in str(failed.value)
    assert "ZeroDivisionError" in str(failed.value)


def test_a_failing_test_on_a_page_is_named_too(tmp_path: Path) -> None:
    page = "```python\ndef test_sums():\n    assert 1 + 1 == 3\n```\n"
    with pytest.raises(pytest.fail.Exception, match=r"the block from line 2, in line 3, failed"):
        run_page("docs/bad.md", page, tmp_path)


def test_a_block_that_does_not_parse_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"in line 2, failed"):
        run_page("docs/bad.md", "```python\nx = = 1\n```\n", tmp_path)


def test_a_block_is_left_out_only_with_a_reason(tmp_path: Path) -> None:
    block = "\n```python\n1 / 0\n```\n"
    run_page("docs/good.md", f"<!-- no-run: divides -->\n{block}", tmp_path)
    for mark in ("<!-- no-run: -->", "<!-- no-run -->"):
        with pytest.raises(AssertionError, match="without a reason"):
            run_page("docs/bad.md", f"{mark}\n{block}", tmp_path)


def test_other_languages_and_what_they_quote_are_left_alone(tmp_path: Path) -> None:
    page = "```console\n$ false\n```\n\n````text\n```python\n1 / 0\n```\n````\n"
    assert [block.language for block in blocks_of(page)] == ["console", "text"]
    run_page("docs/good.md", page, tmp_path)
