"""The binding Secret of a client: find ours, render it, write it only when it is not what it should be."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from streamhold_operator.api import API_VERSION, CoordinationClient
from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.binding import SECRET_TYPE, binding_labels
from streamhold_operator.domain.outcome import Refusal
from streamhold_operator.reconcile.base import Context
from streamhold_operator.reconcile.password import SET_AT
from streamhold_operator.store import CLIENT, CLIENT_LABEL, SECRET, Key, Raw


@dataclass(frozen=True, slots=True)
class Found:
    """What is at the name of the binding Secret."""

    secret: Raw | None
    """Ours; None: to be created."""
    earlier: Raw | None
    """Under the name that it had before: to be deleted once the new one is there."""
    taken: Refusal | None = None
    """Somebody else's Secret has the name: nothing can be written."""

    @property
    def source(self) -> Raw | None:
        """Where the password in use is found."""
        return self.secret or self.earlier


async def find(context: Context, key: Key, client: CoordinationClient) -> Found:
    """Read the binding Secret."""
    taken: Refusal | None = None
    name = client.spec.effective_secret_name(key.name)
    secret = await context.kube.get(SECRET, key.namespace, name)
    if secret is not None and not _ours(secret, client):
        if _of_an_earlier_client(secret, key):
            await context.kube.delete_secret(key.namespace, name, secret["metadata"]["uid"])
        else:
            taken = foreign(key, name)
        secret = None
    earlier = None
    for other, _ in context.store.secrets_of(key, client.metadata.uid):
        if other != name:
            earlier = await context.kube.get(SECRET, key.namespace, other)
    return Found(secret, earlier, taken)


def foreign(key: Key, name: str) -> Refusal:
    """Return the refusal when the name is taken."""
    return Refusal(
        Reason.CONFLICT,
        f"The Secret {key.namespace}/{name} exists and was not made for this client, so it is left alone; delete it, or"
        " set spec.secretName to a free name",
        retry_after=30.0,
    )


def body(
    client: CoordinationClient, data: Mapping[str, bytes], annotations: Mapping[str, str], found: Raw | None
) -> Raw:
    """Return the Secret as it should be."""
    metadata, template = client.metadata, client.spec.secret_template
    named: Raw = {
        "name": client.spec.effective_secret_name(metadata.name),
        "namespace": metadata.namespace,
        "labels": {**template.labels, **binding_labels(metadata.name)},
        "annotations": {**template.annotations, **annotations},
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": CLIENT,
                "name": metadata.name,
                "uid": metadata.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
    if found is not None:
        named |= {name: found["metadata"][name] for name in ("uid", "resourceVersion")}
    entries = {name: base64.b64encode(value).decode() for name, value in data.items()}
    return {"apiVersion": "v1", "kind": SECRET, "metadata": named, "type": SECRET_TYPE, "data": entries}


def differs(found: Raw, wanted: Raw) -> bool:
    """Whether the Secret has to be written; labels and annotations of others do not matter."""
    if (found.get("data") or {}) != wanted["data"]:
        return True
    if not _has_owner(found, wanted["metadata"]["ownerReferences"][0]["uid"]):
        return True
    return any(
        (found["metadata"].get(member) or {}).get(name) != value
        for member in ("labels", "annotations")
        for name, value in wanted["metadata"][member].items()
    ) or bool(_dropped(found, wanted))


def _dropped(found: Raw, wanted: Raw) -> set[str]:
    """Return labels and annotations that we wrote once and that are wanted no more."""
    owned: set[str] = set()
    for manager in found["metadata"].get("managedFields") or ():
        if manager.get("manager") == "streamhold-operator" and manager.get("operation") == "Apply":
            fields = (manager.get("fieldsV1") or {}).get("f:metadata") or {}
            for member in ("labels", "annotations"):
                names = {name[2:] for name in fields.get(f"f:{member}") or {} if name.startswith("f:")}
                owned |= names - set(wanted["metadata"][member])
    return owned


def fixed(key: Key, name: str) -> Refusal:
    """Return the refusal when somebody made the Secret immutable."""
    return Refusal(
        Reason.CONFLICT,
        f"The Secret {key.namespace}/{name} was made immutable, so it cannot follow this client; delete it, and it is"
        " made anew",
        retry_after=30.0,
    )


def _ours(secret: Raw, client: CoordinationClient) -> bool:
    """Whether it was made for this client; one whose owner was edited away still shows that it was."""
    if _has_owner(secret, client.metadata.uid):
        return True
    metadata = secret["metadata"]
    labels, owners = metadata.get("labels") or {}, metadata.get("ownerReferences") or ()
    marked = binding_labels(client.metadata.name).items() <= labels.items() and secret.get("type") == SECRET_TYPE
    return marked and not owners and SET_AT in (metadata.get("annotations") or {})


def _has_owner(secret: Raw, uid: str) -> bool:
    owners = secret["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def _of_an_earlier_client(secret: Raw, key: Key) -> bool:
    """Whether it was made for a client of this name that is gone, and only waits for its garbage collection."""
    labels = secret["metadata"].get("labels") or {}
    owners = secret["metadata"].get("ownerReferences") or ()
    return labels.get(CLIENT_LABEL) == key.name and any(
        owner.get("kind") == CLIENT and owner.get("name") == key.name and owner.get("controller") for owner in owners
    )
