"""Fetch small documents of other services in bounded time, over HTTPS or from this machine."""

import asyncio
import ssl
import time
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.error import HTTPError
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
    getproxies,
)

from justitia_ray.access.addresses import check_url
from justitia_ray.units import Seconds

LONGEST_DOCUMENT_BYTES = 1 << 20
SILENCE_S: Seconds = 5.0
"""Timeout in seconds for a server that sends no bytes during a download."""
_LONGEST_READ_S: Seconds = 10.0
"""Timeout in seconds for a whole download, because a slow server may send a byte now and then."""


async def fetch(url: str, ca_file: str | None) -> bytes:
    """Download a document over HTTP.

    Args:
        url: Address of the document; redirects are followed to addresses that `check_url` accepts.
        ca_file: Trusted CA certificates; None for the system's certificates.

    Raises:
        OSError: If the document cannot be fetched: no connection, a status other than 200, or a
            timeout.
        ValueError: If the address is not allowed, or the document too long.
    """
    # A DNS look-up has no timeout, so this thread may outlive the call.
    async with asyncio.timeout(_LONGEST_READ_S + SILENCE_S):
        return await asyncio.to_thread(_read_url, url, ca_file)


class _Redirects(HTTPRedirectHandler):
    """Handler that follows HTTP redirects only to addresses that `check_url` accepts."""

    max_redirections = 3

    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Request | None:
        try:
            check_url(newurl)
        except ValueError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _build_opener(ca_file: str | None) -> OpenerDirector:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise OSError(f"{ca_file}: the certificates cannot be read: {error}") from error
    # HTTP is allowed only to this machine, so no proxy is needed.
    proxies = {scheme: url for scheme, url in getproxies().items() if scheme == "https"}
    return build_opener(ProxyHandler(proxies), HTTPSHandler(context=context), _Redirects())


def _read_url(url: str, ca_file: str | None) -> bytes:
    check_url(url)
    ends_at = time.monotonic() + _LONGEST_READ_S
    # Some gateways reject urllib's default user agent.
    headers = {"Accept": "application/json", "User-Agent": "justitia-ray"}
    document = b""
    try:
        with _build_opener(ca_file).open(
            Request(url, headers=headers), timeout=SILENCE_S
        ) as response:
            while piece := response.read1(1 << 16):
                document += piece
                if len(document) > LONGEST_DOCUMENT_BYTES:
                    raise ValueError(f"{url}: longer than {LONGEST_DOCUMENT_BYTES} bytes")
                if time.monotonic() > ends_at:
                    raise TimeoutError(f"{url}: not read within {_LONGEST_READ_S:g} s")
    except HTTPError as error:
        error.close()
        raise OSError(f"{url}: answered with status {error.code}") from None
    except HTTPException as error:
        raise OSError(f"{url}: {error!r}") from error
    return document
