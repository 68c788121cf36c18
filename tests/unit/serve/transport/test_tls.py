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
from tests.unit.serve.transport.ends import CALLER, HOST, KEY, METHODS, NAME, Served, keyring_of


def section_of(
    our_authority: Authority, name: str, trusted: Authority | None = None
) -> TransportSection:
    """Return the transport settings of a node with a new certificate.

    `ours` signs the certificate of node `name`. The node trusts the authority `trusted`; None:
    `ours`.
    """
    certificate, key = our_authority.issue(name)
    authority = (trusted or our_authority).file
    return TransportSection(
        tls=TlsSection(certificate=str(certificate), key=str(key), authority=str(authority))
    )


@pytest.fixture
def our_authority(tmp_path: Path) -> Authority:
    return Authority.in_folder(tmp_path / "ours")


@pytest.fixture
def other_authority(tmp_path: Path) -> Authority:
    return Authority.in_folder(tmp_path / "others")


@pytest.fixture(autouse=True)
def _use_local_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: HOST)


async def listening_with(section: TransportSection) -> Listener:
    return await listen(section, NAME, keyring_of(KEY), METHODS, {"echo": Served().echo})


def dialer_of(section: TransportSection) -> Dialer:
    return dialer(section, CALLER, keyring_of(KEY), METHODS)


async def test_processes_with_certificates_of_one_authority_connect(
    our_authority: Authority,
) -> None:
    """Large bodies pass, and the certificate's name need not be the address."""
    port = await listening_with(section_of(our_authority, "listener"))
    link = await dialer_of(section_of(our_authority, "caller")).dial(port.address, NAME)

    assert bytes(3_000_000) == await link.call("echo", bytes(3_000_000))
    await link.close()
    await port.stop()


async def test_caller_without_a_certificate_of_the_authority_is_refused(
    our_authority: Authority, other_authority: Authority
) -> None:
    """The shared secret does not replace a certificate."""
    port = await listening_with(section_of(our_authority, "listener"))
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await dialer_of(section_of(other_authority, "caller", our_authority)).dial(
            port.address, NAME
        )
    anonymous = dialer_of(section_of(our_authority, "anonymous"))
    context = ssl.create_default_context(cafile=str(our_authority.file))
    context.check_hostname = False
    anonymous._tls = context
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await anonymous.dial(port.address, NAME)
    await port.stop()


async def test_listener_of_another_authority_is_refused(
    our_authority: Authority, other_authority: Authority
) -> None:
    """A process that has taken the port could otherwise read prompts."""
    port = await listening_with(section_of(other_authority, "listener", our_authority))
    with pytest.raises(ConnectionLost, match=r"(?i)certificate.verify.failed"):
        await dialer_of(section_of(our_authority, "caller")).dial(port.address, NAME)
    await port.stop()


async def test_process_without_encryption_is_refused(our_authority: Authority) -> None:
    encrypted, plain = (
        await listening_with(section_of(our_authority, "listener")),
        await listening_with(TransportSection()),
    )
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await dialer_of(TransportSection()).dial(encrypted.address, NAME)
    with pytest.raises(ConnectionLost, match="no connection to replica-1"):
        await dialer_of(section_of(our_authority, "caller")).dial(plain.address, NAME)
    await encrypted.stop()
    await plain.stop()


async def test_connection_without_a_tls_handshake_is_closed(
    our_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.1)
    port = await listening_with(section_of(our_authority, "listener"))
    reader, writer = await asyncio.open_connection(HOST, int(port.address.partition(":")[2]))

    assert b"" == await reader.read()
    writer.close()
    await port.stop()


@pytest.mark.parametrize("field", ["certificate", "key", "authority"])
async def test_error_names_a_certificate_file_that_cannot_be_read(
    our_authority: Authority, field: str
) -> None:
    """The file is missing on this node, or its content is not a certificate."""
    good = section_of(our_authority, "node").tls
    assert good is not None
    for path, content in (("missing.pem", None), ("wrong.pem", "nothing")):
        file = our_authority.folder / path
        if content is not None:
            file.write_text(content)
        wrong = TransportSection(tls=good.model_copy(update={field: str(file)}))
        with pytest.raises(ConfigError, match=rf"transport\.tls: .*{path}.* cannot be read"):
            dialer_of(wrong)
        with pytest.raises(ConfigError, match=rf"transport\.tls: .*{path}.* cannot be read"):
            await listening_with(wrong)
