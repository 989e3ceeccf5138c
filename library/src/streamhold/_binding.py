"""The binding folder: what the operator wrote into a Secret and the kubelet mounted.

One folder names the server, the credentials, and every topic and lease family that this client may use, with their
settings. The kubelet swaps the whole content at once by turning the link `..data` to a new folder; all files of one
answer are therefore read through the folder that `..data` named at the start, and read again when it was removed
meanwhile. A folder without `..data` (written by hand) is read as it is.

Not guaranteed: that a folder written file by file is consistent while it is being written. What can be seen to be
missing or half-written is an error that names the file.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from streamhold.errors import AccessNotGranted, BindingError, LeaseNotDeclared, TopicNotDeclared

BINDING_VARIABLE = "STREAMHOLD_BINDING"
ROOT_VARIABLE = "SERVICE_BINDING_ROOT"

Access = Literal["Publish", "Consume", "Manage"]

_VERSION = 1
_SETTINGS = "streamhold.json"
_SWAPS = 10
"""How often the folder may be swapped under one reading before we give up; the kubelet does it once a minute or so."""

_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class _Member(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of streamhold.json; members that this version does not know are ignored."""


class ClientRef(_Member, frozen=True, kw_only=True):
    """The CoordinationClient that the binding belongs to."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class TlsSettings(_Member, frozen=True, kw_only=True):
    """How to check the server's certificate; the CA, if not a public one, is in `ca.crt`."""

    server_name: str | None = None


class ConnectionSettings(_Member, frozen=True, kw_only=True):
    """Where the server is."""

    topology: str
    endpoints: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    database: _Count
    tls: TlsSettings | None = None


class DeadLetterSettings(_Member, frozen=True, kw_only=True):
    """Whether events at the delivery cap are kept, and how many."""

    enabled: bool
    max_length: _Count


class GroupSettings(_Member, frozen=True, kw_only=True):
    """A consumer group that the operator provisions."""

    name: _Name
    start_from: Literal["Earliest", "Latest"]


class TopicBinding(_Member, frozen=True, kw_only=True):
    """A topic, or a family of topics, with what this client may do to it and how to use it."""

    name: _Name
    """What code calls it: `<namespace>/` stands in front when another namespace owns it."""
    topic: _Name
    """The topic in Redis; in a family as declared, what all its topics start with."""
    prefix: _Name
    """Key prefix of the stream."""
    family: bool
    access: frozenset[str]
    max_length: _Count
    idle_ttl_ms: _Count
    reclaim_interval_ms: _Count
    reclaim_min_idle_ms: _Count
    max_delivery_attempts: _Count
    in_flight_timeout_ms: _Count
    dead_letter: DeadLetterSettings
    groups: tuple[GroupSettings, ...]


class LeaseBinding(_Member, frozen=True, kw_only=True):
    """A family of lease keys and the rules of its leases."""

    name: _Name
    """What keys of this family start with in code: `<namespace>/` stands in front when another namespace owns it."""
    keys: _Name
    """What keys of this family start with in Redis."""
    prefix: _Name
    """Key prefix of the leases."""
    ttl_ms: _Positive
    renew_interval_ms: _Positive
    lock_delay_ms: _Count
    fencing: bool
    max_hold_ms: _Count


@dataclass(frozen=True, slots=True)
class BoundLease:
    """One lease key as code calls it, resolved."""

    key: str
    """The lease key in Redis, behind `<prefix>:lease:`."""
    policy: LeaseBinding
    """The family it belongs to."""


class _Version(msgspec.Struct, frozen=True):
    version: int


class _Settings(_Member, frozen=True, kw_only=True):
    client: ClientRef
    connection: ConnectionSettings
    topics: tuple[TopicBinding, ...]
    leases: tuple[LeaseBinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What one folder granted when it was read. Only `credentials` looks at the folder again."""

    folder: Path
    client: ClientRef
    connection: ConnectionSettings
    topics: tuple[TopicBinding, ...]
    leases: tuple[LeaseBinding, ...]
    ca_certificate: str | None
    """PEM of the CA that signed the server's certificate; None without TLS or for a public CA."""

    @property
    def endpoints(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each server named."""
        return tuple(_endpoint(self.folder, text) for text in self.connection.endpoints)

    def credentials(self) -> tuple[str | None, str | None]:
        """Read user name and password anew, both of one moment: they may have been rotated.

        Raises:
            BindingError: the folder or one of the two files is gone.
        """
        found = _read(self.folder, ("username", "password"))
        return found["username"] or None, found["password"] or None

    def ssl_context(self) -> ssl.SSLContext | None:
        """Build the context to connect with; None when the server is spoken to in plain.

        Raises:
            BindingError: `ca.crt` holds no certificate.
        """
        if self.connection.tls is None:
            return None
        try:
            return ssl.create_default_context(cadata=self.ca_certificate)
        except (ssl.SSLError, ValueError) as error:
            raise BindingError(self.folder, f"ca.crt: expected PEM certificates ({error})") from error

    def topic(self, name: str, access: Access | None = None) -> TopicBinding:
        """Look a topic up as code calls it: the exact name, else the longest family that it starts with.

        Returns:
            The grant; of a family, one with this very topic as `topic` and `name`.

        Raises:
            TopicNotDeclared: no topic and no family of this binding covers it.
            AccessNotGranted: it is granted without this access.
            BindingError: the name stands for two different topics.
        """
        grant = self._only([grant for grant in self.topics if grant.name == name and not grant.family])
        if grant is None:
            grant = self._longest([grant for grant in self.topics if grant.family and name.startswith(grant.name)])
            if grant is None:
                declared = [f"{grant.name}*" if grant.family else grant.name for grant in self.topics]
                raise TopicNotDeclared(name, declared, str(self.client))
            full = grant.topic + name.removeprefix(grant.name)
            grant = msgspec.structs.replace(grant, name=name, topic=full)
        if access is not None and access not in grant.access:
            raise AccessNotGranted(name, access, grant.access, str(self.client))
        return grant

    def lease(self, name: str) -> BoundLease:
        """Look a lease key up as code calls it: the longest family that it starts with.

        Raises:
            LeaseNotDeclared: no family of this binding covers it.
            BindingError: the name stands for two different leases.
        """
        policy = self._longest([policy for policy in self.leases if name.startswith(policy.name)])
        if policy is None:
            raise LeaseNotDeclared(name, [f"{policy.name}*" for policy in self.leases], str(self.client))
        return BoundLease(policy.keys + name.removeprefix(policy.name), policy)

    def _longest(self, families: list[_Grant]) -> _Grant | None:
        longest = max((len(family.name) for family in families), default=0)
        return self._only([family for family in families if len(family.name) == longest])

    def _only(self, grants: list[_Grant]) -> _Grant | None:
        """One name can mean two things: a topic `b/x` of our own, and the topic `x` of the namespace `b`."""
        if len(grants) > 1:
            problem = f"{_SETTINGS}: {grants[0].name!r} is granted more than once; which is meant cannot be told"
            raise BindingError(self.folder, problem)
        return grants[0] if grants else None


_Grant = TypeVar("_Grant", TopicBinding, LeaseBinding)


def load_binding(folder: str | os.PathLike[str]) -> Binding:
    """Read a binding folder.

    Raises:
        BindingError: it is missing, incomplete or not understood; the message names the file and what is expected.
    """
    folder = Path(folder)
    found = _read(folder, ("type", "provider", "username", "password", _SETTINGS), optional=("ca.crt",))
    for file, expected in (("type", "redis"), ("provider", "streamhold")):
        if found[file].strip() != expected:
            raise BindingError(folder, f"{file}: expected {expected!r}, found {found[file].strip()!r}")
    settings = _parse(folder, found[_SETTINGS])
    for endpoint in settings.connection.endpoints:
        _endpoint(folder, endpoint)
    return Binding(
        folder=folder,
        client=settings.client,
        connection=settings.connection,
        topics=settings.topics,
        leases=settings.leases,
        ca_certificate=found.get("ca.crt"),
    )


_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+")


def find_binding(environ: Mapping[str, str] | None = None) -> Path:
    """Find the folder that `connect()` without arguments reads.

    It is the one that STREAMHOLD_BINDING names, else the one below SERVICE_BINDING_ROOT whose type is redis and whose
    provider is streamhold.

    Raises:
        BindingError: neither variable is set, or the root holds none or several such folders.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get(BINDING_VARIABLE):
        return Path(named)
    root = environ.get(ROOT_VARIABLE)
    if not root:
        raise BindingError(
            "not found",
            "mount the Secret that status.binding.name of your CoordinationClient names into the pod and set "
            f"{BINDING_VARIABLE} to that folder (or {ROOT_VARIABLE} to its parent), or give connect() a folder or URL",
        )
    try:
        candidates = sorted(entry for entry in Path(root).iterdir() if entry.is_dir())
    except OSError as error:
        raise BindingError(root, f"{ROOT_VARIABLE}: cannot be listed ({error.strerror})") from error
    ours = [folder for folder in candidates if _is_ours(folder)]
    if not ours:
        seen = _listed(folder.name for folder in candidates)
        raise BindingError(root, f"no folder below has the type redis and the provider streamhold (folders: {seen})")
    if len(ours) > 1:
        names = _listed(folder.name for folder in ours)
        raise BindingError(root, f"several folders fit: {names}; set {BINDING_VARIABLE} to the one that is meant")
    return ours[0]


def _is_ours(folder: Path) -> bool:
    def says(file: str) -> str | None:
        try:
            return (folder / file).read_text().strip()
        except (OSError, UnicodeDecodeError):  # another program's folder need not have it
            return None

    return says("type") == "redis" and says("provider") == "streamhold"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _read(folder: Path, files: tuple[str, ...], *, optional: tuple[str, ...] = ()) -> dict[str, str]:
    """Read files of one moment; optional ones may be missing."""
    for _ in range(_SWAPS):
        source = _source(folder)
        try:
            return _read_from(folder, source, files, optional)
        except BindingError:
            if _source(folder) == source:
                raise
    raise BindingError(folder, "it keeps changing while it is read")


def _source(folder: Path) -> Path:
    """The folder behind `..data` where the kubelet mounts, else the folder itself."""
    data = folder / "..data"
    try:
        return data.resolve() if data.is_symlink() else folder
    except (OSError, ValueError) as error:  # a name that no folder can have
        raise BindingError(_shown(folder), f"cannot be the name of a folder ({type(error).__name__})") from error


def _shown(folder: Path) -> str:
    text = ascii(str(folder))
    return text if len(text) <= 200 else f"{text[:200]}…"


def _read_from(folder: Path, source: Path, files: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files + optional:
        try:
            found[file] = (source / file).read_bytes().decode()
        except FileNotFoundError as error:
            if file in optional and source.is_dir():
                continue
            raise BindingError(folder, _missing(folder, source, files)) from error
        except NotADirectoryError as error:
            raise BindingError(folder, "expected a folder: the mount path of the binding Secret") from error
        except OSError as error:
            raise BindingError(folder, f"{file}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise BindingError(folder, f"{file}: expected UTF-8 text") from error
        except ValueError as error:  # a NUL in it
            raise BindingError(_shown(folder), "cannot be the name of a folder") from error
    return found


def _missing(folder: Path, source: Path, needed: tuple[str, ...]) -> str:
    if not source.is_dir():
        named = f" ({BINDING_VARIABLE} names it)" if os.environ.get(BINDING_VARIABLE) == str(folder) else ""
        url = f"; for a server write redis://{folder}" if _HOST_AND_PORT.fullmatch(str(folder)) else ""
        return f"the folder does not exist{named}: mount the binding Secret of your CoordinationClient there{url}"
    entries = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(".."))
    missing = [file for file in needed if not (source / file).exists()]
    what = f"the files {_listed(missing)} are" if len(missing) > 1 else f"the file {_listed(missing)} is"
    return f"{what} missing (there: {_listed(entries)}); a binding Secret written by the operator has all of them"


def _parse(folder: Path, text: str) -> _Settings:
    version = _decoded(folder, text, _Version).version
    if version != _VERSION:
        raise BindingError(
            folder, f"{_SETTINGS}: version {version} is not known, only {_VERSION} is: upgrade the streamhold library"
        )
    return _decoded(folder, text, _Settings)


_Decoded = TypeVar("_Decoded")


def _decoded(folder: Path, text: str, kind: type[_Decoded]) -> _Decoded:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:  # says which member, what is expected there and what was found
        raise BindingError(folder, f"{_SETTINGS}: {error}") from error
    except msgspec.DecodeError as error:
        raise BindingError(folder, f"{_SETTINGS}: expected one whole JSON object ({error})") from error


def _endpoint(folder: Path, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BindingError(folder, f"{_SETTINGS}: connection.endpoints: expected host:port, found {text!r}")
    return host, int(port)
