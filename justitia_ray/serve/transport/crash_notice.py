"""Notice that a process has crashed: signed while it runs, and sent by another process.

It is an HTTP request on the port of the connections. Its HMAC covers the crashed process and the
recipient, so the sender needs no key; a replayed notice has no effect, because process names are
never reused.
"""

import hmac

import msgspec

from justitia_ray.errors import ConnectionLost
from justitia_ray.serve.transport.handshake import Key, Keyring, Offer, Peer

CRASH_PATH = "/crash"
MAX_NOTICE_BYTES = 4096


class _Notice(msgspec.Struct, frozen=True, array_like=True):
    key_id: str
    role: str
    name: str
    target: str
    proof: bytes


def crash_notice(offer: Offer, me: Peer) -> bytes:
    """Return an HTTP request that reports this process's crash to a scheduler."""
    proof = _notice_proof(offer.key, me, offer.target)
    notice = _Notice(offer.key.key_id, me.role, me.name, offer.target, proof)
    body = msgspec.msgpack.encode(notice)
    head = (
        f"POST {CRASH_PATH} HTTP/1.1\r\nHost: {offer.address}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def read_crash_notice(body: bytes, name: str, keyring: Keyring) -> Peer:
    """Return the process that has crashed, according to a signed notice.

    Args:
        body: Body of the request.
        name: Name of this process.
        keyring: Accepted keys.

    Raises:
        ConnectionLost: If the notice is malformed, for another process, or not signed correctly.
    """
    try:
        notice = msgspec.msgpack.decode(body, type=_Notice)
    except msgspec.MsgspecError as error:
        raise ConnectionLost(f"the notice of a crash cannot be read: {error}") from None
    key, peer = keyring.find(notice.key_id), Peer(notice.role, notice.name)
    if key is None:
        raise ConnectionLost(f"{name} does not know key {notice.key_id[:80]!r}")
    if notice.target != name or not hmac.compare_digest(
        notice.proof, _notice_proof(key, peer, name)
    ):
        raise ConnectionLost(f"the notice of a crash is not signed for {name}")
    return peer


def _notice_proof(key: Key, peer: Peer, target: str) -> bytes:
    said = msgspec.msgpack.encode((peer.role, peer.name, target))
    return hmac.digest(key.secret, b"crash" + said, "sha256")
