"""The API server's audit log: who asked for what, and with which result.

Written before the answer is sent, so what a test's own calls did is in it when they return. It is on the Metadata
level: no bodies. The API server's calls to itself and health checks are left out.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
"""The verbs that change something."""

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    users: ["system:apiserver", "system:anonymous"]
  - level: None
    nonResourceURLs: ["/readyz*", "/livez*", "/healthz*"]
  - level: Metadata
"""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One request to the API server."""

    at: datetime.datetime
    user: str
    """E.g. `system:serviceaccount:streamhold:streamhold` or `admin`."""
    verb: str
    """`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`."""
    code: int
    """HTTP status of the answer; for 403 see `denied_by_rbac`."""
    group: str
    resource: str
    """Plural, with the subresource: `streamtopics/status`."""
    namespace: str
    name: str
    path: str
    user_agent: str
    raw: dict[str, Any]

    @property
    def is_write(self) -> bool:
        """Whether it asked for a change."""
        return self.verb in WRITES

    @property
    def denied_by_rbac(self) -> bool:
        """Whether a right was missing. Admission answers with 403 too, e.g. in a namespace that is being deleted."""
        annotations: dict[str, str] = self.raw.get("annotations", {})
        return annotations.get("authorization.k8s.io/decision") == "forbid"

    def __str__(self) -> str:
        where = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.code} {self.verb} {self.resource or self.path} {where} by {self.user}"


class AuditLog:
    """The log of one API server."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def position(self) -> int:
        """A mark for `since`: what is asked from now on comes after it."""
        return self.path.stat().st_size if self.path.exists() else 0

    def entries(
        self,
        *,
        user: str | None = None,
        verbs: Collection[str] | None = None,
        since: int | datetime.datetime | None = None,
        resource: str | None = None,
        namespace: str | None = None,
        code: int | None = None,
    ) -> list[AuditEntry]:
        """Requests in their order, narrowed by what is given.

        Args:
            user: the whole user name.
            verbs: e.g. `WRITES`.
            since: a `position`, or a time.
            resource: plural with subresource, `streamtopics/status`.
        """
        wanted = {"user": user, "resource": resource, "namespace": namespace, "code": code}
        checks = [(field, value) for field, value in wanted.items() if value is not None]
        start = since if isinstance(since, int) else 0
        return [
            entry
            for entry in self._read(start)
            if all(getattr(entry, field) == value for field, value in checks)
            and (verbs is None or entry.verb in verbs)
            and (not isinstance(since, datetime.datetime) or entry.at >= since)
        ]

    def _read(self, start: int) -> Iterator[AuditEntry]:
        if not self.path.exists():
            return
        with self.path.open("rb") as log:
            log.seek(start)
            for line in log:
                if line.endswith(b"\n"):  # the last one may be half written
                    yield _entry(json.loads(line))


def _entry(raw: dict[str, Any]) -> AuditEntry:
    target = raw.get("objectRef", {})
    resource = "/".join(part for part in (target.get("resource"), target.get("subresource")) if part)
    return AuditEntry(
        at=datetime.datetime.fromisoformat(raw["requestReceivedTimestamp"]),
        user=raw["user"].get("username", ""),
        verb=raw["verb"],
        code=raw.get("responseStatus", {}).get("code", 0),
        group=target.get("apiGroup", ""),
        resource=resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        path=raw["requestURI"],
        user_agent=raw.get("userAgent", ""),
        raw=raw,
    )
