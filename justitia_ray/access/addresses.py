"""Addresses from which documents of token issuers may be read."""

from urllib.parse import urlsplit

from justitia_ray.errors import shown_short

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


def check_url(url: str) -> None:
    """Check that a document may be downloaded from a URL: HTTPS, or HTTP to this machine.

    Raises:
        ValueError: If the address is neither `https://` nor `http://` of this machine.
    """
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname in _THIS_MACHINE:
        return
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError(
            f"{shown_short(url)} is not read: only https://, and http:// of this machine, are"
            " allowed"
        )


def discovery_url(issuer: str) -> str:
    """Return the URL of an issuer's discovery document (OpenID Connect Discovery 1.0, 4.1)."""
    return f"{issuer.removesuffix('/')}/.well-known/openid-configuration"
