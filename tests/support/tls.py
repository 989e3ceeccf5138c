"""Certificates of our own, and a TLS terminator before a server that speaks none."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, in PEM."""

    cert: bytes
    key: bytes


class Authority:
    """A certificate authority."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = _signed(self._name, self._name, self._key, self._key, authority=True)

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, *names: str) -> Identity:
        """Issue a certificate for host names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        certificate = _signed(subject, self._name, key, self._key, names=names)
        return Identity(
            cert=certificate.public_bytes(serialization.Encoding.PEM),
            key=key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing_key: ec.EllipticCurvePrivateKey,
    *,
    names: tuple[str, ...] = (),
    authority: bool = False,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), False)
    return builder.sign(signing_key, hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@asynccontextmanager
async def terminator(
    target_port: int, identity: Identity, folder: Path, *, client_authority: Authority | None = None
) -> AsyncIterator[int]:
    """Listen with TLS on a free port and pass what comes to a local server; yields the port.

    Args:
        target_port: where the server listens.
        identity: what is shown to clients.
        folder: for the files that `ssl` needs.
        client_authority: clients must show a certificate of this one.
    """
    (folder / "tls.crt").write_bytes(identity.cert)
    (folder / "tls.key").write_bytes(identity.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    if client_authority is not None:
        context.load_verify_locations(cadata=client_authority.pem.decode())
        context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", target_port)
        pumps = [_pump(reader, back_writer), _pump(back_reader, writer)]
        await asyncio.gather(*pumps, return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
