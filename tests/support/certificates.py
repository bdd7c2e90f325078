"""A GitHub whose certificate nobody but its own company knows, and the TLS in front of it."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.forward_proxy import join

COMPANY = "github.company.example"


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate that signs itself, for 127.0.0.1 and `COMPANY`, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "GitHub of a company")])
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName(COMPANY)]
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate, private = folder / "ca.pem", folder / "key.pem"
    certificate.write_bytes(signed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


@asynccontextmanager
async def encrypt(port: int, certificate: Path, key: Path) -> AsyncIterator[int]:
    """Another port, where TLS is spoken in front of this one."""
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(certificate, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await join((reader, writer), await asyncio.open_connection("127.0.0.1", port))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=trust)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
