"""What errors of the network and of Redis mean to a user. The only place that reads the texts of error replies."""

from __future__ import annotations

import socket
import ssl
from typing import Protocol

from redis.exceptions import AuthenticationError, BusyLoadingError

from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.connection import Endpoint
from streamhold_operator.domain.outcome import Refusal

__all__ = [
    "auth_failed",
    "bad_ca",
    "bad_client_certificate",
    "has_no_acl_file",
    "is_about_key",
    "loading",
    "lost",
    "no_database",
    "not_connected",
    "refused",
    "timed_out",
]

_RETRY_UNREACHABLE = 5.0
_RETRY_LOADING = 2.0
_RETRY_REFUSED = 10.0


class ErrorReply(Protocol):
    """An error that the server answered with."""

    @property
    def code(self) -> str:
        """The first word."""

    @property
    def text(self) -> str:
        """The rest."""


def not_connected(endpoint: Endpoint, exc: BaseException, *, tls: bool) -> Refusal:
    """Return what stood in the way of a connection that is logged in."""
    causes = _causes(exc)
    known = _known(endpoint, causes)
    if known is not None:
        return known
    for cause in causes:
        if isinstance(cause, socket.gaierror):
            return _unreachable(
                f"The host name {endpoint.host!r} does not resolve ({cause.strerror}); correct spec.endpoints or DNS"
            )
        if isinstance(cause, ConnectionRefusedError):
            return _unreachable(
                f"{endpoint} refused the connection; check that the server runs there and that no network policy"
                " keeps the operator out"
            )
    return lost(endpoint, exc, tls=tls)


def lost(endpoint: Endpoint, exc: BaseException, *, tls: bool | None = None) -> Refusal:
    """Return the refusal for a connection that broke; `tls` tells how it was spoken to, if it never worked."""
    causes = _causes(exc)
    known = _known(endpoint, causes)
    if known is not None:
        return known
    if any("max number of clients" in str(cause) for cause in causes):
        return _unreachable(f"{endpoint} has no room for another connection (maxclients); raise it or close some")
    hint = {
        None: "",
        False: "; the port may want TLS: set spec.tls",
        True: "; the server may want a client certificate that it trusts: see spec.tls.clientCertSecretRef",
    }[tls]
    detail = str(causes[-1]).rstrip(".") or type(causes[-1]).__name__
    return _unreachable(f"The connection to {endpoint} was lost ({detail}){hint}; check the server's log")


def timed_out(endpoint: Endpoint, timeout: float, *, tls: bool) -> Refusal:
    """Return the refusal for a call that took too long."""
    hint = "; or the port does not speak TLS: then take spec.tls away" if tls else ""
    return _unreachable(
        f"{endpoint} did not answer within {timeout:.2g} s; check the address, the load of the server and whether a"
        f" firewall or network policy drops the packets{hint}"
    )


def auth_failed(endpoint: Endpoint, why: str, *, warnings: tuple[str, ...] = ()) -> Refusal:
    """Return the refusal for a login that the server did not accept, or that proves nothing."""
    return Refusal(
        Reason.AUTH_FAILED,
        f"{why} at {endpoint}; correct the Secret of spec.adminSecretRef, or name one there",
        warnings=warnings,
    )


def loading(endpoint: Endpoint) -> Refusal:
    """Return the refusal of a server that still reads its data."""
    return Refusal(
        Reason.LOADING,
        f"{endpoint} is still loading its data after a start; it is asked again by itself",
        retry_after=_RETRY_LOADING,
    )


def no_database(endpoint: Endpoint, database: int, error: ErrorReply) -> Refusal:
    """Return the refusal of a SELECT."""
    if error.code == "NOPERM":
        return Refusal(Reason.MISSING_RIGHTS, f"The operator's user at {endpoint} lacks the right to SELECT; grant it")
    return Refusal(
        Reason.SERVER_REFUSED,
        f"{endpoint} has no database {database} ({error.text}); correct spec.database or the server's `databases`",
    )


def bad_ca(exc: Exception) -> Refusal:
    """Return the refusal of CA certificates that cannot be read."""
    return Refusal(
        Reason.SECRET_INVALID,
        f"The CA certificates are not PEM ({exc}); correct the Secret of spec.tls.caSecretRef",
    )


def bad_client_certificate(exc: Exception) -> Refusal:
    """Return the refusal of a client certificate and key that cannot be used."""
    return Refusal(
        Reason.SECRET_INVALID,
        f"The client certificate and its key cannot be used ({exc}); correct tls.crt and tls.key in the Secret of"
        " spec.tls.clientCertSecretRef",
    )


def refused(endpoint: Endpoint, error: ErrorReply, doing: str) -> Refusal:
    """Return the refusal for a command that the server answered with an error.

    Args:
        endpoint: the server.
        error: its reply.
        doing: the command and what it was about, for the message.
    """
    match error.code:
        case "LOADING":
            return loading(endpoint)
        case "NOAUTH" | "WRONGPASS":
            return auth_failed(endpoint, "The operator's login is not valid any more")
        case "NOPERM":
            return Refusal(
                Reason.MISSING_RIGHTS,
                f"The operator's user at {endpoint} lacks the right to {doing} ({error.text}); grant it",
                retry_after=_RETRY_REFUSED,
            )
        case "READONLY" | "MASTERDOWN":
            return Refusal(
                Reason.READ_ONLY,
                f"{endpoint} refuses writes: it is a replica; name the master in spec.endpoints",
                retry_after=_RETRY_REFUSED,
            )
        case "WRONGTYPE":
            return Refusal(
                Reason.WRONG_TYPE,
                f"{endpoint} refused to {doing}: the key holds another type; move or delete that key",
            )
        case "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN":
            return Refusal(
                Reason.WRONG_TOPOLOGY,
                f"{endpoint} runs in Cluster mode, which is not supported yet; name a server outside a Cluster",
            )
    return Refusal(
        Reason.SERVER_REFUSED,
        f"{endpoint} refused to {doing}: {error.code} {error.text}; {_ADVICE.get(error.code, 'see the server log')}",
        retry_after=_RETRY_REFUSED,
    )


_ADVICE = {
    "OOM": "it is full: raise maxmemory or free some",
    "MISCONF": "it cannot save its data and stopped taking writes: free its disk or see its log",
    "NOREPLICAS": "too few replicas are in reach for min-replicas-to-write: bring them back",
    "BUSY": "a script blocks it: end that with SCRIPT KILL",
}


def has_no_acl_file(error: ErrorReply) -> bool:
    """Whether ACL SAVE was refused because the server keeps its users elsewhere."""
    return "not configured to use an ACL file" in error.text


def is_about_key(error: ErrorReply) -> bool:
    """Whether a NOPERM is about a key, the command itself being allowed."""
    return "command" not in error.text and "key" in error.text


def _known(endpoint: Endpoint, causes: list[BaseException]) -> Refusal | None:
    for cause in causes:
        if isinstance(cause, Refusal):
            return cause
        if isinstance(cause, BusyLoadingError):
            return loading(endpoint)
        if isinstance(cause, AuthenticationError):
            return auth_failed(endpoint, f"The server does not accept the login ({cause})")
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _untrusted(endpoint, cause)
        if isinstance(cause, ssl.SSLError):
            return _no_tls(endpoint, cause)
    return None


def _untrusted(endpoint: Endpoint, exc: ssl.SSLCertVerificationError) -> Refusal:
    return Refusal(
        Reason.CERTIFICATE_INVALID,
        f"The certificate of {endpoint} is not trusted: {exc.verify_message}; set spec.tls.caSecretRef to the CA that"
        " signed it, or spec.tls.serverName to the name in it",
    )


def _no_tls(endpoint: Endpoint, exc: ssl.SSLError) -> Refusal:
    what = (exc.reason or str(exc)).replace("_", " ").lower()
    if exc.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return _unreachable(f"{endpoint} does not speak TLS ({what}); take spec.tls away or name the server's TLS port")
    return Refusal(
        Reason.CERTIFICATE_INVALID,
        f"The TLS handshake with {endpoint} failed: {what}; the server may ask for a client certificate"
        " (spec.tls.clientCertSecretRef)",
    )


def _unreachable(message: str) -> Refusal:
    return Refusal(Reason.UNREACHABLE, message, retry_after=_RETRY_UNREACHABLE)


def _causes(exc: BaseException) -> list[BaseException]:
    """Return an exception and what led to it, outermost first."""
    found: list[BaseException] = []
    at: BaseException | None = exc
    while at is not None and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    return found
