"""Self-signed certificates of a server at 127.0.0.1 and localhost."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def write_certificate(folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
    """Write a certificate with this common name and its key; return their files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password)
    )
    form = serialization.PrivateFormat.PKCS8
    pem = serialization.Encoding.PEM
    cert_file = folder / f"{name}.pem"
    key_file = folder / f"{name}.key"
    cert_file.write_bytes(certificate.public_bytes(pem))
    key_file.write_bytes(key.private_bytes(pem, form, encryption))
    return cert_file, key_file
