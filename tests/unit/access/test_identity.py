"""Identities: tenant paths, scopes and weight caps."""

from typing import Any

import pytest

from justitia_ray.access.identity import Identity, Scope, check_tenant, is_within
from justitia_ray.errors import Forbidden, RequestError


def create_identity(tenant: str | None, *scopes: Scope, **fields: Any) -> Identity:
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
def test_tenant_paths_are_compared_by_whole_components(
    tenant: str, other: str, within: bool
) -> None:
    """Whole path components are compared: tenant `ab` is not below tenant `a`."""
    assert within == is_within(tenant, other)


@pytest.mark.parametrize("tenant", ["a", "A-1._:", "acme/search/alice", "a" * 128, "...", ".a/b."])
def test_valid_tenant_path_is_accepted(tenant: str) -> None:
    check_tenant(tenant)


@pytest.mark.parametrize(
    "tenant",
    ["", "/", "/a", "a/", "a//b", "a b", "a|b", "..", "a/./b", "a/..", "ü", "a" * 129, "a\n"],
)
def test_invalid_tenant_path_is_refused(tenant: str) -> None:
    """An empty path component would give one tenant two names."""
    with pytest.raises(RequestError, match="tenant is"):
        check_tenant(tenant)


@pytest.mark.parametrize(
    ("who", "named", "tenant"),
    [
        (create_identity("acme"), None, "acme"),
        (create_identity("acme"), "acme", "acme"),
        (create_identity("acme"), "acme/x", "acme/x"),
        (create_identity("acme"), "acme/2/3/4/5/6/7/8", "acme/2/3/4/5/6/7/8"),
        (create_identity("a/2/3/4/5/6/7/8/9"), "a/2/3/4/5/6/7/8/9", "a/2/3/4/5/6/7/8/9"),
        (create_identity(None, Scope.PROXY), "any/one", "any/one"),
        (create_identity("acme", Scope.PROXY), "beta", "beta"),
        (create_identity("acme", Scope.PROXY), None, "acme"),
    ],
)
def test_call_may_name_only_tenants_below_the_credentials_tenant(
    who: Identity, named: str | None, tenant: str
) -> None:
    assert tenant == who.choose_tenant(named)


@pytest.mark.parametrize(
    ("who", "tenant", "namespace"),
    [
        (create_identity("acme"), "acme", "acme"),
        (create_identity("acme"), "acme/x", "acme"),
        (create_identity("acme/x"), "acme/x/y", "acme/x"),
        (create_identity(None, Scope.PROXY), "any/one", "any/one"),
        (create_identity("acme", Scope.PROXY), "acme/x", "acme/x"),
    ],
)
def test_credential_uses_the_application_namespace_of_its_tenant(
    who: Identity, tenant: str, namespace: str
) -> None:
    assert namespace == who.namespace_of(tenant)


@pytest.mark.parametrize(
    ("who", "named", "error", "said"),
    [
        (create_identity("acme"), "beta", Forbidden, "good for 'acme'"),
        (create_identity("acme/search"), "acme", Forbidden, "good for 'acme/search'"),
        (create_identity("ops", Scope.OPERATE), "acme", Forbidden, "good for 'ops'"),
        (create_identity(None, Scope.OPERATE), "acme", Forbidden, "good for 'none'"),
        (create_identity(None, Scope.PROXY), None, RequestError, "tenant is required"),
        (create_identity("acme"), "acme//x", RequestError, "tenant is"),
        (
            create_identity("acme"),
            "acme/2/3/4/5/6/7/8/9",
            RequestError,
            "at most 8 parts are allowed",
        ),
        (create_identity(None, Scope.PROXY), "1/2/3/4/5/6/7/8/9", RequestError, "at most 8 parts"),
    ],
)
def test_call_for_a_foreign_tenant_is_refused(
    who: Identity, named: str | None, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        who.choose_tenant(named)


@pytest.mark.parametrize("scope", list(Scope))
def test_missing_scope_is_named_in_the_refusal(scope: Scope) -> None:
    """Operators have the rights of owners; no other scope includes another."""
    create_identity("a", scope).check_scope(scope)
    with pytest.raises(Forbidden, match=f"lacks the scope '{scope.value}'") as refused:
        create_identity("a", *(set(Scope) - {scope, Scope.OPERATE})).check_scope(scope)

    assert "missing_scope" == refused.value.code
    create_identity("a", Scope.OPERATE).check_scope(Scope.OWN)


def test_weight_above_the_cap_is_refused_with_both_weights() -> None:
    who = create_identity("a", max_weight=2.0)
    for weight in (None, 0.5, 2.0):
        who.check_weight(weight)
    with pytest.raises(Forbidden, match=r"weight is 2\.5: .* at most 2$"):
        who.check_weight(2.5)
