"""Redis 7.0 from Debian 12, unpacked into the cache: no root rights, no service that starts by itself.

Needs apt and its package lists; nothing is installed on the system. redis-benchmark and redis-cli come with it.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from streamhold_dev import folders, processes

_PACKAGES = (
    "redis-tools",  # the server itself: Debian's redis-server package holds a link to it and the service
    "libatomic1",
    "libhiredis0.14",
    "libjemalloc2",
    "liblua5.1-0",
    "liblzf1",
    "libsystemd0",
    "lua-bitop",
    "lua-cjson",
)
_PROGRAMS = {"redis-server": "redis-check-rdb", "redis-cli": "redis-cli", "redis-benchmark": "redis-benchmark"}

Report = Callable[[str], None]


class NotDebian(Exception):
    """This machine has no apt or is another release."""


def program(name: str) -> Path:
    """Where redis-server, redis-cli or redis-benchmark is after `fetch`."""
    return _home() / name


def fetch(report: Report) -> None:
    """Get Redis 7.0 unless it is there.

    Raises:
        NotDebian: there is nothing to get it from.
        CommandFailed: apt or dpkg refused; the message has its words.
    """
    home = _home()
    if all(program(name).exists() for name in _PROGRAMS):
        return
    if _codename() != "bookworm" or not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NotDebian(
            "Redis 7.0 is unpacked from Debian 12's packages: this machine has no apt or is another release"
        )
    report("getting Redis 7.0 from Debian's packages (once)")
    partial = home.with_name(f".{home.name}.{os.getpid()}")
    (partial / "packages").mkdir(parents=True)
    try:
        _download(partial / "packages", report)
        for package in sorted((partial / "packages").glob("*.deb")):
            processes.run(["dpkg", "-x", package, partial / "root"])
        shutil.rmtree(partial / "packages")
        for name, binary in _PROGRAMS.items():
            _write_launcher(partial, home, name, binary)
        shutil.rmtree(home, ignore_errors=True)
        partial.replace(home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _home() -> Path:
    return folders.cache() / "servers" / "debian-redis-7.0"


def _download(folder: Path, report: Report) -> None:
    # Not the sandbox user: it may not read the cache folder, and apt warns.
    command = ["apt-get", "-o", "APT::Sandbox::User=root", "-q", "download", *_PACKAGES]
    try:
        processes.run(command, cwd=folder)
    except processes.CommandFailed as failure:
        if os.geteuid() != 0:
            raise
        report(f"  apt's package lists are missing or old ({failure.stderr.strip().splitlines()[-1]}): apt-get update")
        processes.run(["apt-get", "-q", "update"], timeout=300)
        processes.run(command, cwd=folder)


def _write_launcher(partial: Path, home: Path, name: str, binary: str) -> None:
    link = partial / "root" / "usr" / "bin" / name
    if name != binary:
        link.symlink_to(binary)  # it looks at the name it is called by
    libraries = ":".join(
        str(home / folder.relative_to(partial))
        for folder in sorted((partial / "root" / "usr" / "lib").glob("*-linux-gnu"))
    )
    target = home / link.relative_to(partial)
    launcher = partial / name
    launcher.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={shlex.quote(libraries)} exec {shlex.quote(str(target))} "$@"\n')
    launcher.chmod(0o755)


def _codename() -> str:
    release = Path("/etc/os-release")
    lines = release.read_text().splitlines() if release.exists() else []
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")), "")
