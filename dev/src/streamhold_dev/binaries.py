"""The programs around Redis: etcd, kube-apiserver, kube-controller-manager, helm and kubectl, found or built.

Looked for in this order: `KUBEBUILDER_ASSETS` (used as it is), our cache, the PATH. A program on the PATH counts only
when it runs and reports a usable version: distributions ship wrappers, stubs, and other programs called `helm`. kubectl
comes in a Python wheel; what else is missing is built from the Go module in dev/controlplane, once per version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from streamhold_dev import gobuild

Version = tuple[int, int]
Report = Callable[[str], None]


class BinaryMissing(Exception):
    """A program is not on this machine and may not be built now; the message tells what to run."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program we need."""

    name: str
    oldest: Version
    """The first version that will do."""
    below: Version
    """The first version that will not do again."""
    version_command: tuple[str, ...] = ("--version",)
    go: gobuild.GoProgram | None = None
    """How to build it; None for what comes as a Python wheel."""

    def accepts(self, version: Version | None) -> bool:
        """Whether a program that reports this version will do."""
        return version is not None and self.oldest <= version < self.below


_KUBERNETES = "k8s.io/kubernetes"
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool("etcd", (3, 5), (4, 0), go=gobuild.GoProgram("etcd", "go.etcd.io/etcd/server/v3")),
        # CEL rules with optional old values and the field validation that the CRD tests read need 1.31.
        Tool(
            "kube-apiserver", (1, 31), (2, 0), go=gobuild.GoProgram("kube-apiserver", _KUBERNETES, "cmd/kube-apiserver")
        ),
        Tool(
            "kube-controller-manager",
            (1, 31),
            (2, 0),
            go=gobuild.GoProgram("kube-controller-manager", _KUBERNETES, "cmd/kube-controller-manager"),
        ),
        Tool("helm", (3, 14), (5, 0), ("version", "--short"), gobuild.GoProgram("helm", "helm.sh/helm/v3", "cmd/helm")),
        Tool("kubectl", (1, 31), (2, 0), ("version", "--client")),
    )
}


def find(name: str) -> Path | None:
    """Find a program without building it; None when it is not there."""
    tool = TOOLS[name]
    for candidate in _candidates(tool):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    return _usable_on_path(tool)


def need(name: str) -> Path:
    """Find a program; for code that must not stop for minutes to build one.

    Raises:
        BinaryMissing: it is not there.
    """
    found = find(name)
    if found is None:
        raise BinaryMissing(f"{name} is not on this machine: `make binaries` builds it (6 to 12 minutes, once)")
    return found


def ensure(names: Iterable[str] = TOOLS, report: Report | None = None) -> dict[str, Path]:
    """Find the programs, and build those that are missing.

    Raises:
        BuildFailed: Go could not be had, or a build failed.
        BinaryMissing: one is missing that is not built from source.
    """
    say = report or _to_stderr
    found = {name: find(name) for name in names}
    missing = [TOOLS[name].go for name, path in found.items() if path is None]
    programs = [program for program in missing if program is not None]
    if programs:
        gobuild.build(programs, say)
    return {name: path or need(name) for name, path in found.items()}


def reported_version(tool: Tool, binary: Path) -> Version | None:
    """Ask a program for its version; None when it does not run or says nothing like one."""
    return _reported(binary, tool.version_command)


def _candidates(tool: Tool) -> Iterator[Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        yield Path(assets) / tool.name
    if tool.go is not None:
        yield gobuild.cached(tool.go)
    else:
        yield Path(sysconfig.get_path("scripts")) / tool.name


def _usable_on_path(tool: Tool) -> Path | None:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which(tool.name, path=folder) if folder else None
        if found and tool.accepts(reported_version(tool, Path(found))):
            return Path(found)
    return None


@cache
def _reported(binary: Path, arguments: tuple[str, ...]) -> Version | None:
    try:
        done = subprocess.run(
            [binary, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bv?(\d+)\.(\d+)\.\d+", done.stdout)
    return (int(match[1]), int(match[2])) if match and done.returncode == 0 else None


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
