"""One real Redis or Valkey server in its own folder, on a loopback port it keeps over restarts.

Standalone only. Sentinel, Cluster and TLS deployments are made of these servers (the same binary with other `config`)
and get a module of their own each; what they share with this one is `url`, `client` and `stop`.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from streamhold_dev import flavours, ports, processes
from streamhold_dev.waiting import eventually_sync

if TYPE_CHECKING:
    import redis
    import redis.asyncio

_START_TRIES = 5
_START_DEADLINE = 20.0


class RedisServer:
    """A server with start, stop, kill, restart and pause; ended with this process whatever happens.

    Who may log in: without `password` everybody. With it the admin is the user `default`; with `default_user_open` too,
    the admin is a user `admin` and `default` needs no password. `aclfile` keeps users that `ACL SAVE` wrote over
    restarts; without it a restart forgets all but these.
    """

    def __init__(
        self,
        flavour: str = flavours.DEFAULT,
        *,
        password: str | None = None,
        default_user_open: bool = False,
        aclfile: bool = False,
        appendonly: bool = False,
        databases: int = 16,
        config: Mapping[str, str] | None = None,
        folder: Path | None = None,
        port: int | None = None,
    ) -> None:
        """Describe the server; `start` (or `with`) starts it.

        Args:
            flavour: one of `flavours.FLAVOURS`.
            config: further lines of its configuration file, by directive.
            folder: where its data lives; by default a temporary folder that `stop` removes.
            port: the port to use; by default a free one.
        """
        self.flavour = flavours.flavour(flavour)
        self.password = password
        self.host = ports.HOST
        self.admin_username = "admin" if password and default_user_open else "default"
        self._default_user_open = default_user_open
        self._aclfile, self._appendonly, self._databases = aclfile, appendonly, databases
        self._config = dict(config or {})
        self._port = port
        self._port_is_new = port is None  # until its first start nobody knows it, so another will do
        self._own_folder = folder is None
        self._folder = folder
        self._server: processes.Server | None = None

    # ---- running it ----

    @property
    def port(self) -> int:
        """The port it listens on; the same after a restart."""
        if self._port is None:
            raise RuntimeError(f"the {self.flavour.name} server has no port before its first start")
        return self._port

    @property
    def folder(self) -> Path:
        """Its data, configuration and log."""
        if self._folder is None:
            raise RuntimeError(f"the {self.flavour.name} server has no folder before its first start or after its stop")
        return self._folder

    @property
    def server(self) -> processes.Server:
        """The running process (of the last start)."""
        if self._server is None:
            raise RuntimeError(f"the {self.flavour.name} server was not started")
        return self._server

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._server is not None and self._server.alive

    def start(self, *, watched: bool = True) -> Self:
        """Start it and return when it answers; its data is loaded then.

        Args:
            watched: end it when this process dies; False leaves it running (`up`, the kept demo).

        Raises:
            FlavourMissing: there is no such server on this machine.
            StartError: it did not come up; the message ends with its log.
        """
        if self.alive:
            return self
        binary = self.flavour.binary()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="streamhold-redis-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        failure = ""
        for _ in range(_START_TRIES):
            if self._port is None:
                self._port = ports.free_port()
            server = processes.Server(self.flavour.name, [binary, self._write_config()], self._folder / "server.log")
            if self._answers(server):
                self._server = server
                self._port_is_new = False
                if watched:
                    server.guard(folder=self._folder if self._own_folder else None)
                return self
            failure = f"{self.flavour.name} on port {self._port} did not start:\n{server.tail()}"
            if "Address already in use" not in server.tail():
                break
            if self._port_is_new:
                self._port = None
        if self._server is None:
            self._remove_folder()
        raise processes.StartError(failure)

    def stop(self) -> None:
        """End it (SIGTERM) and remove its folder if it is a temporary one."""
        self.shut_down()
        self._remove_folder()

    def shut_down(self) -> None:
        """End it in an orderly way and keep its data: `start` brings it back on the same port."""
        if self._server is not None:
            self._server.end()

    def kill(self) -> None:
        """End it with SIGKILL and keep its data: `start` brings it back on the same port."""
        if self._server is not None:
            self._server.kill()

    def restart(self) -> None:
        """End it in an orderly way and start it on the same port and data."""
        self.shut_down()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay, nothing is answered."""
        self.server.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self.server.signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- talking to it ----

    def url(self, username: str | None = None, password: str | None = None, *, database: int = 0) -> str:
        """The URL of a user, by default of the admin."""
        if username is None and password is None:
            username, password = self._admin()
        login = ""
        if password is not None:
            login = f"{quote(username or '', safe='')}:{quote(password, safe='')}@"
        return f"redis://{login}{self.host}:{self.port}/{database}"

    def client(self, **options: Any) -> redis.asyncio.Redis:
        """A redis-py client as the admin, to be closed (`async with`); replies are decoded by default."""
        import redis.asyncio

        username, password = self._admin()
        settings: dict[str, Any] = {"username": username, "password": password, "decode_responses": True, **options}
        return redis.asyncio.Redis(host=self.host, port=self.port, **settings)

    def cli(self, *words: str | int | float | bytes) -> Any:
        """Send one command as the admin and return its decoded reply, without an event loop."""
        with self._sync_client() as client:
            return client.execute_command(*words)

    def delete_keys(self, part: str) -> int:
        """Delete all keys of database 0 whose name has this part (no glob characters); return how many."""
        with self._sync_client() as client:
            keys = list(client.scan_iter(match=f"*{part}*", count=1000))
            return int(client.delete(*keys)) if keys else 0

    def _sync_client(self, timeout: float = 10.0) -> redis.Redis:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        username, password = self._admin()
        return redis.Redis(
            host=self.host,
            port=self.port,
            username=username,
            password=password,
            decode_responses=True,
            socket_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )

    def _admin(self) -> tuple[str | None, str | None]:
        return (self.admin_username, self.password) if self.password else (None, None)

    # ---- inside ----

    def _remove_folder(self) -> None:
        if self._own_folder and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _answers(self, server: processes.Server) -> bool:
        """Wait until it answers PING; False when it ended or did not come up in time."""
        import redis

        def up() -> bool:
            if not server.alive:
                return True
            try:
                with self._sync_client(timeout=1.0) as client:
                    return bool(client.ping())
            except (redis.ConnectionError, redis.TimeoutError):  # not listening yet, or still loading its data
                return False

        try:
            eventually_sync(up, timeout=_START_DEADLINE, message=f"{self.flavour.name} does not answer")
        except AssertionError:
            server.kill()
        return server.alive

    def _write_config(self) -> Path:
        path = self.folder / "server.conf"
        directives: dict[str, str] = {
            "bind": self.host,
            "port": str(self.port),
            "dir": shlex.quote(str(self.folder)),
            "databases": str(self._databases),
            "save": '""',
            "appendonly": "yes" if self._appendonly else "no",
            **({} if self.flavour.version < (7, 0) else {"enable-debug-command": "local"}),
            **self._config,
        }
        lines = [f"{name} {value}" for name, value in directives.items()]
        if self._aclfile:
            users = self.folder / "users.acl"
            if not users.exists():
                users.write_text("".join(f"{line}\n" for line in self._users()))
            lines.append(f"aclfile {shlex.quote(str(users))}")
        else:
            lines += self._users()
        path.write_text("\n".join(lines) + "\n")
        return path

    def _users(self) -> list[str]:
        everything = "~* &* +@all"
        if not self.password:
            return [f"user default on nopass {everything}"]
        # As a hash: a password may hold any character, and the configuration file's quoting need not know.
        digest = hashlib.sha256(self.password.encode()).hexdigest()
        users = [f"user {self.admin_username} on #{digest} {everything}"]
        if self._default_user_open:
            users.append(f"user default on nopass {everything}")
        return users
