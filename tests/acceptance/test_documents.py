"""The example of a document pipeline, as a stranger runs it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_pipeline_shows_what_each_policy_does(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("three words here\n" * 100, encoding="utf-8")  # five pages
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "documents.py"), str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    said = {line[:18].strip(): line[19:] for line in done.stdout.splitlines()[:5]}
    assert said["fail_parent"].startswith("FAILED: child ")
    assert said["fail_parent"].endswith("ValueError: the page is torn")
    # it goes on at once, with as many pages as there are then
    assert said["continue_parent"].endswith("1 pages lost")
    assert said["ignore_dependency"] == "book.txt: 240 words, 1 pages lost"
    assert said["remove_dependency"] == "book.txt: 240 words, 0 pages lost"
    assert said["wait"] == "book.txt: 300 words, 0 pages lost"
    assert "`-- merge (documents) failed" in done.stdout
    assert not done.stderr
