"""Certificates for encrypted connections, made during the tests."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOWHERE = "10.9.9.9"
"""Host address written into certificates of tests that do not check the host name."""


@dataclass(frozen=True, slots=True)
class Authority:
    """Certificate authority of a test; it writes the certificates that it signs into its folder."""

    folder: Path
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def in_folder(cls, folder: Path) -> "Authority":
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        authority = cls(folder, key)
        certificate = make_certificate(folder.name, key, folder.name, key, is_authority=True)
        authority.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return authority

    @property
    def file(self) -> Path:
        return self.folder / "authority.pem"

    def issue(self, name: str, address: str = NOWHERE) -> tuple[Path, Path]:
        """Write a new certificate and its key, and return the paths of both files."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = make_certificate(
            name, key, self.folder.name, self.key, is_authority=False, address=address
        )
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(pem)
        return files


def make_certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
    address: str = NOWHERE,
) -> x509.Certificate:
    """Return a certificate that is valid for two days around now.

    Args:
        name: Whom it is of.
        key: Its key.
        issuer: Name of the authority that signs it.
        issuer_key: Key of that authority.
        is_authority: Whether it may sign others.
        address: Where its owner is; by default nowhere, for connections that do not compare names.
    """
    now = datetime.now(UTC)
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    by = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    issuer_id = x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id),
            critical=False,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(names, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
