"""The story that the demo tells: declare, provision, consume, kill, take over; every claim is checked as it is made."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

from streamhold_dev import binaries, folders, kept, ports, processes
from streamhold_dev.controlplane import ControlPlane
from streamhold_dev.demo import programs
from streamhold_dev.demo.console import Console, DemoFailed
from streamhold_dev.demo.programs import Program
from streamhold_dev.redisserver import RedisServer

NAMESPACE = "shop"
SYSTEM_NAMESPACE = "streamhold-system"
RELEASE = "streamhold"
ORDERS = 1000
CLIENT = "shop"
STREAM = f"streamhold:{NAMESPACE}:orders"
GROUP = "billing"
LEASE = f"streamhold:{NAMESPACE}:lease:jobs/nightly-report"
KINDS = ("redisconnection", "streamtopic", "leasepolicy", "coordinationclient")

_OPERATOR_READY = 30.0
_OBJECTS_READY = 30.0
_ALL_HANDLED = 60.0
_TAKEOVER = 20.0


class Story:
    """One run of the demo in its own folder."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder = folder
        self.console = console
        self.logs = folder / "logs"
        self.control_plane: ControlPlane
        self.redis: RedisServer
        self.operator: processes.Server
        self.binding: Path
        self.service_account = ""
        self.left_behind: set[int] = set()
        self._programs: list[Program] = []
        self._ends: list[Callable[[], None]] = []
        self._watched = True

    def tell(self, *, keep: bool) -> None:
        """Run it from the beginning to the end.

        Raises:
            DemoFailed: something did not happen, or not in time.
            StartError, CommandFailed: a part did not start, a command was refused.
        """
        self._watched = not keep
        self.logs.mkdir(parents=True)
        self.start_servers()
        self.install_chart()
        self.start_operator()
        self.declare()
        self.show_objects()
        self.mount_binding()
        self.refuse_what_was_not_granted()
        with self.running_programs():
            self.handle_orders_and_kill()
        self.check_operator()

    # ---- set-up ----

    def start_servers(self) -> None:
        """Start the control plane and a Valkey."""
        self.console.step("Start etcd, kube-apiserver, kube-controller-manager and a Valkey")
        began = time.monotonic()
        self.control_plane = ControlPlane.start(self.folder / "controlplane", watched=self._watched)
        self._ends.append(self.control_plane.stop)
        self.console.say(f"API server {self.control_plane.server}, ready after {time.monotonic() - began:.1f} s")
        self.redis = RedisServer(password=secrets.token_urlsafe(16), aclfile=True, folder=self.folder / "redis")
        self.redis.start(watched=self._watched)
        self._ends.append(self.redis.stop)
        self.console.say(f"Valkey 127.0.0.1:{self.redis.port}, password and ACLs on")

    def install_chart(self) -> None:
        """Install the chart as a user would."""
        self.console.step("Install the chart: CRDs, service account, RBAC, Deployment")
        chart = folders.REPOSITORY / "charts" / "streamhold"
        command = ("install", RELEASE, str(chart), "--namespace", SYSTEM_NAMESPACE, "--create-namespace")
        output = self.control_plane.helm(*command)
        facts = [line for line in output.splitlines() if line.startswith(("NAME:", "NAMESPACE:", "STATUS:"))]
        self.console.ran(
            f"helm install {RELEASE} charts/streamhold --namespace {SYSTEM_NAMESPACE} --create-namespace",
            "\n".join(facts),
        )
        for kind in KINDS:
            self.kubectl("wait", "--for=condition=Established", f"crd/{plural(kind)}.streamhold.dev", "--timeout=30s")
        account = json.loads(self.kubectl("get", "deployment", "-n", SYSTEM_NAMESPACE, "-o", "json"))
        self.service_account = account["items"][0]["spec"]["template"]["spec"]["serviceAccountName"]
        self.console.check(True, "helm install succeeded and the four CRDs are established")
        self.console.say("(there is no node: the Deployment's pod stays Pending, the operator runs as a process here)")

    def start_operator(self) -> None:
        """Run the operator as a local process with the chart's rights (there is no node to run its pod)."""
        self.console.step(f"Start the operator as service account {SYSTEM_NAMESPACE}/{self.service_account}")
        kubeconfig = self.control_plane.kubeconfig_for(
            SYSTEM_NAMESPACE, self.service_account, self.folder / "operator.kubeconfig"
        )
        port = ports.free_port()
        flags = ["--kubeconfig", str(kubeconfig), "--liveness-port", str(port), "--metrics-port", "0"]
        command = [sys.executable, "-m", "streamhold_operator", *flags]
        self.operator = processes.Server("operator", command, self.logs / "operator.log", env={"PYTHONUNBUFFERED": "1"})
        self._ends.append(self.operator.end)
        if self._watched:
            self.operator.guard()
        self.console.ran(f"python -m streamhold_operator --kubeconfig … --liveness-port {port}")
        self.console.wait("the operator gets ready", lambda: self._operator_answers(port), timeout=_OPERATOR_READY)
        self.console.check(self.operator.alive, "the operator runs under the chart's RBAC")

    def _operator_answers(self, port: int) -> bool:
        if not self.operator.alive:
            raise DemoFailed(f"the operator ended:\n{self.operator.tail()}")
        return programs.answers(f"http://127.0.0.1:{port}/readyz")

    # ---- declare ----

    def declare(self) -> None:
        """Apply the quickstart and wait until everything is Ready."""
        self.console.step("Declare: kubectl apply -f examples/quickstart")
        self.kubectl("create", "namespace", NAMESPACE)
        password = f"--from-literal=password={self.redis.password}"
        user = f"--from-literal=username={self.redis.admin_username}"
        self.kubectl("create", "secret", "generic", "redis-admin", "-n", NAMESPACE, user, password)
        shown = "--from-literal=username=… --from-literal=password=…"
        self.console.ran(f"kubectl create secret generic redis-admin -n {NAMESPACE} {shown}")
        manifests = programs.quickstart_for(f"127.0.0.1:{self.redis.port}", self.folder / "quickstart")
        output = self.kubectl("apply", "-n", NAMESPACE, "-f", str(manifests))
        self.console.ran(f"kubectl apply -n {NAMESPACE} -f examples/quickstart", output)
        self.console.wait(
            "everything gets Ready",
            lambda: all(ready == "True" for ready in self._readiness().values()),
            timeout=_OBJECTS_READY,
            progress=lambda: ", ".join(f"{name} {ready}" for name, ready in self._readiness().items()),
        )

    def _readiness(self) -> dict[str, str]:
        found = json.loads(self.kubectl("get", "streamhold", "-n", NAMESPACE, "-o", "json"))
        states = {}
        for one in found["items"]:
            conditions = one.get("status", {}).get("conditions", [])
            ready = next((c for c in conditions if c["type"] == "Ready"), {"status": "Unknown"})
            states[f"{one['kind']}/{one['metadata']['name']}"] = ready["status"]
        return states

    def show_objects(self) -> None:
        """Show what kubectl shows."""
        self.console.ran(f"kubectl get streamhold -n {NAMESPACE}", self.kubectl("get", "streamhold", "-n", NAMESPACE))
        described = self.kubectl("describe", "coordinationclient", CLIENT, "-n", NAMESPACE)
        status = described[described.index("\nStatus:") + 1 :]
        self.console.ran(f"kubectl describe coordinationclient {CLIENT} -n {NAMESPACE}   (from Status on)", status)
        count = len(self._readiness())
        self.console.check(count == 5, f"the {count} objects are Ready: connection, two topics, lease policy, client")

    def mount_binding(self) -> None:
        """Lay the binding Secret out as a pod would have it mounted."""
        self.console.step("Mount the binding Secret: all that the programs know")
        secret = programs.secret_of_client(self.control_plane, NAMESPACE, CLIENT)
        self.binding = programs.mount(secret, self.folder / "binding")
        files = sorted(path.name for path in self.binding.iterdir() if not path.name.startswith("."))
        self.console.say(f"Secret {secret['metadata']['name']}, type {secret['type']}: {', '.join(files)}")
        self.console.say(f"Redis user {(self.binding / 'username').read_text()}")

    def refuse_what_was_not_granted(self) -> None:
        """Show that the client's Redis user can touch its own keys only."""
        user, password = ((self.binding / name).read_text() for name in ("username", "password"))
        with redis.Redis(port=self.redis.port, username=user, password=password, decode_responses=True) as client:
            try:
                client.set("somebody-elses-key", "1")
            except redis.exceptions.NoPermissionError as refusal:
                self.console.check(True, f"Redis refuses that user everything else: “{refusal}”")
            else:
                raise DemoFailed("the client's user may write keys that it was not granted")

    # ---- consume ----

    @contextlib.contextmanager
    def running_programs(self) -> Iterator[None]:
        """Start consumers and schedulers; end them afterwards, whatever happens."""
        self.console.step("Start two workers of one group, an auditor of everything, two schedulers")
        self.worker_1 = self._start("worker-1", "worker.py", "worker-1")
        self.worker_2 = self._start("worker-2", "worker.py", "worker-2")
        self.auditor = self._start("auditor", "auditor.py", str(ORDERS))
        self.scheduler_a = self._start("scheduler-a", "scheduler.py", "scheduler-a")
        self.scheduler_b = self._start("scheduler-b", "scheduler.py", "scheduler-b")
        started = [self.worker_1, self.worker_2, self.auditor, self.scheduler_a, self.scheduler_b]
        try:
            for program, words in zip(started, ["is ready"] * 3 + ["is waiting"] * 2, strict=True):
                line = self.console.wait(program.name, lambda p=program, w=words: p.printed(w), timeout=20)  # type: ignore[misc]
                self.console.say(line)
            yield
            self.console.step("Ask the programs that still run to end (SIGTERM)")
            for program in (self.worker_2, *(one for one in (self.scheduler_a, self.scheduler_b) if one.server.alive)):
                how = program.end()
                self.console.check(how.startswith("ended in"), f"{program.name} {how}")
        finally:
            for program in self._programs:
                program.end()

    def _start(self, name: str, file: str, *arguments: str) -> Program:
        path = programs.example("orders") / file
        program = Program(name, path, *arguments, binding=self.binding, logs=self.logs)
        self._programs.append(program)
        return program

    def handle_orders_and_kill(self) -> None:
        """Publish, kill the worker that holds work and the lease holder, and see that nothing is lost."""
        self.console.step(f"Publish {ORDERS} orders; kill a worker in the middle of its work")
        publisher = self._start("publisher", "publisher.py", str(ORDERS))
        self.kill_worker()
        published = self.console.wait(
            "publisher", lambda: publisher.printed(f"published {ORDERS}"), timeout=30, progress=lambda: publisher.last
        )
        self.console.check(True, f"{published}: the publisher is done")
        self.kill_lease_holder()
        self.check_all_handled()

    def kill_worker(self) -> None:
        """SIGKILL worker-1 while the group's list of pending entries shows that it holds some."""
        worker = self.worker_1

        def holds_work() -> bool:
            return min(len(billed(worker)), len(billed(self.worker_2))) >= 50 and bool(self._held_by(worker.server.pid))

        self.console.wait("both workers have billed 50 orders and worker-1 holds more", holds_work, timeout=30)
        worker.server.signal(signal.SIGSTOP)  # so that what it holds can be listed
        self.left_behind = self._held_by(worker.server.pid)
        shares = len(billed(worker)), len(billed(self.worker_2))
        worker.kill()
        self.console.check(min(shares) > 0, f"the two workers shared the first orders: {shares[0]} and {shares[1]}")
        self.console.check(
            bool(self.left_behind),
            f"SIGKILL to worker-1 after {len(billed(worker))} orders, with {len(self.left_behind)} in its hands:"
            f" {told(self.left_behind)}",
        )

    def _held_by(self, pid: int) -> set[int]:
        """The orders that are pending for the consumer in this process."""
        with redis.Redis.from_url(self.redis.url(), decode_responses=True) as client:
            entries = client.xpending_range(STREAM, GROUP, "-", "+", 1000)
        ids = [entry["message_id"] for entry in entries if f"-{pid}-" in entry["consumer"]]
        events = [self.redis.cli("XRANGE", STREAM, one, one)[0][1]["event"] for one in ids]
        return {json.loads(event)["data"]["order"] for event in events}

    def _pending(self) -> int:
        return int(self.redis.cli("XPENDING", STREAM, GROUP)["pending"])

    def kill_lease_holder(self) -> None:
        """SIGKILL the scheduler that holds the lease; the other one takes over with a larger token."""
        self.console.step("Kill the lease holder")
        schedulers = [self.scheduler_a, self.scheduler_b]
        holder = next(program for program in schedulers if program.printed("runs the job"))
        other = next(program for program in schedulers if program is not holder)
        first = token_of(holder.printed("runs the job"))
        key = LEASE
        self.console.ran(f"GET {key}", str(self.redis.cli("GET", key)))
        self.console.check(self.redis.cli("GET", key) == holder.name, f"{holder.name} holds the lease, token {first}")
        self.console.check(other.printed("runs the job") is None, f"{other.name} waits")
        killed = time.monotonic()
        holder.kill()
        line = self.console.wait(
            f"{other.name} takes over when the ttl (5 s) is over",
            lambda: other.printed("runs the job"),
            timeout=_TAKEOVER,
            progress=lambda: f"the key's remaining ttl is {self.redis.cli('PTTL', key)} ms",
        )
        second = token_of(line)
        self.console.say(line)
        self.console.check(
            second > first,
            f"{other.name} took over {time.monotonic() - killed:.1f} s after the SIGKILL with a larger token, {second}",
        )

    def check_all_handled(self) -> None:
        """Every order was handled and nothing is left pending."""
        self.console.step("Wait for the killed worker's orders")
        line = self.console.wait(
            "all orders get a receipt",
            lambda: self.auditor.printed("complete:"),
            timeout=_ALL_HANDLED,
            progress=lambda: self.auditor.last,
        )
        expected = f"complete: {ORDERS} orders, {ORDERS} with a receipt"
        self.console.check(line.startswith(expected), f"the auditor saw everything: {line}")
        taken_over = self.left_behind & billed(self.worker_2)
        self.console.check(
            taken_over == self.left_behind, f"worker-2 billed all of what worker-1 had in its hands: {told(taken_over)}"
        )
        self.console.wait("nothing is pending", lambda: self._pending() == 0, timeout=10)
        self.console.check(True, "no order is pending in the group any more")

    # ---- the end ----

    def check_operator(self) -> None:
        """The operator met no missing right and has nothing left to do."""
        self.console.step("Look at the operator and at what is there now")
        user = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{self.service_account}"
        entries = self.control_plane.audit(user=user)
        refused = [str(entry) for entry in entries if entry.denied_by_rbac]
        self.console.check(
            bool(entries) and not refused, f"{len(entries)} API requests of the operator, none refused (403)"
        )
        self.console.ran(f"kubectl get streamhold -n {NAMESPACE}", self.kubectl("get", "streamhold", "-n", NAMESPACE))
        ready = self._readiness()
        self.console.check(set(ready.values()) == {"True"}, "everything is still Ready")

    def end(self) -> None:
        """End everything, last started first.

        Raises:
            DemoFailed: the operator did not end cleanly within five seconds of SIGTERM.
        """
        if self.operator.alive:
            began = time.monotonic()
            self.operator.signal(signal.SIGTERM)
            code = self.operator.wait(10)
            took = time.monotonic() - began
            self.console.check(code == 0 and took < 5, f"SIGTERM ended the operator cleanly in {took:.1f} s")
        self.abandon()

    def abandon(self) -> None:
        """End everything without checking how."""
        while self._ends:
            self._ends.pop()()

    def leave_running(self) -> None:
        """Let the servers and the operator go on and print how to use them; `down` ends them."""
        kept.keep(self.folder, [self.redis.server.process, self.operator.process])
        self.control_plane.disown()
        self.operator.disown()
        self.redis.server.disown()
        self.console.step("It keeps running; `make down` ends it")
        python, kubectl = sys.executable, binaries.need("kubectl")
        self.console.say(f"export KUBECONFIG={self.control_plane.kubeconfig}")
        self.console.say(f"export STREAMHOLD_BINDING={self.binding}")
        self.console.say(f"{kubectl} get streamhold -n {NAMESPACE}")
        self.console.say(f"{python} examples/orders/worker.py me &")
        self.console.say(f"{python} examples/orders/publisher.py 10")
        self.console.say("After a change of the client, or for another one, mount its Secret anew:")
        self.console.say(f"{python} -m streamhold_dev mount --namespace {NAMESPACE} {CLIENT}")

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl as the admin."""
        return self.control_plane.kubectl(*arguments)


def plural(kind: str) -> str:
    """The plural of one of our kinds."""
    return "leasepolicies" if kind == "leasepolicy" else f"{kind}s"


def token_of(line: str | None) -> int:
    """The fencing token that a scheduler printed."""
    if line is None:
        raise DemoFailed("no scheduler holds the lease")
    return int(line.rsplit(" ", 1)[1])


def billed(worker: Program) -> set[int]:
    """The orders that a worker says it has billed."""
    return {int(line.split("order ")[1].split()[0]) for line in worker.lines if "billed order" in line}


def told(orders: set[int]) -> str:
    """Some numbers as text, not all when they are many."""
    listed = sorted(orders)
    return ", ".join(map(str, listed[:5])) + (f" … {listed[-1]}" if len(listed) > 5 else "")
