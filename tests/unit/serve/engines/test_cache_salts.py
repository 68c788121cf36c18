"""Prefix-cache salts: one for each tenant, which no salt of another tenant's caller can equal."""

from types import SimpleNamespace
from typing import Any

import pytest

from justitia_ray.errors import RequestError
from justitia_ray.serve.engines.cache_salts import CacheSalts
from justitia_ray.serve.engines.vllm_requests import CURRENT_METER, LeaseMeter, meter_requests


def _salt_of(isolation: Any, tenant: str, own: str | None = None) -> str | None:
    return CacheSalts(isolation, 10).salt(tenant, own, 0.0)


def test_cache_salt_is_per_tenant_or_per_tenant_tree() -> None:
    assert _salt_of("tenant", "a/x") == _salt_of("tenant", "a/x")
    assert 4 == len({_salt_of("tenant", tenant) for tenant in ("a", "a/x", "a/y", "b")})
    assert _salt_of("top", "a/x") == _salt_of("top", "a/y/z") != _salt_of("top", "b/x")
    assert _salt_of("top", "a/x") == _salt_of("tenant", "a")
    assert _salt_of("shared", "a") is None


@pytest.mark.parametrize("isolation", ["tenant", "top", "shared"])
def test_callers_cache_salt_divides_its_tenants_cache(isolation: Any) -> None:
    first, second = _salt_of(isolation, "a", "s"), _salt_of(isolation, "a", "t")

    assert first == _salt_of(isolation, "a", "s")
    assert 3 == len({_salt_of(isolation, "a"), first, second})
    assert (isolation == "shared") == (first == _salt_of(isolation, "b", "s"))


def test_callers_cache_salt_never_equals_another_tenants_salt() -> None:
    """A salt may contain another tenant's digest, or text that overflows into the tenant part."""
    others = {_salt_of("tenant", tenant) for tenant in ("a", "a/b", "b")}
    named = [*(salt for salt in others if salt), "a", "b", "1:a", "|a", "a1:b", "1:b1:s"]

    assert not others & {_salt_of("tenant", "c", own) for own in named}
    assert _salt_of("tenant", "a", "b1:s") != _salt_of("tenant", "a1:b", "s")
    assert all(len(salt or "") == 64 and (salt or "").isalnum() for salt in others)


def test_number_and_length_of_a_callers_cache_salts_are_bounded() -> None:
    """A salt unused for ten minutes is evicted; each tenant may have its own limit."""
    salts = CacheSalts("tenant", 2)
    for now, own in ((0.0, "r"), (1.0, "s"), (2.0, "r")):
        salts.salt("a", own, now)
    with pytest.raises(RequestError, match=r"engine\.max_cache_salts"):
        salts.salt("a", "t", 600.0)
    salts.salt("b", "t", 600.0)
    salts.salt("a", "t", 601.0)
    with pytest.raises(RequestError, match=r"engine\.max_cache_salts"):
        salts.salt("a", "s", 601.5)
    with pytest.raises(RequestError, match="at most 128 characters"):
        salts.salt("c", "s" * 129, 0.0)


def test_cache_salts_of_idle_tenants_are_forgotten() -> None:
    salts = CacheSalts("tenant", 1)
    for number in range(1_000):
        salts.salt(f"t{number}", "s", float(number))
        salts.salt("busy", "s", float(number))
    assert len(salts._used) == 601
    with pytest.raises(RequestError):
        salts.salt("busy", "t", 1_000.0)
    salts.salt("a", "s", 5_000.0)

    assert list(salts._used) == ["a"]


class _Engine:
    """Engine that stores requests as vLLM's output processor does."""

    def __init__(self, salts: CacheSalts | None) -> None:
        self.request_states: dict[str, Any] = {}
        self.taken: list[Any] = []
        meter_requests(self, self, salts)

    def add_request(self, request: Any) -> None:
        self.taken.append(request.cache_salt)

    async def add_request_async(self, request: Any) -> None:
        raise NotImplementedError

    def add_with_salt(self, tenant: str, own: str | None) -> None:
        token = CURRENT_METER.set(LeaseMeter(0, (), tenant))
        self.add_request(SimpleNamespace(request_id="r", cache_salt=own))
        CURRENT_METER.reset(token)


def test_every_request_of_a_lease_has_its_tenants_cache_salt() -> None:
    engine = _Engine(CacheSalts("tenant", 1))
    engine.add_with_salt("a", None)
    engine.add_with_salt("a", "s")

    assert [_salt_of("tenant", "a"), _salt_of("tenant", "a", "s")] == engine.taken


def test_requests_have_no_cache_salt_without_a_prefix_cache() -> None:
    engine = _Engine(None)
    engine.add_with_salt("a", "s")

    assert ["s"] == engine.taken
