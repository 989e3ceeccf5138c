"""Metrics of the operator, for Prometheus: all names begin with `streamhold_`; the registry is handed in."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from streamhold_operator.health import Page


class Metrics:
    """What the operator counts about itself."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        own = self.registry = registry or CollectorRegistry()
        self.reconciles = Counter(
            "streamhold_reconciles", "Passes over an object, by kind and result.", ["kind", "result"], registry=own
        )
        self.duration = Histogram(
            "streamhold_reconcile_seconds", "Time of one pass over an object.", ["kind"], registry=own
        )
        self.api_writes = Counter(
            "streamhold_api_writes", "Writes at the Kubernetes API server, by what was written.", ["what"], registry=own
        )
        self.redis_actions = Counter(
            "streamhold_redis_actions", "Changes made in a Redis, by action.", ["action"], registry=own
        )
        self.connection_up = Gauge(
            "streamhold_connection_up", "1 while the Redis answers as it should.", ["namespace", "name"], registry=own
        )
        self.missed = Counter(
            "streamhold_missed_changes", "Changes that no watch stream delivered.", ["kind"], registry=own
        )

    def watch_queue(
        self, depth: Callable[[], float], running: Callable[[], float], sleeping: Callable[[], float]
    ) -> None:
        """Show the work queue's state at each scrape."""
        for name, text, value in (
            ("depth", "Keys that wait for a worker.", depth),
            ("running", "Keys being worked on.", running),
            ("sleeping", "Keys that wait for their time (resync or backoff).", sleeping),
        ):
            Gauge(f"streamhold_queue_{name}", text, registry=self.registry).set_function(value)

    def page(self) -> Page:
        """Answer a scrape."""
        return Page(generate_latest(self.registry), content_type=CONTENT_TYPE_LATEST)
