"""Create listeners and dialers from the configuration: addresses, ports, certificates."""

import ssl
from collections.abc import Iterable, Mapping
from typing import Any

import ray

from justitia_ray.config import TransportSection
from justitia_ray.errors import ConfigError
from justitia_ray.serve.transport.dialer import Dialer
from justitia_ray.serve.transport.handshake import Keyring, Peer
from justitia_ray.serve.transport.listener import Listener, Serve
from justitia_ray.serve.transport.methods import Method


async def listen(
    section: TransportSection,
    name: str,
    keyring: Keyring,
    methods: Mapping[str, Method],
    serve: Mapping[str, Serve],
    **options: Any,
) -> Listener:
    """Return a listener on this node's address, at the first free port.

    The port is as exposed as Ray's own ports on the node.

    Raises:
        ConfigError: If no port can be opened, or a certificate cannot be read.
    """
    listener = Listener(
        name,
        keyring,
        methods,
        serve,
        tls=_tls_context(section, ssl.Purpose.CLIENT_AUTH),
        standstill_s=section.standstill_s,
        **options,
    )
    ports: Iterable[int] = (0,)
    if section.ports is not None:
        ports = range(section.ports[0], section.ports[1] + 1)
    await listener.start(ray.util.get_node_ip_address(), ports)
    return listener


def dialer(
    section: TransportSection,
    me: Peer,
    keyring: Keyring,
    methods: Mapping[str, Method],
    *,
    waits: bool = False,
) -> Dialer:
    """Return a dialer for this process's connections to other processes.

    Args:
        section: Ports, certificates and times.
        me: This process.
        keyring: Keys to try.
        methods: Methods of the called processes.
        waits: Whether to wait up to `transport.standstill_s` for a process that is silent while its
            machine answers, because its work would be lost with the connection.

    Raises:
        ConfigError: If a certificate cannot be read.
    """
    standstill_s = section.standstill_s if waits else 0.0
    return Dialer(
        me, keyring, methods, _tls_context(section, ssl.Purpose.SERVER_AUTH), standstill_s
    )


def _tls_context(section: TransportSection, purpose: ssl.Purpose) -> ssl.SSLContext | None:
    tls = section.tls
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(purpose, cafile=tls.authority)
        context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:  # includes ssl.SSLError
        raise ConfigError(
            f"transport.tls: certificate {tls.certificate}, key {tls.key} or authority"
            f" {tls.authority} cannot be read on this node: {error}"
        ) from None
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context
