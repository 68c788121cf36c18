"""Encrypted connections: both sides show a certificate of the same authority."""

import asyncio
import ssl
from pathlib import Path

import pytest
import ray

from justitia_ray.config import TlsSection, TransportSection
from justitia_ray.errors import ConfigError, ConnectionLost
from justitia_ray.serve.transport import listener
from justitia_ray.serve.transport.dialer import Dialer
from justitia_ray.serve.transport.endpoint import dialer, listen
from justitia_ray.serve.transport.listener import Listener
from tests.certificates import Authority
from tests.unit.serve.transport.ends import CALLER, HOST, KEY, METHODS, NAME, Served, keyring


def section(ours: Authority, name: str, trusted: Authority | None = None) -> TransportSection:
    """Return the settings of a node with a new certificate.

    `ours` signs the certificate of node `name`. The node trusts the authority `trusted`; None:
    `ours`.
    """
    certificate, key = ours.issue(name)
    authority = (trusted or ours).file
    return TransportSection(
        tls=TlsSection(certificate=str(certificate), key=str(key), authority=str(authority))
    )


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority.in_folder(tmp_path / "ours")


@pytest.fixture
def others(tmp_path: Path) -> Authority:
    return Authority.in_folder(tmp_path / "others")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: HOST)


async def listening(section: TransportSection) -> Listener:
    return await listen(section, NAME, keyring(KEY), METHODS, {"echo": Served().echo})


def caller(section: TransportSection) -> Dialer:
    return dialer(section, CALLER, keyring(KEY), METHODS)


async def test_both_sides_with_certificates_of_the_authority_talk(ours: Authority) -> None:
    """Large bodies pass, and the certificate's name need not be the address."""
    port = await listening(section(ours, "listener"))
    link = await caller(section(ours, "caller")).dial(port.address, NAME)

    assert bytes(3_000_000) == await link.call("echo", bytes(3_000_000))
    await link.close()
    await port.stop()


async def test_caller_without_a_certificate_of_the_authority_is_refused(
    ours: Authority, others: Authority
) -> None:
    """The secret and trust in the listener do not replace a certificate."""
    port = await listening(section(ours, "listener"))
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await caller(section(others, "caller", ours)).dial(port.address, NAME)
    anonymous = caller(section(ours, "anonymous"))
    context = ssl.create_default_context(cafile=str(ours.file))
    context.check_hostname = False
    anonymous._tls = context
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await anonymous.dial(port.address, NAME)
    await port.stop()


async def test_listener_of_another_authority_is_not_called(
    ours: Authority, others: Authority
) -> None:
    """A process that has taken the port would otherwise read prompts."""
    port = await listening(section(others, "listener", ours))
    with pytest.raises(ConnectionLost, match=r"(?i)certificate.verify.failed"):
        await caller(section(ours, "caller")).dial(port.address, NAME)
    await port.stop()


async def test_side_without_encryption_is_refused(ours: Authority) -> None:
    encrypted, plain = (
        await listening(section(ours, "listener")),
        await listening(TransportSection()),
    )
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await caller(TransportSection()).dial(encrypted.address, NAME)
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await caller(section(ours, "caller")).dial(plain.address, NAME)
    await encrypted.stop()
    await plain.stop()


async def test_connection_without_a_tls_handshake_is_closed(
    ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.1)
    port = await listening(section(ours, "listener"))
    reader, writer = await asyncio.open_connection(HOST, int(port.address.partition(":")[2]))

    assert b"" == await reader.read()
    writer.close()
    await port.stop()


@pytest.mark.parametrize("field", ["certificate", "key", "authority"])
async def test_file_that_cannot_be_read_is_named(ours: Authority, field: str) -> None:
    """The file is missing on this node, or its content is not a certificate."""
    good = section(ours, "node").tls
    assert good is not None
    for path, content in (("missing.pem", None), ("wrong.pem", "nothing")):
        file = ours.folder / path
        if content is not None:
            file.write_text(content)
        wrong = TransportSection(tls=good.model_copy(update={field: str(file)}))
        with pytest.raises(ConfigError, match=rf"transport\.tls: .*{path}.* cannot be read"):
            caller(wrong)
        with pytest.raises(ConfigError, match=rf"transport\.tls: .*{path}.* cannot be read"):
            await listening(wrong)
