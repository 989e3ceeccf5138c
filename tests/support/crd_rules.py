"""Read the constraints out of the generated CRDs, and ask the real API server about one object without storing it."""

from __future__ import annotations

import copy
import http.client
import json
import secrets
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from streamhold_dev.controlplane import ControlPlane
from streamhold_operator.api import GROUP, KINDS, VERSION
from streamhold_operator.api.schema import RESOURCES, crd

Object = dict[str, Any]

SCHEMAS: dict[str, dict[str, Any]] = {
    resource.model.KIND: crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for resource in RESOURCES
}


@dataclass(frozen=True, order=True)
class Constraint:
    """One thing that the API server checks at one place of one kind."""

    kind: str
    path: str
    """`spec.groups[].name`; empty for the whole object. `{}` stands for the values of a map."""
    refusal: str
    """What the API server says when it refuses; for CEL the message of the rule."""


def constraints(kind: str) -> list[Constraint]:
    """Every constraint of a kind's spec and of the object itself, in the order of the schema."""
    return [
        Constraint(kind, path, refusal) for path, schema in _nodes(SCHEMAS[kind], "") for refusal in _refusals(schema)
    ]


def _nodes(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        below = f"{path}.{name}".lstrip(".")
        if below.split(".")[0] == "spec":
            yield from _nodes(child, below)
    if "items" in schema:
        yield from _nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from _nodes(schema["additionalProperties"], f"{path}{{}}")


def _refusals(schema: Mapping[str, Any]) -> Iterator[str]:
    words = {
        "maxLength": "may not be more than {} bytes",
        "maximum": "should be less than or equal to {}",
        "minimum": "should be greater than or equal to {}",
        "minItems": "should have at least {} items",
        "maxItems": "must have at most {} items",
        "maxProperties": "must have at most {} items",
        "pattern": "should match '{}'",
    }
    for keyword, text in words.items():
        if keyword in schema:
            yield text.format(schema[keyword])
    if "enum" in schema:
        yield "supported values: " + ", ".join(f'"{value}"' for value in schema["enum"])
    if schema.get("x-kubernetes-list-type") in ("set", "map"):
        yield "Duplicate value"
    for name in schema.get("required", ()):
        yield f"{name}: Required value"
    for rule in schema.get("x-kubernetes-validations", ()):
        yield rule["message"]


def put(base: Object, path: str, value: Any) -> Object:
    """A copy of the object with the value at that place (index 0 of a list, the key `sample` of a map).

    Raises:
        LookupError: the object has nothing that the value could be put into.
    """
    changed = copy.deepcopy(base)
    where: Any = changed
    steps: list[Any] = []
    for part in path.split("."):
        name = part.rstrip("[]{}")
        steps += [name, *([0] if part.endswith("[]") else []), *(["sample"] if part.endswith("{}") else [])]
    for step in steps[:-1]:
        where = where[step]
    where[steps[-1]] = value
    return changed


_IDLE = 10.0


class Admission:
    """Asks the API server with `dryRun=All`: it says what it would do, and stores nothing."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        context = ssl.create_default_context(cafile=str(plane.ca_file))
        self._connection = http.client.HTTPSConnection(urlsplit(plane.server).netloc, context=context, timeout=30)
        self._used = time.monotonic()
        self._headers = {"Authorization": f"Bearer {plane.token}", "Content-Type": "application/json"}
        self._namespace = namespace

    def refusals(self, thing: Object) -> list[str]:
        """What the API server has against creating the object, as `field: complaint`; empty when it would take it."""
        return self._complaints("POST", thing, dry=True)

    def refusals_of_update(self, before: Object, after: Object) -> list[str]:
        """What it has against the change of an object, which is created for the question and deleted afterwards."""
        name = f"{before['metadata']['name']}-{secrets.token_hex(4)}"
        before, after = ({**one, "metadata": {**one["metadata"], "name": name}} for one in (before, after))
        made = self._complaints("POST", before, dry=False)
        assert made == [], made
        try:
            return self._complaints("PUT", after, dry=True)
        finally:
            self._request("DELETE", before, dry=False)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _complaints(self, method: str, thing: Object, *, dry: bool) -> list[str]:
        code, answer = self._request(method, thing, dry=dry)
        if code in (200, 201):
            return []
        if code == 400:  # fieldValidation=Strict, as kubectl asks for: unknown and duplicate fields
            return [answer["message"]]
        assert code == 422, answer
        return [f"{cause['field']}: {cause['message']}" for cause in answer["details"]["causes"]]

    def _request(self, method: str, thing: Object, *, dry: bool) -> tuple[int, dict[str, Any]]:
        plural = KINDS[thing["kind"]].PLURAL
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{self._namespace}/{plural}"
        if method != "POST":
            path += f"/{thing['metadata']['name']}"
        body = thing
        if method == "PUT":
            body = {**thing, "metadata": {**thing["metadata"], "resourceVersion": self._version(path)}}
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry else "")
        return self._send(method, path + query, None if method == "DELETE" else json.dumps(body))

    def _version(self, path: str) -> str:
        _, answer = self._send("GET", path, None)
        return str(answer["metadata"]["resourceVersion"])

    def _send(self, method: str, path: str, body: str | None) -> tuple[int, dict[str, Any]]:
        if time.monotonic() - self._used > _IDLE:
            self._connection.close()  # the server closes what is idle; a new one is opened by itself
        self._used = time.monotonic()
        self._connection.request(method, path, body=body, headers=self._headers)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())
