"""A GitHub whose certificate is signed by somebody whom the system does not know is trusted by `ca_file` alone."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bot.github.session import check_authorities, make_connector


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate that signs itself, for 127.0.0.1, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "GitHub of a company")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(address, critical=False)
    signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate, private = folder / "ca.pem", folder / "key.pem"
    certificate.write_bytes(signed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


async def test_a_company_s_own_authority_is_trusted_where_it_is_named(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(certificate, key)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        async with (
            aiohttp.ClientSession(connector=make_connector(certificate)) as session,
            session.get(url) as answer,
        ):
            assert answer.status == 404
        async with aiohttp.ClientSession(connector=make_connector(None)) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(url)
    finally:
        await runner.cleanup()


def test_a_file_without_certificates_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not there"):
        check_authorities(tmp_path / "ca.pem")
    (tmp_path / "ca.pem").write_text("no PEM")
    with pytest.raises(ValueError, match="holds no certificates"):
        check_authorities(tmp_path / "ca.pem")
