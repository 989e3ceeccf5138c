"""The operator put together: what is started, in which order, and how it ends.

Start: the endpoints, then the wait for the API server and the CRDs, then one full list of everything (so that nothing
is decided on half of the objects), then workers, comparison and kopf. End: workers first, then the sessions with
Redis, then kopf; each within a bound, so that a hanging server holds nothing up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterable

import anyio
import anyio.abc
import kopf

from streamhold_operator import handlers
from streamhold_operator.adapters.kube import OWN, ApiError, ApiUnavailable, Kube, connection_info, load_configuration
from streamhold_operator.compare import Comparison
from streamhold_operator.health import Health, serve_pages
from streamhold_operator.metrics import Metrics
from streamhold_operator.queue import Backlog, Backoff, WorkQueue
from streamhold_operator.reconcile.base import Context
from streamhold_operator.reconcile.dispatch import work
from streamhold_operator.reconcile.sessions import Sessions
from streamhold_operator.settings import Settings
from streamhold_operator.store import KINDS, NAMESPACE, Key, Store

logger = logging.getLogger("streamhold_operator")

_KOPF_END = 2.0
_SESSIONS_END = 1.0
_LONGEST_WAIT_FOR_API = 10.0


class Operator:
    """One operator process."""

    def __init__(self, settings: Settings, *, on_stop: Callable[[], None]) -> None:
        self._settings = settings
        self._on_stop = on_stop
        self._stopping = asyncio.Event()
        self._served: tuple[str, ...] = ()
        self._store = Store()
        self._metrics = Metrics()
        silence = max(300.0, 4 * settings.compare_interval)
        self._health = Health(clock=anyio.current_time, longest_silence=silence)
        backlog = Backlog[Key](
            lambda key: self._store.connection_of(key) or key,
            backoff=Backoff(first=0.5, longest=min(30.0, settings.resync_interval)),
            per_group=max(1, settings.workers * 3 // 4),
            rng=random.Random(),
        )
        self._queue: WorkQueue[Key] = WorkQueue(backlog)
        self._metrics.watch_queue(lambda: len(backlog), lambda: backlog.running, lambda: backlog.sleeping)

    def stop(self) -> None:
        """Have the operator end; may be called more than once."""
        if not self._stopping.is_set():
            logger.info("Ending")
            self._on_stop()
        self._stopping.set()

    async def run(self) -> None:
        """Work until `stop` is called.

        Raises:
            OSError: a port cannot be opened.
            Exception: whatever ended kopf; the process should end and be started again.
        """
        configuration = await load_configuration(self._settings.kubeconfig)
        kube = Kube(configuration, reload=lambda: load_configuration(self._settings.kubeconfig))
        sessions = Sessions(anyio.current_time, self._enqueue)
        try:
            async with anyio.create_task_group() as group:
                await self._serve(group)
                group.start_soon(self._cancel_when_stopping, group)
                await self._operate(kube, sessions)
                group.cancel_scope.cancel()
        finally:
            with anyio.move_on_after(_SESSIONS_END, shield=True):
                await sessions.aclose()
            with anyio.move_on_after(_SESSIONS_END, shield=True):
                await kube.aclose()

    async def _cancel_when_stopping(self, group: anyio.abc.TaskGroup) -> None:
        await self._stopping.wait()
        group.cancel_scope.cancel()

    async def _serve(self, group: anyio.abc.TaskGroup) -> None:
        settings, health = self._settings, self._health
        if settings.liveness_port:
            pages = {"/healthz": health.healthz, "/readyz": health.readyz}
            group.start_soon(serve_pages, settings.liveness_port, settings.bind_address, pages)
        if settings.metrics_port:
            pages = {"/metrics": self._metrics.page}
            group.start_soon(serve_pages, settings.metrics_port, settings.bind_address, pages)

    async def _operate(self, kube: Kube, sessions: Sessions) -> None:
        settings = self._settings
        comparison = Comparison(kube, self._store, self._enqueue, self._health, self._metrics, settings.namespaces)
        cluster = await self._wait_for_api(kube, comparison)
        context = Context(
            settings=settings,
            store=self._store,
            kube=kube,
            queue=self._queue,
            sessions=sessions,
            metrics=self._metrics,
            cluster=cluster,
            clock=kube.time,
        )
        for kind in KINDS:
            self._enqueue(self._store.keys(kind))
        self._health.ready = True
        logger.info("Working on %d objects of the cluster %s", len(self._store.keys()), cluster)

        async def work_on(key: Key) -> None:
            await work(context, key)

        async with self._kopf(), anyio.create_task_group() as group:
            group.start_soon(lambda: self._queue.run(work_on, workers=settings.workers))
            group.start_soon(comparison.run, settings.compare_interval)

    async def _wait_for_api(self, kube: Kube, comparison: Comparison) -> str:
        """Wait until the API server answers and serves our kinds; read everything; return the cluster's id."""
        wanted = frozenset(resource.kind for resource in OWN)
        delay = 0.5
        while True:
            try:
                missing = sorted(wanted - await kube.served())
                if not missing:
                    cluster = self._settings.cluster_id or await self._cluster_id(kube)
                    await comparison.prime()
                    self._served = self._existing()
                    if self._served or not self._settings.namespaces:
                        return cluster
                    logger.warning("None of the namespaces to serve exists: %s", ", ".join(self._settings.namespaces))
                else:
                    logger.warning("The API server does not serve %s; install the CRDs", ", ".join(missing))
            except (ApiError, ApiUnavailable) as exc:
                logger.warning("The API server cannot be used yet: %s", exc)
            await anyio.sleep(delay)
            delay = min(_LONGEST_WAIT_FOR_API, delay * 2)

    async def _cluster_id(self, kube: Kube) -> str:
        found = await kube.get("Namespace", None, "kube-system")
        if found is None:
            raise ApiError(404, "NotFound", "there is no namespace kube-system; set --cluster-id")
        return str(found["metadata"]["uid"])

    @contextlib.asynccontextmanager
    async def _kopf(self) -> AsyncIterator[None]:
        """Have kopf feed the store and the queue while the block runs.

        kopf cancels and awaits its own tasks when it ends, which the repeated cancellation of an anyio scope would
        break: so it gets a plain task, is asked to stop by its flag, and is cancelled only if it does not.
        """
        registry = kopf.OperatorRegistry()
        handlers.register(registry, self._store, self._enqueue, self._login, self._seen)
        stop_flag = asyncio.Event()
        before = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=handlers.kopf_settings(),
            clusterwide=not self._settings.namespaces,
            namespaces=self._served,
            standalone=True,
            stop_flag=stop_flag,
        )
        self.handle_signals()  # kopf has put its own in their place
        running = asyncio.create_task(kopf.run_tasks(tasks, ignored=before))
        running.add_done_callback(lambda _: self.stop())
        try:
            yield
        finally:
            stop_flag.set()
            with anyio.move_on_after(_KOPF_END, shield=True):
                await asyncio.wait([running])
            running.cancel()
        if running.done() and not running.cancelled():
            running.result()

    def handle_signals(self) -> None:
        """End on SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    async def _login(self) -> kopf.ConnectionInfo:
        return await connection_info(await load_configuration(self._settings.kubeconfig))

    def _existing(self) -> tuple[str, ...]:
        """Return those of the listed namespaces that are there."""
        return tuple(name for name in self._settings.namespaces if not self._store.terminating(name))

    def _seen(self, kind: str) -> None:
        """Note life on a watch stream; end when the namespaces to serve are others than those that are watched.

        kopf cannot follow namespaces without rights on all CRDs, and dies of a namespace that is gone.
        """
        self._health.alive(kind)
        if kind == NAMESPACE and any(self._store.namespace(name) is None for name in self._served):
            logger.info("A namespace that was served is gone; ending, to be started again without it")
            self.stop()
        elif kind == NAMESPACE and set(self._existing()) - set(self._served):
            logger.info("A namespace to serve is there now; ending, to be started again with it")
            self.stop()

    def _enqueue(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._queue.add(key)
