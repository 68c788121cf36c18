"""Identities: tenant paths, scopes and weight caps."""

from typing import Any

import pytest

from justitia_ray.access.identity import Identity, Scope, check_tenant, is_within
from justitia_ray.errors import Forbidden, RequestError


def identity(tenant: str | None, *scopes: Scope, **fields: Any) -> Identity:
    return Identity(tenant, frozenset(scopes), "key:00000000", **fields)


@pytest.mark.parametrize(
    ("tenant", "other", "within"),
    [
        ("acme", "acme", True),
        ("acme/search", "acme", True),
        ("acme/search/alice", "acme/search", True),
        ("acme", "acme/search", False),
        ("acmelike", "acme", False),
        ("acme/searchers", "acme/search", False),
    ],
)
def test_tenant_is_below_every_prefix_of_its_path(tenant: str, other: str, within: bool) -> None:
    """Whole path components count: `ab` is not below `a`."""
    assert within == is_within(tenant, other)


@pytest.mark.parametrize("tenant", ["a", "A-1._:", "acme/search/alice", "a" * 128, "...", ".a/b."])
def test_path_of_plain_parts_is_a_tenant(tenant: str) -> None:
    check_tenant(tenant)


@pytest.mark.parametrize(
    "tenant",
    ["", "/", "/a", "a/", "a//b", "a b", "a|b", "..", "a/./b", "a/..", "ü", "a" * 129, "a\n"],
)
def test_invalid_tenant_path_is_refused(tenant: str) -> None:
    """An empty component would give one tenant two names."""
    with pytest.raises(RequestError, match="tenant is"):
        check_tenant(tenant)


@pytest.mark.parametrize(
    ("who", "named", "tenant"),
    [
        (identity("acme"), None, "acme"),
        (identity("acme"), "acme", "acme"),
        (identity("acme"), "acme/x", "acme/x"),
        (identity("acme"), "acme/2/3/4/5/6/7/8", "acme/2/3/4/5/6/7/8"),
        (identity("a/2/3/4/5/6/7/8/9"), "a/2/3/4/5/6/7/8/9", "a/2/3/4/5/6/7/8/9"),
        (identity(None, Scope.PROXY), "any/one", "any/one"),
        (identity("acme", Scope.PROXY), "beta", "beta"),
        (identity("acme", Scope.PROXY), None, "acme"),
    ],
)
def test_call_may_name_only_tenants_of_its_credential(
    who: Identity, named: str | None, tenant: str
) -> None:
    """A credential with the proxy scope may name any tenant."""
    assert tenant == who.choose_tenant(named)


@pytest.mark.parametrize(
    ("who", "tenant", "namespace"),
    [
        (identity("acme"), "acme", "acme"),
        (identity("acme"), "acme/x", "acme"),
        (identity("acme/x"), "acme/x/y", "acme/x"),
        (identity(None, Scope.PROXY), "any/one", "any/one"),
        (identity("acme", Scope.PROXY), "acme/x", "acme/x"),
    ],
)
def test_namespace_is_the_credential_s_own_tenant(
    who: Identity, tenant: str, namespace: str
) -> None:
    """A gateway checks the tenant that it names, and names below it are free."""
    assert namespace == who.namespace_of(tenant)


@pytest.mark.parametrize(
    ("who", "named", "error", "said"),
    [
        (identity("acme"), "beta", Forbidden, "good for 'acme'"),
        (identity("acme/search"), "acme", Forbidden, "good for 'acme/search'"),
        (identity("ops", Scope.OPERATE), "acme", Forbidden, "good for 'ops'"),
        (identity(None, Scope.OPERATE), "acme", Forbidden, "good for 'none'"),
        (identity(None, Scope.PROXY), None, RequestError, "tenant is required"),
        (identity("acme"), "acme//x", RequestError, "tenant is"),
        (identity("acme"), "acme/2/3/4/5/6/7/8/9", RequestError, "at most 8 parts are allowed"),
        (identity(None, Scope.PROXY), "1/2/3/4/5/6/7/8/9", RequestError, "at most 8 parts"),
    ],
)
def test_call_for_another_tenant_is_refused(
    who: Identity, named: str | None, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        who.choose_tenant(named)


@pytest.mark.parametrize("scope", list(Scope))
def test_scope_is_required_by_name(scope: Scope) -> None:
    """No scope includes another, except that operators have the owners' rights."""
    identity("a", scope).check_scope(scope)
    with pytest.raises(Forbidden, match=f"lacks the scope '{scope.value}'") as refused:
        identity("a", *(set(Scope) - {scope, Scope.OPERATE})).check_scope(scope)

    assert "missing_scope" == refused.value.code
    identity("a", Scope.OPERATE).check_scope(Scope.OWN)


def test_weight_above_the_cap_is_refused_with_both_numbers() -> None:
    """A caller without a requested weight gets its tenant's configured one."""
    who = identity("a", max_weight=2.0)
    for weight in (None, 0.5, 2.0):
        who.check_weight(weight)
    with pytest.raises(Forbidden, match=r"weight is 2\.5: .* at most 2$"):
        who.check_weight(2.5)
