"""A real Kubernetes control plane on loopback: etcd, kube-apiserver and kube-controller-manager, no node.

RBAC is on, and the controllers run that objects depend on: garbage collection, namespace deletion, service accounts and
their tokens, aggregated roles, quotas not. Deployments get their ReplicaSets and Pods; the Pods stay Pending, as there
is no node. Everything lives in one folder; `ControlPlane.attach` finds a running one by it.
"""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from streamhold_dev import binaries, certificates, ports, processes
from streamhold_dev.audit import POLICY, AuditEntry, AuditLog
from streamhold_dev.waiting import NotInTime, eventually_sync

_TRIES = 3
_DEADLINE = 60.0
_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "deployment-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
)


class ControlPlane:
    """A running control plane and the means to use it: kubeconfig, kubectl, helm, tokens, the audit log."""

    def __init__(self, folder: Path) -> None:
        """Refer to the control plane in this folder; use `start` or `attach`."""
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.ca_file = folder / "ca.crt"
        self.audit_log = AuditLog(folder / "audit.log")
        self._processes: list[processes.Process] = []
        self._servers: list[processes.Server] = []
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._temporary = False
        self.server = ""
        self.token = ""

    # ---- running it ----

    @classmethod
    def start(cls, folder: Path | None = None, *, owner: int | None = None, watched: bool = True) -> ControlPlane:
        """Start one and return when it is ready to be used.

        Args:
            folder: where it lives; by default a temporary folder that `stop` removes. Must not hold another one.
            owner: the process it ends with, by default this one.
            watched: False leaves it running when its owner ends (`up`, the kept demo).

        Raises:
            BinaryMissing: run `make binaries` first.
            StartError: it did not come up; the message ends with the log of the part that failed.
        """
        paths = {name: binaries.need(name) for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")}
        temporary = folder is None
        home = Path(tempfile.mkdtemp(prefix="streamhold-controlplane-")) if folder is None else folder
        plane = cls(home)
        plane._temporary = temporary
        for attempt in range(1, _TRIES + 1):
            try:
                plane._start_servers(paths)
                break
            except processes.StartError as failure:
                plane.stop()
                if attempt == _TRIES or "address already in use" not in str(failure):
                    raise
        if watched:
            remove = home if temporary else None
            plane._watchdog = processes.guard(plane._servers, owner=owner, folder=remove)
        plane._write_state()
        return plane

    @classmethod
    def attach(cls, folder: Path) -> ControlPlane:
        """Use one that runs already, by its folder.

        Raises:
            StartError: none runs there.
        """
        plane = cls(folder)
        if not cls.is_in(folder):
            raise processes.StartError(f"no control plane was started in {folder}")
        plane._read_state()
        plane._read_kubeconfig()
        if not plane.alive:
            ended = ", ".join(one.name for one in plane._processes if not one.alive)
            raise processes.StartError(f"the control plane in {folder} is not running: {ended} ended")
        return plane

    @classmethod
    def from_kubeconfig(cls, kubeconfig: Path) -> ControlPlane:
        """Use one that was started by `up` or by hand; ending it is left to whoever started it."""
        plane = cls(kubeconfig.resolve().parent)
        plane.kubeconfig = kubeconfig.resolve()
        plane._read_kubeconfig()
        return plane

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Whether one was started in this folder and not stopped."""
        return (folder / "state.json").exists()

    @classmethod
    def end_in(cls, folder: Path) -> bool:
        """End the one in this folder, whoever started it and whatever is left of it; False when there is none."""
        if not cls.is_in(folder):
            return False
        plane = cls(folder)
        plane._read_state()
        plane.stop()
        return True

    @property
    def alive(self) -> bool:
        """Whether all of its processes run."""
        return bool(self._processes) and all(process.alive for process in self._processes)

    def stop(self) -> None:
        """End it, last started first, and remove its folder if it is a temporary one."""
        if self._servers:
            for server in reversed(self._servers):
                server.end()
        else:
            for process in reversed(self._processes):
                process.end()
        if self._watchdog is not None:
            processes.dismiss(self._watchdog)
            self._watchdog = None
        (self.folder / "state.json").unlink(missing_ok=True)
        self._servers, self._processes = [], []
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def disown(self) -> None:
        """Leave it to another process, which ends it by `ControlPlane.end_in(folder)`; its owner's end does so too."""
        for server in self._servers:
            server.disown()
        if self._watchdog is not None:
            processes.disown(self._watchdog)
            self._watchdog = None
        self._servers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- using it ----

    def kubectl(self, *arguments: str | Path, input: str | None = None, check: bool = True) -> str:
        """Run kubectl as the admin and return its output.

        Raises:
            CommandFailed: it ended with an error and `check` is true; `stderr` has the server's words.
        """
        return processes.run([binaries.need("kubectl"), *arguments], input=input, check=check, env=self.environment())

    def helm(self, *arguments: str | Path, input: str | None = None, check: bool = True) -> str:
        """Run helm as the admin and return its output; it sees no configuration of the user's own.

        Raises:
            CommandFailed: it ended with an error and `check` is true.
        """
        return processes.run([binaries.need("helm"), *arguments], input=input, check=check, env=self.environment())

    def environment(self) -> dict[str, str]:
        """Environment variables that point kubectl, helm and client libraries here and nowhere else."""
        home = self.folder / "home"
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(home / "kube"),
            "HELM_CACHE_HOME": str(home / "helm" / "cache"),
            "HELM_CONFIG_HOME": str(home / "helm" / "config"),
            "HELM_DATA_HOME": str(home / "helm" / "data"),
        }

    def apply(self, objects: str | Mapping[str, Any] | Sequence[Mapping[str, Any]], *, namespace: str = "") -> str:
        """`kubectl apply` YAML text, an object, or several.

        Raises:
            CommandFailed: the API server refused one; `stderr` has its words.
        """
        if not isinstance(objects, str):
            several = [objects] if isinstance(objects, Mapping) else list(objects)
            objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": several})
        where = ["--namespace", namespace] if namespace else []
        return self.kubectl("apply", *where, "--filename", "-", input=objects)

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        """Read one object.

        Raises:
            CommandFailed: it does not exist.
        """
        where = ["--namespace", namespace] if namespace else []
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, *where, "--output", "json"))
        return found

    def audit(
        self,
        *,
        user: str | None = None,
        verbs: Collection[str] | None = None,
        since: int | datetime | None = None,
        resource: str | None = None,
        namespace: str | None = None,
        code: int | None = None,
    ) -> list[AuditEntry]:
        """Requests to the API server so far; see `AuditLog.entries`. `audit_log.position()` is a mark for `since`."""
        return self.audit_log.entries(
            user=user, verbs=verbs, since=since, resource=resource, namespace=namespace, code=code
        )

    def token_for(self, namespace: str, service_account: str, *, duration: str = "24h") -> str:
        """Get a token of a service account, as its Pods would have one (TokenRequest)."""
        words = ("create", "token", service_account, "--namespace", namespace, "--duration", duration)
        return self.kubectl(*words).strip()

    def kubeconfig_for(self, namespace: str, service_account: str, path: Path) -> Path:
        """Write a kubeconfig for a service account: whoever uses it has its rights and no others."""
        self._write_kubeconfig(path, self.token_for(namespace, service_account), service_account, namespace)
        return path

    # ---- inside ----

    def _start_servers(self, paths: Mapping[str, Path]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        etcd_port, peer_port, api_port = ports.free_port(), ports.free_port(), ports.free_port()
        self.server = f"https://{ports.HOST}:{api_port}"
        self._write_files()
        api = f"http://{ports.HOST}:{etcd_port}"
        self._launch(paths["etcd"], self._etcd_flags(api, f"http://{ports.HOST}:{peer_port}"))
        self._launch(paths["kube-apiserver"], self._api_server_flags(api, api_port), GOGC="60")
        self._wait("is not ready", lambda: self._answers("/readyz"))
        self._launch(paths["kube-controller-manager"], self._controller_manager_flags(), GOGC="60")
        # Both come from controllers: when they are there, the controllers run.
        default = "/api/v1/namespaces/default"
        self._wait("has no default service account", lambda: self._answers(f"{default}/serviceaccounts/default"))
        self._wait("has no root certificate", lambda: self._answers(f"{default}/configmaps/kube-root-ca.crt"))

    def _launch(self, binary: Path, flags: Mapping[str, str], **environment: str) -> None:
        command: list[str | Path] = [binary, *(f"--{name}={value}" for name, value in flags.items())]
        log = self.folder / f"{binary.name}.log"
        log.unlink(missing_ok=True)
        server = processes.Server(binary.name, command, log, environment)
        self._servers.append(server)
        self._processes.append(server.process)

    def _wait(self, complaint: str, condition: Callable[[], bool]) -> None:
        def met() -> bool:
            for server in self._servers:
                if not server.alive:
                    raise processes.StartError(f"{server.name} ended while it started:\n{server.tail()}")
            return condition()

        try:
            eventually_sync(met, timeout=_DEADLINE, message=f"the control plane {complaint}", interval=0.05)
        except NotInTime as late:
            raise processes.StartError(f"{late}; {self._servers[-1].name} says:\n{self._servers[-1].tail()}") from late

    def _answers(self, path: str) -> bool:
        request = urllib.request.Request(self.server + path, headers={"Authorization": f"Bearer {self.token}"})
        context = ssl.create_default_context(cafile=str(self.ca_file))
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:  # not listening yet, or an HTTP error while it starts
            return False

    def _write_files(self) -> None:
        self.token = secrets.token_urlsafe(24)
        controller_token = secrets.token_urlsafe(24)
        authority = certificates.Authority("ca", self.folder)
        authority.issue("apiserver", self.folder, hosts=("127.0.0.1", "localhost", "kubernetes.default.svc"))
        certificates.write_key(ec.generate_private_key(ec.SECP256R1()), self.folder / "serviceaccount.key")
        (self.folder / "tokens.csv").write_text(
            f"{self.token},admin,admin,system:masters\n"
            f"{controller_token},system:kube-controller-manager,controllers,system:masters\n"
        )
        (self.folder / "audit-policy.yaml").write_text(POLICY)
        self._write_kubeconfig(self.kubeconfig, self.token, "admin")
        self._write_kubeconfig(self.folder / "controllers.kubeconfig", controller_token, "controllers")

    def _write_kubeconfig(self, path: Path, token: str, user: str, namespace: str = "default") -> None:
        ca = base64.b64encode(self.ca_file.read_bytes()).decode()
        cluster = {"server": self.server, "certificate-authority-data": ca}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "streamhold-dev",
            "clusters": [{"name": "streamhold-dev", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [
                {
                    "name": "streamhold-dev",
                    "context": {"cluster": "streamhold-dev", "user": user, "namespace": namespace},
                }
            ],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=2))  # JSON is YAML; PyYAML would write the namespace `y` unquoted

    def _read_kubeconfig(self) -> None:
        config = yaml.safe_load(self.kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.server = cluster["server"]
        self.token = config["users"][0]["user"].get("token", "")
        if not self.ca_file.exists() and "certificate-authority" in cluster:
            self.ca_file = Path(cluster["certificate-authority"])

    def _read_state(self) -> None:
        written = json.loads((self.folder / "state.json").read_text())
        self._processes = [processes.Process(**one) for one in written["processes"]]
        self._temporary = written["temporary"]

    def _write_state(self) -> None:
        state = {
            "started": time.time(),
            "temporary": self._temporary,
            "processes": [{"name": one.name, "pid": one.pid, "started": one.started} for one in self._processes],
        }
        (self.folder / "state.json").write_text(json.dumps(state, indent=2))

    def _etcd_flags(self, client: str, peer: str) -> dict[str, str]:
        return {
            "name": "default",
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }

    def _api_server_flags(self, etcd: str, port: int) -> dict[str, str]:
        folder = self.folder
        return {
            "etcd-servers": etcd,
            "bind-address": ports.HOST,
            "secure-port": str(port),
            "tls-cert-file": str(folder / "apiserver.crt"),
            "tls-private-key-file": str(folder / "apiserver.key"),
            "cert-dir": str(folder),
            "token-auth-file": str(folder / "tokens.csv"),
            "authorization-mode": "RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(folder / "serviceaccount.key"),
            "service-account-signing-key-file": str(folder / "serviceaccount.key"),
            "service-cluster-ip-range": "10.0.0.0/24",
            "audit-policy-file": str(folder / "audit-policy.yaml"),
            "audit-log-path": str(folder / "audit.log"),
            "audit-log-mode": "blocking",
            "audit-log-maxsize": "4096",
            # Fair queueing between users costs idle CPU and has nothing to decide with one user at a time.
            "enable-priority-and-fairness": "false",
            "profiling": "false",
        }

    def _controller_manager_flags(self) -> dict[str, str]:
        return {
            "kubeconfig": str(self.folder / "controllers.kubeconfig"),
            "controllers": ",".join(_CONTROLLERS),
            "service-account-private-key-file": str(self.folder / "serviceaccount.key"),
            "root-ca-file": str(self.ca_file),
            "leader-elect": "false",
            "secure-port": "0",
            "concurrent-gc-syncs": "4",
            "profiling": "false",
            # The defaults (20 a second) make the deletion of a namespace with some hundred objects take long.
            "kube-api-qps": "200",
            "kube-api-burst": "400",
        }
