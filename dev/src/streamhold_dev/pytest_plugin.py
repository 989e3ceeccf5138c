"""Pytest fixtures: real servers for the tests, started when the first test asks for them.

Loaded by the root pyproject (`-p streamhold_dev.pytest_plugin`). Servers are shared by a session, and the control plane
by all workers of a session; isolation is by key prefix and namespace. Tests that kill or restart use `own_redis`, tests
that install or remove what is cluster-wide use `own_control_plane`.

The first worker that needs the control plane starts it, under a lock. It belongs to the controller: that one ends it at
the end of the session, and a watchdog does when the controller is killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamhold_dev import flavours, folders
from streamhold_dev.proxy import Proxy

if TYPE_CHECKING:
    from streamhold_dev.controlplane import ControlPlane
    from streamhold_dev.redisserver import RedisServer

ADMIN_PASSWORD = "admin-password-of-the-tests"  # of servers on loopback that live as long as the run
_numbers = itertools.count(1)
_SESSION_FOLDER = "STREAMHOLD_DEV_SESSION"
"""Environment variable by which the controller tells its workers where the session's control plane lives."""


def pytest_configure(config: pytest.Config) -> None:
    """Choose the folder of the session's control plane; workers inherit it."""
    if not hasattr(config, "workerinput"):
        name = f"streamhold-tests-{os.getpid()}-{secrets.token_hex(4)}"
        os.environ[_SESSION_FOLDER] = str(Path(tempfile.gettempdir()) / name)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the session's control plane; the workers, if any, are done by now."""
    folder = Path(os.environ[_SESSION_FOLDER])
    if hasattr(session.config, "workerinput") or not folder.exists():
        return
    from streamhold_dev.controlplane import ControlPlane

    ControlPlane.end_in(folder / "controlplane")
    shutil.rmtree(folder)


class RedisFleet:
    """The servers of one session by flavour, each started on first use."""

    def __init__(self) -> None:
        self.running: dict[str, RedisServer] = {}

    def __getitem__(self, flavour: str) -> RedisServer:
        from streamhold_dev.redisserver import RedisServer

        if flavour not in self.running:
            self.running[flavour] = RedisServer(flavour, password=ADMIN_PASSWORD).start()
        return self.running[flavour]

    def stop(self) -> None:
        """End all of them."""
        for server in self.running.values():
            server.stop()


@pytest.fixture(scope="session")
def redis_fleet() -> Iterator[RedisFleet]:
    """The session's servers by flavour: `redis_fleet["redis-6.2"]`."""
    fleet = RedisFleet()
    yield fleet
    fleet.stop()


@pytest.fixture(scope="session")
def redis_server(redis_fleet: RedisFleet) -> RedisServer:
    """The session's server (Valkey, with a password and ACLs); shared, so use `key_prefix` and never FLUSHALL."""
    return redis_fleet[flavours.DEFAULT]


@pytest.fixture(scope="session", params=list(flavours.FLAVOURS))
def redis_flavour(request: pytest.FixtureRequest) -> str:
    """The name of each flavour in turn; one that this machine lacks is skipped, and fails where CI is set."""
    name: str = request.param
    try:
        flavours.flavour(name).binary()
    except flavours.FlavourMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    return name


@pytest.fixture(scope="session")
def any_redis_server(redis_fleet: RedisFleet, redis_flavour: str) -> RedisServer:
    """The session's server of each flavour in turn; shared like `redis_server`."""
    return redis_fleet[redis_flavour]


@pytest.fixture
def own_redis() -> Iterator[Callable[..., RedisServer]]:
    """Start servers of the test's own, to kill and restart: `own_redis(flavour, appendonly=True, …)`."""
    from streamhold_dev.redisserver import RedisServer

    started: list[RedisServer] = []

    def start(flavour: str = flavours.DEFAULT, **options: Any) -> RedisServer:
        server = RedisServer(flavour, **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def key_prefix(request: pytest.FixtureRequest, redis_fleet: RedisFleet) -> Iterator[str]:
    """A key prefix of the test's own on the shared servers; keys that have it in their name are deleted afterwards."""
    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:8]
    prefix = f"t:{digest}:{next(_numbers)}"
    yield prefix
    for server in redis_fleet.running.values():
        server.delete_keys(prefix)


@pytest.fixture
def proxy() -> Iterator[Callable[[int], Proxy]]:
    """Put misbehaving proxies before servers: `proxy(redis_server.port)`."""
    started: list[Proxy] = []

    def start(target_port: int) -> Proxy:
        started.append(Proxy(target_port).start())
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture(scope="session")
def control_plane() -> ControlPlane:
    """The session's Kubernetes control plane; `STREAMHOLD_DEV_KUBECONFIG` names a running one to use instead."""
    from streamhold_dev.controlplane import ControlPlane

    running = os.environ.get("STREAMHOLD_DEV_KUBECONFIG")
    if running:
        return ControlPlane.from_kubeconfig(Path(running))
    with _session_lock() as session_folder:
        folder = session_folder / "controlplane"
        if ControlPlane.is_in(folder):
            return ControlPlane.attach(folder)
        # A worker's parent is the controller.
        owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        plane = ControlPlane.start(folder, owner=owner)
        plane.disown()
        return plane


@pytest.fixture
def own_control_plane() -> Iterator[Callable[[], ControlPlane]]:
    """Start control planes of the test's own (some 4 s each), to install what is cluster-wide."""
    from streamhold_dev.controlplane import ControlPlane

    started: list[ControlPlane] = []

    def start() -> ControlPlane:
        started.append(ControlPlane.start())
        return started[-1]

    yield start
    for plane in started:
        plane.stop()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[str]:
    """A new namespace of the test's own; its deletion is started, but not waited for, when the test ends."""
    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:8]
    name = f"t-{digest}-{secrets.token_hex(2)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="session")
def crds(control_plane: ControlPlane) -> list[Path]:
    """The project's CRDs, applied and established; the value is their files."""
    files = sorted((folders.REPOSITORY / "crds").glob("*.yaml"))
    if not files:
        pytest.fail("no CRDs in crds/: `make crds` writes them")
    with _session_lock() as session_folder:
        done = session_folder / "crds-applied"
        if not done.exists():
            words = [word for file in files for word in ("--filename", str(file))]
            control_plane.kubectl("apply", "--server-side", "--force-conflicts", *words)
            control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *words)
            done.touch()
    return files


@contextmanager
def _session_lock() -> Iterator[Path]:
    """Hold the lock that the workers of a session share; gives the session's folder."""
    folder = Path(os.environ[_SESSION_FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
