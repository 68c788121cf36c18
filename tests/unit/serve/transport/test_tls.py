"""Encrypted connections: both sides show a certificate of the authority, or there is none."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from justitia_ray.config import TlsSection, TransportSection
from justitia_ray.errors import ConfigError, ConnectionLost
from justitia_ray.serve.transport import listener
from justitia_ray.serve.transport.dialer import Dialer
from justitia_ray.serve.transport.endpoint import dialer, listen
from justitia_ray.serve.transport.listener import Listener
from tests.certificates import make_certificate
from tests.unit.serve.transport.ends import CALLER, HOST, KEY, METHODS, NAME, Served, keyring


@dataclass(frozen=True)
class Authority:
    """An authority, and where it writes its certificates."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def of(cls, folder: Path) -> "Authority":
        """Return a new one."""
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = make_certificate(folder.name, key, folder.name, key, is_authority=True)
        _write(folder / "authority.pem", certificate.public_bytes(serialization.Encoding.PEM))
        return cls(folder, key, certificate)

    def section(self, name: str, authority: "Authority | None" = None) -> TransportSection:
        """Return the settings of a node with a new certificate of this authority.

        Args:
            name: Of the node.
            authority: That the node trusts; None for this one.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = make_certificate(name, key, self.folder.name, self.key, is_authority=False)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _write(self.folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM))
        _write(self.folder / f"{name}.key", pem)
        trusted = (authority or self).folder / "authority.pem"
        tls = TlsSection(
            certificate=str(self.folder / f"{name}.pem"),
            key=str(self.folder / f"{name}.key"),
            authority=str(trusted),
        )
        return TransportSection(tls=tls)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    """The authority of all nodes."""
    return Authority.of(tmp_path / "ours")


@pytest.fixture
def others(tmp_path: Path) -> Authority:
    """The authority of somebody else."""
    return Authority.of(tmp_path / "others")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: HOST)


async def listening(section: TransportSection) -> Listener:
    """Return a listener with these settings."""
    return await listen(section, NAME, keyring(KEY), METHODS, {"echo": Served().echo})


def caller(section: TransportSection) -> Dialer:
    """Return what opens connections with these settings, and knows the secret."""
    return dialer(section, CALLER, keyring(KEY), METHODS)


async def test_both_sides_with_certificates_of_the_authority_talk(ours: Authority) -> None:
    """Also in pieces; the name in a certificate is not the address."""
    port = await listening(ours.section("listener"))
    link = await caller(ours.section("caller")).dial(port.address, NAME)

    assert bytes(3_000_000) == await link.call("echo", bytes(3_000_000))
    await link.close()
    await port.stop()


async def test_caller_without_a_certificate_of_the_authority_is_refused(
    ours: Authority, others: Authority
) -> None:
    """It knows the secret, and trusts the listener: both are not enough."""
    port = await listening(ours.section("listener"))
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await caller(others.section("caller", ours)).dial(port.address, NAME)
    anonymous = caller(ours.section("anonymous"))
    context = ssl.create_default_context(cafile=str(ours.folder / "authority.pem"))
    context.check_hostname = False
    anonymous._tls = context
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await anonymous.dial(port.address, NAME)
    await port.stop()


async def test_listener_of_another_authority_is_not_called(
    ours: Authority, others: Authority
) -> None:
    """Somebody has taken the port, and would hear prompts."""
    port = await listening(others.section("listener", ours))
    with pytest.raises(ConnectionLost, match=r"(?i)certificate.verify.failed"):
        await caller(ours.section("caller")).dial(port.address, NAME)
    await port.stop()


async def test_side_without_encryption_is_refused(ours: Authority) -> None:
    """Either side: a half-changed configuration is to be noticed, not to be worked around."""
    encrypted, plain = (
        await listening(ours.section("listener")),
        await listening(TransportSection()),
    )
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await caller(TransportSection()).dial(encrypted.address, NAME)
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await caller(ours.section("caller")).dial(plain.address, NAME)
    await encrypted.stop()
    await plain.stop()


async def test_stranger_that_does_not_begin_to_encrypt_is_closed(
    ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handshake has the same time as ours."""
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.1)
    port = await listening(ours.section("listener"))
    reader, writer = await asyncio.open_connection(HOST, int(port.address.partition(":")[2]))

    assert b"" == await reader.read()
    writer.close()
    await port.stop()


@pytest.mark.parametrize("field", ["certificate", "key", "authority"])
async def test_file_that_cannot_be_read_is_named(ours: Authority, field: str) -> None:
    """One that is missing on this node, and one that holds something else."""
    good = ours.section("node").tls
    assert good is not None
    for path, content in (("missing.pem", None), ("wrong.pem", "nothing")):
        file = ours.folder / path
        if content is not None:
            file.write_text(content)
        section = TransportSection(tls=good.model_copy(update={field: str(file)}))
        with pytest.raises(ConfigError, match=rf"transport\.tls: .*{path}.* cannot be read"):
            caller(section)
        with pytest.raises(ConfigError, match=rf"transport\.tls: .*{path}.* cannot be read"):
            await listening(section)
