"""Settings: what the operator is told at start, by flags or environment variables, checked before anything runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

ENV_PREFIX = "STREAMHOLD_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this operator process runs."""

    namespaces: tuple[str, ...] = ()
    """Only these namespaces are served; empty means the whole cluster."""
    resync_interval: float = 30.0
    """Seconds between two re-reads of a connection: all its topics and users, its Secret, the server's run id."""
    compare_interval: float = 60.0
    """Seconds between two comparisons of what was watched with what the API server lists."""
    workers: int = 16
    """How many objects are worked on at once."""
    liveness_port: int = 8080
    """Port of /healthz and /readyz; 0 serves neither."""
    metrics_port: int = 8081
    """Port of /metrics; 0 serves none."""
    bind_address: str = ""
    """Address of both ports; empty means every address."""
    log_format: str = "text"
    log_level: str = "info"
    cluster_id: str = ""
    """Tells clusters apart that share a Redis; empty means the UID of the namespace kube-system."""
    kubeconfig: str = ""
    """Path of a kubeconfig; empty means KUBECONFIG, then the pod's service account, then ~/.kube/config."""

    def __post_init__(self) -> None:
        _require(1.0 <= self.resync_interval <= 60.0, "resync-interval", self.resync_interval, "1 to 60 seconds")
        _require(1.0 <= self.compare_interval <= 3600.0, "compare-interval", self.compare_interval, "1 to 3600 seconds")
        _require(1 <= self.workers <= 256, "workers", self.workers, "1 to 256")
        for option in ("liveness_port", "metrics_port"):
            port = getattr(self, option)
            _require(0 <= port <= 65535, option.replace("_", "-"), port, "a port, or 0 for none")
        _require(self.log_format in LOG_FORMATS, "log-format", self.log_format, " or ".join(LOG_FORMATS))
        _require(self.log_level in LOG_LEVELS, "log-level", self.log_level, ", ".join(LOG_LEVELS))
        if self.kubeconfig:
            _require(Path(self.kubeconfig).is_file(), "kubeconfig", self.kubeconfig, "an existing file")
        for text in (*self.namespaces, self.cluster_id):
            _require(not set(text) & set("/*?[]\\ \t\n"), "namespaces and cluster-id", text, "plain names")


LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


class SettingsError(ValueError):
    """A setting that cannot work; the message names the option, its value and what is allowed."""


def _require(true: bool, option: str, value: object, allowed: str) -> None:
    if not true:
        raise SettingsError(f"--{option}={value}: must be {allowed}")


_HELP = {
    "namespaces": "serve only these namespaces, comma-separated (default: the whole cluster)",
    "resync_interval": "seconds between two re-reads of each Redis, 1 to 60",
    "compare_interval": "seconds between two comparisons of what was watched with what the API server lists",
    "workers": "how many objects are worked on at once",
    "liveness_port": "port of /healthz and /readyz, 0 for none",
    "metrics_port": "port of /metrics (Prometheus), 0 for none",
    "bind_address": "address to listen on (default: every address)",
    "log_format": "how log lines look: " + " or ".join(LOG_FORMATS),
    "log_level": "least important level that is logged: " + ", ".join(LOG_LEVELS),
    "cluster_id": "name of this cluster among those that share a Redis (default: the UID of namespace kube-system)",
    "kubeconfig": "path of a kubeconfig (default: KUBECONFIG, then the pod's service account, then ~/.kube/config)",
}


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings: a flag wins over its environment variable, that over the default.

    Raises:
        SettingsError: a value that cannot be used. (argparse itself exits on unknown flags and on --help.)
    """
    parser = argparse.ArgumentParser(
        prog="streamhold-operator",
        description="Keeps Streamhold's topics, leases and clients true in the Redis they are declared for.",
    )
    for field in fields(Settings):
        default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        shown = f"; default {default}" if default not in ("", ()) else ""
        parser.add_argument(
            _flag(field.name),
            metavar="VALUE",
            help=f"{_HELP[field.name]} (env {_variable(field.name)}{shown})",
        )
    given = vars(parser.parse_args(arguments))
    values: dict[str, Any] = {}
    for field in fields(Settings):
        text = given[field.name] if given[field.name] is not None else environment.get(_variable(field.name))
        if text is not None:
            values[field.name] = _convert(field.name, text, field.default)
    return Settings(**values)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _convert(name: str, text: str, default: object) -> object:
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if isinstance(default, str):
        return text
    try:
        return int(text) if isinstance(default, int) else float(text)
    except ValueError as exc:
        raise SettingsError(f"{_flag(name)}={text} (or {_variable(name)}): must be a number") from exc
