"""The Kubernetes API as the operator uses it: plain dicts in and out, one method per kind of call.

Built on the transport of `kubernetes.aio`; its generated models are not used: own kinds have none, and the objects we
read must keep members that we do not know. Every call is bounded by a timeout. Nothing retries: the work queue does.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import kopf
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration

Raw = dict[str, Any]

FIELD_MANAGER = "streamhold-operator"
FINALIZER = "streamhold.dev/cleanup"
MANAGED_BY = {"app.kubernetes.io/managed-by": "streamhold"}
MANAGED_SELECTOR = "app.kubernetes.io/managed-by=streamhold"

_SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_EVENT_MESSAGE_LIMIT = 1000
_PAGE = 500
_SAME_TIME = datetime.timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object at the API server."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return what objects carry as apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of the collection, an object, or its subresource."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


GROUP, VERSION = "streamhold.dev", "v1alpha1"
OWN = (
    Resource(GROUP, VERSION, "redisconnections", "RedisConnection"),
    Resource(GROUP, VERSION, "streamtopics", "StreamTopic"),
    Resource(GROUP, VERSION, "leasepolicies", "LeasePolicy"),
    Resource(GROUP, VERSION, "coordinationclients", "CoordinationClient"),
)
SECRETS = Resource("", "v1", "secrets", "Secret")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
RESOURCES = {resource.kind: resource for resource in (*OWN, SECRETS, NAMESPACES)}


class ApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, reason: str, message: str, *, namespace_ends: bool = False) -> None:
        super().__init__(f"the API server answered {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.namespace_ends = namespace_ends
        """Whether it was refused since the namespace is being deleted and takes nothing any more."""


class ApiUnavailable(Exception):
    """The API server did not answer; whether it did what was asked is unknown."""


class Kube:
    """The calls the operator makes; use as an async context manager."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        reload: Callable[[], Awaitable[Configuration]] | None = None,
        timeout: float = 10.0,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        """Prepare to call; nothing is sent.

        Args:
            configuration: where and as whom.
            reload: returns it as it is now, once the server accepts the token no more.
            timeout: seconds for a call.
            clock: of this machine.
        """
        configuration.retries = None
        self._reload = reload
        self._client: Any = ApiClient(configuration)  # Any: parts of the package have no types
        self._host: str = configuration.host
        self._timeout = timeout
        self._clock = clock
        self._ahead = datetime.timedelta()

    def time(self) -> datetime.datetime:
        """Return the time by the API server's clock, which also wrote the times in the objects."""
        return self._clock() + self._ahead

    async def aclose(self) -> None:
        """Close the connections; calls in flight fail."""
        await self._client.close()

    async def get(self, kind: str, namespace: str | None, name: str) -> Raw | None:
        """Return the object, or None when there is none."""
        try:
            return await self._request("GET", RESOURCES[kind].path(namespace, name))
        except ApiError as exc:
            if exc.status == 404:
                return None
            raise

    async def list(
        self, kind: str, namespace: str | None = None, *, selector: str = "", metadata_only: bool = False
    ) -> AsyncIterator[Raw]:
        """Yield the objects of a kind, page by page; with `metadata_only` just their metadata."""
        accept = _METADATA_LIST if metadata_only else _JSON
        query = {"limit": str(_PAGE)}
        if selector:
            query["labelSelector"] = selector
        path = RESOURCES[kind].path(namespace)
        while True:
            page = await self._request("GET", path, query=query, accept=accept)
            for item in page.get("items") or ():
                yield item
            following = page.get("metadata", {}).get("continue")
            if not following:
                return
            query["continue"] = following

    async def served(self) -> frozenset[str]:
        """Return the kinds of our API group that the server offers now."""
        try:
            found = await self._request("GET", f"/apis/{GROUP}/{VERSION}")
        except ApiError as exc:
            if exc.status == 404:
                return frozenset()
            raise
        return frozenset(str(entry["kind"]) for entry in found.get("resources") or ())

    async def apply_status(self, raw: Raw, status: Mapping[str, Any]) -> Raw:
        """Make `status` the part of the object's status that is ours; return the object.

        Raises:
            ApiError: with status 409 when the object has changed since it was read. (A uid alone is no condition: the
                server would give the status to a new object of the same name.)
        """
        resource = RESOURCES[str(raw["kind"])]
        metadata = raw["metadata"]
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")},
            "status": dict(status),
        }
        path = resource.path(metadata["namespace"], metadata["name"], "status")
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, query=query, body=body, content=_APPLY)

    async def set_finalizer(self, raw: Raw, *, wanted: bool) -> Raw | None:
        """Add or remove our finalizer; None when the object is gone.

        Raises:
            ApiError: with status 409 when the object has changed since it was read.
        """
        resource = RESOURCES[str(raw["kind"])]
        metadata = raw["metadata"]
        others = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
        body = {
            "metadata": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                "finalizers": [*others, FINALIZER] if wanted else others,
            }
        }
        path = resource.path(metadata["namespace"], metadata["name"])
        try:
            return await self._request("PATCH", path, query=_BY_US, body=body, content=_MERGE)
        except ApiError as exc:
            if exc.status == 404:
                return None
            raise

    async def apply_secret(self, body: Raw) -> Raw | None:
        """Make the Secret's fields that are ours what `body` says, creating it if need be; fields of others stay.

        With a uid and resourceVersion in the body exactly that Secret is meant; without them a Secret that somebody
        else made meanwhile is not taken over.

        Returns:
            The Secret, or None when another one is there.

        Raises:
            ApiError: with status 409 when the Secret has changed since it was read.
        """
        metadata = body["metadata"]
        path = SECRETS.path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if "uid" in metadata else "false"}
        try:
            return await self._request("PATCH", path, query=query, body=body, content=_APPLY)
        except ApiError as exc:
            if "uid" not in metadata and exc.status in (409, 422):
                return None
            raise

    async def delete_secret(self, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this Secret; a missing or re-created one is left alone."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._request("DELETE", SECRETS.path(namespace, name), body=body, content=_JSON)
        except ApiError as exc:
            if exc.status not in (404, 409):
                raise

    async def create_event(self, raw: Raw, *, type_: str, reason: str, message: str) -> None:
        """Record an event that `kubectl describe` shows with the object."""
        metadata = raw["metadata"]
        now = self.time().strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name'][:220]}.{secrets.token_hex(8)}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": RESOURCES[str(raw["kind"])].api_version,
                "kind": raw["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "type": type_,
            "reason": reason,
            "message": _shortened(message),
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": "streamhold.dev/operator",
            "reportingInstance": socket.gethostname(),
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._request("POST", EVENTS.path(metadata["namespace"]), query=_BY_US, body=body, content=_JSON)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Raw | None = None,
        content: str = _JSON,
        accept: str = _JSON,
    ) -> Raw:
        headers = {"Accept": accept, "Content-Type": content, "User-Agent": FIELD_MANAGER}
        target = path + (f"?{urlencode(query)}" if query else "")
        status, reason, data = await self._sent(method, target, headers, body)
        if status == 401 and await self._has_new_token():
            status, reason, data = await self._sent(method, target, headers, body)
        if status >= 400:
            raise _error_of(status, reason, data)
        found: Raw = json.loads(data)
        return found

    async def _sent(
        self, method: str, target: str, headers: Mapping[str, str], body: Raw | None
    ) -> tuple[int, str, bytes]:
        signed = dict(headers)
        await self._client.update_params_for_auth(signed, [], ["BearerToken"], target, method, body)
        try:
            response = await self._client.call_api(
                method,
                self._host + target,
                header_params=signed,
                body=body,
                _request_timeout=aiohttp.ClientTimeout(total=self._timeout),
            )
            self._note_time(response.headers.get("Date"))
            return response.status, str(response.reason), await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            text = str(exc) or f"no answer in {self._timeout:g} s"
            raise ApiUnavailable(f"{method} {target.partition('?')[0]}: {text}") from exc

    def _note_time(self, date: str | None) -> None:
        """Learn how far the server's clock is ahead of ours, if it is further than a second or two can explain."""
        if date is not None:
            ahead = parsedate_to_datetime(date) - self._clock()
            self._ahead = ahead if abs(ahead) > _SAME_TIME else datetime.timedelta()

    async def _has_new_token(self) -> bool:
        """Read the way to the server again; return whether it holds another token than the one that was refused."""
        if self._reload is None:
            return False
        configuration = self._client.configuration
        before = dict(configuration.api_key)
        try:
            found = await self._reload()
        except (kube_config.ConfigException, OSError) as exc:
            raise ApiUnavailable(f"it refused the token, and no other can be read: {exc}") from exc
        configuration.api_key = dict(found.api_key)
        return bool(configuration.api_key != before)


_LOADER: Any = kube_config
_BY_US = {"fieldManager": FIELD_MANAGER}


def _error_of(status: int, reason: str, data: bytes) -> ApiError:
    try:
        found = json.loads(data)
        causes = (found.get("details") or {}).get("causes") or ()
        ends = any(cause.get("reason") == "NamespaceTerminating" for cause in causes)
        text = str(found.get("message") or "")
        return ApiError(status, str(found.get("reason") or reason), text, namespace_ends=ends)
    except (ValueError, AttributeError):
        return ApiError(status, reason, data[:200].decode("utf-8", "replace"))


def _shortened(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _EVENT_MESSAGE_LIMIT:
        return message
    return encoded[: _EVENT_MESSAGE_LIMIT - 3].decode("utf-8", "ignore") + "…"


def _in_pod() -> bool:
    return _SERVICE_ACCOUNT_TOKEN.exists()


async def load_configuration(kubeconfig: str = "") -> Configuration:
    """Return how to reach the API server: the given file, KUBECONFIG, the pod's service account, or ~/.kube/config.

    Raises:
        kubernetes.aio.config.ConfigException: nothing usable there; the message says what was tried.
    """
    configuration, loader = Configuration(), _LOADER
    path = kubeconfig or os.environ.get("KUBECONFIG", "")
    if not path and _in_pod():
        loader.load_incluster_config(client_configuration=configuration)
    else:
        await loader.load_kube_config(
            config_file=path or None, client_configuration=configuration, persist_config=False
        )
    return configuration


async def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return the same way to the API server for kopf."""
    header: str | None = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert or None,
        ca_data=None if configuration.ssl_ca_cert else configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )
