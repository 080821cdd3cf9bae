"""Every example in the package's docstrings runs, and shows what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def modules_with_examples() -> list[str]:
    names = []
    for path in sorted((ROOT / "bunqueue_py").rglob("*.py")):
        if ">>>" in path.read_text(encoding="utf-8"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write a file
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    output: list[str] = []
    for example in doctest.DocTestFinder().find(module, name):
        runner.run(example, out=output.append)
    assert not runner.failures, "\n" + "".join(output)
    assert runner.tries, f"{name} shows '>>>', but none of it stands in a docstring"
