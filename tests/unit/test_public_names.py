"""The front door has exactly the checked-in names.

`python tests/unit/test_public_names.py` writes the list anew.
"""

from pathlib import Path
from types import ModuleType

import bunqueue_py

LIST = Path(__file__).with_name("public_names.txt")
REFRESH = "python tests/unit/test_public_names.py"


def public_names() -> list[str]:
    """What `dir` shows without underscore, but for the package's own modules."""
    return sorted(
        name
        for name in dir(bunqueue_py)
        if not name.startswith("_")
        and not (
            isinstance(value := getattr(bunqueue_py, name), ModuleType)
            and value.__name__.startswith("bunqueue_py.")
        )
    )


def test_the_front_door_has_the_checked_in_names() -> None:
    listed = LIST.read_text(encoding="utf-8").split()
    actual = public_names()
    new = sorted(set(actual) - set(listed))
    gone = sorted(set(listed) - set(actual))
    assert (new, gone) == ([], []), (
        f"public names changed: new {new}, gone {gone}. If that is meant, run `{REFRESH}`, "
        "look at the difference, and say so in CHANGELOG.md."
    )
    assert listed == actual, f"the list is not sorted or repeats a name; run `{REFRESH}`"


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in public_names()), encoding="utf-8")
    print(f"{LIST.name}: {len(public_names())} names")
