"""README's two commands stand as CI runs them, and the example that the first one shows works."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.py"
COMMANDS = (
    "pip install -e . && python examples/quickstart.py",
    "pip install -e '.[test]' && pytest",
)


def test_readme_has_both_commands_and_ci_runs_them() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert command in readme
        assert command in ci


def test_the_quickstart_fits_on_two_screens() -> None:
    assert len(QUICKSTART.read_text(encoding="utf-8").splitlines()) <= 80


def test_the_quickstart_prints_a_table_and_runs_twice_in_one_folder(tmp_path: Path) -> None:
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, QUICKSTART],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert run.stderr == ""
        rows = [line for line in run.stdout.splitlines() if len(columns(line)) >= 2]
        assert len(rows) >= 3, f"no table of three rows or more in:\n{run.stdout}"


def columns(line: str) -> list[str]:
    """The cells of a line of a table: text between bars, or between two blanks or more."""
    return [cell for cell in re.split(r"[|│┃]|\s{2,}", line) if re.search(r"\w", cell)]
