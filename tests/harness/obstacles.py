"""What may be in the way of a new socket's file, and is no socket."""

import os
from pathlib import Path

KINDS = ("a file", "a directory", "a symbolic link", "something else")


def put(kind: str, path: Path) -> None:
    """Makes one at a path."""
    make = {
        "a file": path.touch,
        "a directory": path.mkdir,
        "a symbolic link": lambda: path.symlink_to(path.parent / "nowhere"),
        "something else": lambda: os.mkfifo(path),
    }
    make[kind]()
