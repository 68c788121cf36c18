"""Proxies of the environment: the rules are those of the HTTP client that this project uses."""

import os
from typing import Any

import httpx
import pytest

from justitia_ray.protocol.proxies import proxied_addresses, proxy_hint, proxy_variable

PROXY = "http://proxy:3128"
EXCEPTIONS = (
    "",
    "*",
    "svc",
    ".svc",
    "justitia-serve-svc.justitia.svc",
    "other, justitia.svc",
    "serve-svc.justitia.svc",
    "10.0.0.7",
    "10.0.0.0/8",
    "10.0.0.7:8000",
    "justitia.svc:8000",
    "justitia.svc:9",
    "::1,fd00::7",
)
URLS = (
    "http://justitia-serve-svc.justitia.svc:8000/v1",
    "http://10.0.0.7:8000",
    "http://10.0.0.7",
    "http://[fd00::7]:8000",
    "https://hub.example.com",
)


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def uses_proxy(url: str) -> bool:
    """Return whether httpx would send a call through a proxy in this environment."""
    with httpx.Client() as client:
        transport: Any = client._transport_for_url(httpx.URL(url))
        return type(transport._pool).__name__ == "HTTPProxy"


@pytest.mark.parametrize("excepted", EXCEPTIONS)
def test_no_proxy_exceptions_are_interpreted_as_in_httpx(
    excepted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", excepted)

    for url in URLS:
        assert uses_proxy(url) == (proxy_variable(url, os.environ) is not None), url


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({}, None),
        ({"HTTP_PROXY": PROXY}, "HTTP_PROXY"),
        ({"http_proxy": PROXY, "HTTP_PROXY": PROXY}, "http_proxy"),
        ({"http_proxy": "", "HTTP_PROXY": PROXY}, None),
        ({"HTTPS_PROXY": PROXY}, None),
        ({"ALL_PROXY": PROXY}, "ALL_PROXY"),
        ({"ALL_PROXY": PROXY, "HTTP_PROXY": PROXY}, "HTTP_PROXY"),
        ({"HTTP_PROXY": PROXY, "no_proxy": "svc"}, None),
    ],
)
def test_applicable_proxy_variable_is_named(
    environment: dict[str, str], variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert variable == proxy_variable("http://a.svc", environment)
    assert (variable is not None) == uses_proxy("http://a.svc")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_local_host_is_reached_without_a_proxy(host: str) -> None:
    assert proxy_variable(f"http://{host}:8000", {"ALL_PROXY": PROXY}) is None


def test_addresses_sent_through_a_proxy_are_listed() -> None:
    environment = {"HTTP_PROXY": PROXY, "NO_PROXY": "10.0.0.1"}

    assert ("HTTP_PROXY", ("10.0.0.2", "fd00::7")) == proxied_addresses(
        {"10.0.0.1", "10.0.0.2", "fd00::7", "127.0.0.1"}, environment
    )
    assert (None, ()) == proxied_addresses({"10.0.0.1"}, environment)


def test_proxy_hint_names_the_variable_and_the_host_but_not_the_proxy() -> None:
    """The proxy's URL may contain a password."""
    hint = proxy_hint("http://a.svc:8000", {"HTTP_PROXY": "http://user:secret@proxy"})

    assert " (by the proxy of HTTP_PROXY; to reach a.svc directly, add it to NO_PROXY)" == hint
    assert "" == proxy_hint("http://a.svc:8000", {})
