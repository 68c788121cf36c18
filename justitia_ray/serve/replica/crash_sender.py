"""Script of a process beside a replica, which reports a crash of the replica's process.

It reads its standard input: first lines of JSON, each with a notice and its address, of which the
last line counts; then the text that `faulthandler` writes when the replica's process receives a
fatal signal. The script copies that text to standard error, and sends the notice before the
replica's process has ended. If the input ends without that text, as after SIGKILL, nothing is
reported.

The script imports only the standard library, so it needs little time and memory; it imports `ssl`
at the start if connections are encrypted.
"""

import base64
import json
import os
import socket
import time
from typing import Any

_READ_BYTES = 65_536
_TRIES_S = 5.0
"""Seconds for which a crash notice is sent again while the scheduler is not reachable."""
_PAUSE_S = 0.2
_TRY_S = 2.0


def main() -> None:
    """Wait until the replica's process has ended; if it crashed, send the scheduler the notice."""
    order: dict[str, Any] | None = None
    text, has_crashed = b"", False
    while chunk := os.read(0, _READ_BYTES):
        text += chunk
        while not has_crashed and text.startswith(b"{") and b"\n" in text:
            line, _, text = text.partition(b"\n")
            order = json.loads(line)
            if order["tls"] is not None:
                import ssl  # noqa: F401  # imported now, because a crash leaves little time
        if text and not text.startswith(b"{"):
            os.write(2, text)
            text = b""
            if not has_crashed and order is not None:
                _send_repeatedly(order)
            has_crashed = True


def _tls_context(order: dict[str, Any]) -> Any:
    """Return the TLS context for the connection to the scheduler; None without TLS.

    The certificates are read when they are needed, because they may be replaced at any time.
    """
    if order["tls"] is None:
        return None
    import ssl

    certificate, key, authority = order["tls"]
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    context.load_cert_chain(certificate, key)
    context.check_hostname = False
    return context


def _send_repeatedly(order: dict[str, Any]) -> None:
    ends_at, said = time.monotonic() + _TRIES_S, ""
    while time.monotonic() < ends_at:
        try:
            said = _send_once(order)
        except OSError as error:  # includes `ssl.SSLError`
            said = str(error)
        else:
            if " 503 " not in said:  # 503: this scheduler is not leader yet
                break
        time.sleep(_PAUSE_S)
    if " 204 " not in said:
        os.write(2, f"the scheduler was not told of the crash: {said}\n".encode())


def _send_once(order: dict[str, Any]) -> str:
    """Send the crash notice; return the first line of the scheduler's answer."""
    host, _, port = order["address"].rpartition(":")
    address = (host.strip("[]"), int(port))
    encryption = _tls_context(order)
    with socket.create_connection(address, timeout=_TRY_S) as opened:
        way = opened if encryption is None else encryption.wrap_socket(opened)
        way.sendall(base64.b64decode(order["request"]))
        return str(way.recv(_READ_BYTES).split(b"\r\n")[0], "latin-1")


if __name__ == "__main__":
    main()
