"""Where the file is: what may be given as its path, what must be true of the place, and the name
by which SQLite opens it."""

from __future__ import annotations

import os
import stat
from os import PathLike
from urllib.parse import quote

from ...durations import shown
from ...errors import StorageError, ValidationError

MAX_PATH_BYTES = 480
MAX_NAME_BYTES = 230
"""SQLite takes 512 and file systems 255; the rest is for what it and we append to the name."""

PathInput = str | bytes | PathLike[str] | PathLike[bytes]


def absolute(path: PathInput, option: str = "storage") -> str:
    """The path as absolute text, by the current folder of now; looks at no file.

    Raises `ValidationError` for what can name no file: another type, nothing, `":memory:"`, a
    URI, a NUL, a lone surrogate, a trailing slash, too long a name.
    """
    text = path_text(path, option)
    if not text:
        raise ValidationError(f"{option} must name a file, not be empty; None keeps all in memory")
    if text == ":memory:":
        raise ValidationError(f'{option} must not be ":memory:"; None keeps all in memory')
    if text.startswith("file:"):
        raise ValidationError(f"{option} must be a path and no URI, not {shown(text)}")
    if text.endswith(("/", os.sep)):
        raise ValidationError(f"{option} must name a file and no folder, not {shown(text)}")
    text = from_here(text, option)
    _check_length(text, option)
    return text


def path_text(path: object, option: str) -> str:
    """The path as text that the system takes. Raises `ValidationError` for another type, a NUL,
    and text that no file can have as its name."""
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
        os.fsencode(text)
    except TypeError:  # of a `__fspath__` that returns something else, too
        raise ValidationError(
            f"{option} must be a path, as str, bytes or Path, not {shown(path)}"
        ) from None
    except UnicodeError as error:
        raise ValidationError(
            f"{option} must be text that can be encoded as a file's name, not {shown(path)}"
        ) from error
    if "\0" in text:
        raise ValidationError(f"{option} must not contain NUL, as {shown(text)} does")
    return text


def from_here(text: str, option: str) -> str:
    """The path as an absolute one. Raises `StorageError` for a relative one where there is no
    current folder, as in a daemon whose folder was removed."""
    if os.path.isabs(text) and os.name != "nt":
        return text
    try:
        return os.path.join(os.getcwd(), text)
    except OSError as error:
        raise StorageError(
            f"{option} {shown(text)} is relative to the current folder, which cannot be told: "
            f"{error.strerror}"
        ) from error


def _check_length(text: str, option: str) -> None:
    size, name_size = len(os.fsencode(text)), len(os.fsencode(os.path.basename(text)))
    if size > MAX_PATH_BYTES or name_size > MAX_NAME_BYTES:
        raise ValidationError(
            f"{option} must have at most {MAX_PATH_BYTES} bytes, {MAX_NAME_BYTES} of them in the "
            f"file's name, not {size} and {name_size}: {shown(text)}"
        )


def check_place(path: str, option: str = "storage") -> str:
    """The real path (no symbolic link in it) of a file that is there or can be made there.

    Raises `ValidationError` for what is no regular file, `StorageError` where the folder is
    missing, something cannot be written, or the file has a second name.
    """
    real = os.path.realpath(path)
    _check_length(real, option)
    try:
        found: os.stat_result | None = os.stat(real)
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise StorageError(f"{shown(path)} cannot be reached: {error.strerror}") from error
    if found is not None:
        _check_file(real, found, option)
    folder = os.path.dirname(real)
    if not os.path.isdir(folder):
        hint = '; "~" is not expanded here, os.path.expanduser does it' if "~" in path else ""
        raise StorageError(
            f"{shown(real)} cannot be opened: there is no folder {shown(folder)}{hint}"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(
            f"{shown(real)} cannot be opened: files cannot be made in {shown(folder)}, and SQLite "
            "keeps two more beside the database (-wal and -shm). Give this process the right to "
            "write there, or choose another folder"
        )
    return real


def _check_file(real: str, found: os.stat_result, option: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise ValidationError(f"{option} must name a file, and {shown(real)} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise ValidationError(
            f"{option} must name a regular file, and {shown(real)} is a device, pipe or socket"
        )
    if found.st_nlink > 1:
        # The log and the lock go by the name: opened by both at once, the database would break.
        raise StorageError(
            f"{shown(real)} has {found.st_nlink} names (hard links), and SQLite keeps its log by "
            "the name: remove the other names, or copy the file"
        )
    if not os.access(real, os.R_OK | os.W_OK):
        raise StorageError(
            f"{shown(real)} cannot be written to: give this process the right to, or read it with "
            "QueueManager.open_readonly"
        )


def uri(path: str, query: str) -> str:
    """The absolute path as SQLite's URI, every odd byte of it quoted."""
    if os.name == "nt":
        return "file:///" + quote(path.replace("\\", "/"), safe="/:") + "?" + query
    return "file://" + quote(os.fsencode(path)) + "?" + query
