"""A world for one operator process: its own control plane with the chart's RBAC, and objects to declare in it.

The operator serves the whole cluster, so it gets a control plane of its own: two operators would write to one object.
"""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from streamhold_dev import folders
from streamhold_dev.audit import WRITES, AuditEntry
from streamhold_dev.controlplane import ControlPlane
from streamhold_dev.ports import free_port
from streamhold_dev.processes import Server
from streamhold_dev.redisserver import RedisServer
from streamhold_dev.waiting import eventually_sync
from streamhold_operator.adapters.kube import OWN

Raw = dict[str, Any]

SYSTEM, ACCOUNT = "streamhold-system", "streamhold"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
_API = "streamhold.dev/v1alpha1"
_PATHS = {
    "RedisConnection": f"/apis/{_API}/namespaces/%s/redisconnections",
    "StreamTopic": f"/apis/{_API}/namespaces/%s/streamtopics",
    "LeasePolicy": f"/apis/{_API}/namespaces/%s/leasepolicies",
    "CoordinationClient": f"/apis/{_API}/namespaces/%s/coordinationclients",
    "Secret": "/api/v1/namespaces/%s/secrets",
    "Event": "/api/v1/namespaces/%s/events",
    "Namespace": "/api/v1/namespaces",
}
_numbers = itertools.count(1)


class OperatorProcess:
    """The real operator as a process, under the service account of the chart."""

    def __init__(self, kubeconfig: Path, folder: Path, *flags: str) -> None:
        self.log = folder / f"operator-{next(_numbers)}.log"
        self.liveness_port, self.metrics_port = free_port(), free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMHOLD_")}
        command: list[str | Path] = [sys.executable, "-m", "streamhold_operator", "--kubeconfig", kubeconfig]
        command += ["--bind-address", "127.0.0.1", "--liveness-port", str(self.liveness_port)]
        command += ["--metrics-port", str(self.metrics_port), *flags]
        self.server = Server("operator", command, self.log, environment)
        self.server.guard()

    def page(self, path: str) -> tuple[int, str]:
        """Return what an endpoint answers; status 0 while it does not."""
        port = self.metrics_port if path == "/metrics" else self.liveness_port
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()
        except OSError:
            return 0, ""

    def wait_ready(self) -> None:
        """Wait until it has read the cluster."""

        def ready() -> bool:
            assert self.server.alive, f"the operator ended:\n{self.server.tail(40)}"
            return self.page("/readyz")[0] == 200

        eventually_sync(ready, timeout=30, message="the operator is not ready")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[float, int]:
        """End it; return how many seconds that took, and its exit code."""
        started = time.monotonic()
        self.server.signal(number)
        code = self.server.wait(20)
        return time.monotonic() - started, code


class World:
    """One cluster, one operator."""

    def __init__(self, folder: Path, *flags: str, scope: Sequence[str] = ()) -> None:
        self.folder, self.flags = folder, (*flags, *([f"--namespaces={','.join(scope)}"] if scope else []))
        self.plane = ControlPlane.start()
        self._tls = ssl.create_default_context(cafile=str(self.plane.ca_file))
        for file in sorted((folders.REPOSITORY / "crds").glob("*.yaml")):
            self.plane.kubectl("apply", "--server-side", "--filename", file)
        eventually_sync(self._discovered, timeout=30, message="the API server does not tell of all our kinds")
        for name in scope:
            self.plane.kubectl("create", "namespace", name)
        chart = folders.REPOSITORY / "charts" / "streamhold"
        values = ["--set", "crds.enabled=false", "--set-json", f"namespaces={json.dumps(list(scope))}"]
        self.plane.helm("install", ACCOUNT, chart, "--namespace", SYSTEM, "--create-namespace", *values)
        self.kubeconfig = self.plane.kubeconfig_for(SYSTEM, ACCOUNT, folder / "operator.kubeconfig")
        self.operator = self.start_operator()

    def _discovered(self) -> bool:
        """Ask anew which kinds there are: kubectl keeps what it heard first, and that may have been too early."""
        found = self.plane.kubectl("api-resources", "--api-group=streamhold.dev", "--output=name")
        return len(found.split()) == len(OWN)

    def start_operator(self) -> OperatorProcess:
        """Start the operator (again) and wait until it works."""
        self.operator = OperatorProcess(self.kubeconfig, self.folder, *self.flags)
        self.operator.wait_ready()
        return self.operator

    def close(self) -> None:
        """End everything."""
        self.operator.server.end()
        self.plane.stop()

    # ---- the API server

    def request(self, method: str, path: str, body: Raw | None = None, content: str = "application/json") -> Raw | None:
        """Call the API server as the admin; None for what is not there.

        Raises:
            AssertionError: it answered with another error, which is in the message.
        """
        call = urllib.request.Request(
            self.plane.server + path,
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {self.plane.token}", "Content-Type": content},
        )
        try:
            with urllib.request.urlopen(call, timeout=20, context=self._tls) as answer:
                found: Raw = json.load(answer)
                return found
        except urllib.error.HTTPError as refused:
            with refused:
                if refused.code == 404:
                    return None
                raise AssertionError(f"{method} {path}: {refused.code} {refused.read().decode()}") from refused

    def namespace(self, **labels: str) -> str:
        """Create a namespace of a new name."""
        name = f"t{os.getpid()}-{next(_numbers)}"
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        return name

    def create(self, namespace: str, *objects: Raw) -> None:
        """Create objects, one after the other."""
        for one in objects:
            self.request("POST", _PATHS[one["kind"]] % namespace, one)

    def get(self, kind: str, namespace: str, name: str) -> Raw | None:
        """Read an object; None when there is none."""
        return self.request("GET", _path(kind, namespace, name))

    def patch(self, kind: str, namespace: str, name: str, change: Raw) -> None:
        """Merge a change into an object."""
        self.request("PATCH", _path(kind, namespace, name), change, "application/merge-patch+json")

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Ask for the deletion of an object."""
        self.request("DELETE", _path(kind, namespace, name))

    def events(self, namespace: str, name: str) -> list[Raw]:
        """Return the events of an object, oldest first."""
        found = self.request("GET", _PATHS["Event"] % namespace)
        assert found is not None
        mine = [event for event in found["items"] if event["involvedObject"]["name"] == name]
        return sorted(mine, key=lambda event: int(event["metadata"]["resourceVersion"]))

    def wait_reasons(self, namespace: str, name: str, expected: list[str]) -> None:
        """Wait until the object's events have exactly these reasons; an event follows the status that it tells of."""

        def told() -> bool:
            reasons = [event["reason"] for event in self.events(namespace, name)]
            assert reasons == expected
            return True

        eventually_sync(told, message=f"the events of {name}")

    def secret(self, namespace: str, name: str) -> dict[str, str] | None:
        """Return the entries of a Secret, decoded."""
        found = self.get("Secret", namespace, name)
        if found is None:
            return None
        return {entry: base64.b64decode(value).decode() for entry, value in (found.get("data") or {}).items()}

    def writes(self, since: int) -> list[AuditEntry]:
        """Return what the operator wrote since a position of the audit log."""
        return self.plane.audit(user=USER, verbs=WRITES, since=since)

    def forbidden(self) -> list[AuditEntry]:
        """Return what the operator asked for without having the right to."""
        return [entry for entry in self.plane.audit(user=USER) if entry.denied_by_rbac]

    # ---- waiting

    def wait_condition(self, kind: str, namespace: str, name: str, reason: str, timeout: float = 15) -> Raw:
        """Wait until the object is Ready for this reason (or not Ready for it); return the Ready condition."""

        def met() -> Raw | None:
            found = self.get(kind, namespace, name)
            assert found is not None, f"there is no {kind} {namespace}/{name}"
            ready = condition(found)
            assert ready is not None, "no Ready condition"
            assert ready["reason"] == reason, ready
            assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
            return ready

        return self._within(timeout, f"{kind} {name} is not {reason}", met)

    def wait_ready(self, kind: str, namespace: str, name: str, timeout: float = 15) -> Raw:
        """Wait until the object is Ready; return it."""
        self.wait_condition(kind, namespace, name, "Ready", timeout)
        found = self.get(kind, namespace, name)
        assert found is not None
        return found

    def wait_gone(self, kind: str, namespace: str, name: str, timeout: float = 30) -> None:
        """Wait until the object is gone."""
        self._within(timeout, f"{kind} {name} is still there", lambda: self.get(kind, namespace, name) is None)

    def wait_event(self, namespace: str, name: str, reason: str, timeout: float = 15) -> Raw:
        """Wait for an event of this reason and return the newest."""

        def found() -> Raw | None:
            return next((event for event in reversed(self.events(namespace, name)) if event["reason"] == reason), None)

        return self._within(timeout, f"no event {reason} for {name}", found)  # type: ignore[no-any-return]

    def _within(self, timeout: float, message: str, met: Any) -> Any:
        log = "\n" + self.operator.server.tail(25)
        try:
            return eventually_sync(met, timeout=timeout, message=message, interval=0.1)
        except AssertionError as late:
            log = "\nthe operator's log:\n" + self.operator.server.tail(25)
            raise AssertionError(str(late) + log) from late


def condition(found: Mapping[str, Any], kind: str = "Ready") -> Raw | None:
    """Return a condition of an object."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), None)


# ---- objects


def an_object(kind: str, name: str, spec: Raw) -> Raw:
    """An object of one of our kinds."""
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def a_secret(name: str, **entries: str) -> Raw:
    """A Secret."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": entries}


def a_login(server: RedisServer, name: str = "redis-admin") -> Raw:
    """The Secret with the admin's login of a server."""
    return a_secret(name, username=server.admin_username, password=server.password or "")


def a_connection(server: RedisServer | str, name: str = "main", **spec: Any) -> Raw:
    """A RedisConnection to a server, or to an endpoint."""
    endpoint = server if isinstance(server, str) else f"{server.host}:{server.port}"
    return an_object(
        "RedisConnection", name, {"endpoints": [endpoint], "adminSecretRef": {"name": "redis-admin"}, **spec}
    )


def a_topic(name: str, **spec: Any) -> Raw:
    """A StreamTopic."""
    return an_object("StreamTopic", name, {"connectionRef": {"name": "main"}, **spec})


def a_policy(name: str, **spec: Any) -> Raw:
    """A LeasePolicy."""
    return an_object("LeasePolicy", name, {"connectionRef": {"name": "main"}, **spec})


def a_client(name: str, grants: Mapping[str, list[str]] | None = None, **spec: Any) -> Raw:
    """A CoordinationClient with access to topics of its own namespace."""
    topics = [{"name": topic, "access": access} for topic, access in (grants or {}).items()]
    return an_object("CoordinationClient", name, {"connectionRef": {"name": "main"}, "topics": topics, **spec})


def log_in(binding: Mapping[str, str]) -> redis.Redis:
    """Log in as a binding Secret says."""
    return redis.Redis(
        host=binding["host"],
        port=int(binding["port"]),
        username=binding["username"],
        password=binding["password"],
        db=int(binding["database"]),
        decode_responses=True,
        protocol=2,
        driver_info=None,
    )


def lets_in(binding: Mapping[str, str]) -> bool:
    """Whether a binding's login works."""
    with log_in(binding) as client:
        try:
            client.ping()
        except redis.AuthenticationError:
            return False
    return True


def _path(kind: str, namespace: str, name: str) -> str:
    path = _PATHS[kind]
    return f"{path % namespace if '%s' in path else path}/{name}"


def older_than_the_next(made: Raw | None) -> None:
    """Wait until what is created now is younger: times of creation are whole seconds, within one the uid decides."""
    assert made is not None
    created = datetime.datetime.fromisoformat(made["metadata"]["creationTimestamp"].replace("Z", "+00:00"))
    eventually_sync(lambda: datetime.datetime.now(datetime.UTC) > created + datetime.timedelta(seconds=1.1))
