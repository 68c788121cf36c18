"""Every form of `redis_url` is parsed, or refused without being quoted."""

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.store.redis_url import Setup, read_redis_url


@pytest.mark.parametrize(
    ("url", "expected", "address"),
    [
        ("redis://h/2", (Setup.SERVER, False, (), "", 0), "redis://h:6379"),
        (
            "rediss://h:1/0?ssl_min_version=3",
            (Setup.SERVER, True, (), "", 0),
            "rediss://h:1",
        ),
        ("unix:///run/r.sock?db=1", (Setup.SERVER, False, (), "", 0), "unix:///run/r.sock"),
        (
            "redis+sentinel://a,b:7,[::1]:8/main/3",
            (Setup.SENTINEL, False, (("a", 26379), ("b", 7), ("::1", 8)), "main", 3),
            "redis+sentinel://a,b:7,[::1]:8/main",
        ),
        (
            "rediss+sentinel://a/main",
            (Setup.SENTINEL, True, (("a", 26379),), "main", 0),
            "rediss+sentinel://a/main",
        ),
        (
            "redis+cluster://a,b:7001",
            (Setup.CLUSTER, False, (("a", 6379), ("b", 7001)), "", 0),
            "redis+cluster://a,b:7001",
        ),
        (
            "rediss+cluster://a/0",
            (Setup.CLUSTER, True, (("a", 6379),), "", 0),
            "rediss+cluster://a",
        ),
    ],
)
def test_all_forms_of_redis_urls_are_parsed(
    url: str, expected: tuple[object, ...], address: str
) -> None:
    """The Redis client would silently ignore a part that is not parsed."""
    read = read_redis_url(url)

    assert expected == (read.setup, read.tls, read.hosts, read.service, read.db)
    assert address == read.address


@pytest.mark.parametrize(
    "url",
    [
        *("", "s3cret", "http://s3cret", "redis://s3cret:x", "redis://u:s3cret@h"),
        *("redis+sentinel://s3cret", "redis+sentinel:///s3cret", "redis+sentinel://h/a/s3cret"),
        *("redis+sentinel://h/s/1/s3cret", "redis+sentinel://s3cret:x/s"),
        *("redis+cluster://h/3", "redis+cluster://,s3cret", "redis+cluster://h?password=s3cret"),
    ],
)
def test_error_of_an_invalid_url_does_not_quote_it(url: str) -> None:
    """A password with a slash or a space makes a URL invalid, and must not be logged."""
    with pytest.raises(ConfigError, match="redis_url") as refused:
        read_redis_url(url)

    assert "s3cret" not in str(refused.value)
