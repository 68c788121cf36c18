"""A caller that names tenants below its own gains nothing: limits of all ancestors bind."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.caps import caps_of
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.core.drain import TenantQuota
from justitia_ray.core.kv_shares import KvShares
from justitia_ray.core.state import State, Timeouts
from justitia_ray.core.tenants import ApplicationCaps, KvShare, TenantNode, TenantTree
from tests.exact import exact
from tests.property.profiles import examples
from tests.property.share_steps import VERBS, Step, apply_step, step_lists

_BELOW = st.sampled_from(["acme", "acme/a", "acme/b", "acme/b/c", "acme/d/e/f"])
_WEIGHTS = st.sampled_from([Fraction(1, 2), Fraction(2)])
_STEPS = step_lists(VERBS, st.sampled_from("abcuv"), st.just(Fraction(1)), 30)


@examples(60)
@given(_STEPS, st.lists(_BELOW, min_size=3, max_size=3), _WEIGHTS)
def test_naming_subtenants_changes_no_sort_key_of_other_tenants(
    steps: list[Step], names: list[str], weight: Fraction
) -> None:
    """`tenant_weights: {acme: w}` is acme's weight, whether or not it has sub-tenants."""
    tenant_of = {**dict(zip("abc", names, strict=True)), "u": "u", "v": "v"}
    tree = TenantTree(weights={"acme": exact(weight)})
    named, plain = (TenantShare(VirtualClock(exact(0)), tree) for _ in range(2))
    for sequence, step in enumerate(steps):
        for share in (named, plain):
            tenant = tenant_of[step.name]
            if share is plain:
                tenant = tenant.partition("/")[0]
            own = exact(weight) if tenant.startswith("acme") else exact(1)
            if step.verb == "arrive" and step.name not in share.accounts:
                share.arrive(step.name, exact(step.work + 2), own, sequence, tenant)
            elif step.name in share.accounts and step.verb != "arrive":
                apply_step(share, step.verb, step.name, exact(step.work), own)

        assert named.clock.virtual_time == plain.clock.virtual_time
        for name, account in named.accounts.items():
            if name in "uv" and not account.withdrawn:
                assert named.tag(name) == plain.tag(name)


def test_subtree_that_lacks_its_configured_weight_is_detected() -> None:
    """If every branch weighed 1, a name below a light tenant would be worth more."""
    keys = []
    for weights in ({"acme": 0.5}, {}):
        share = TenantShare(tree=TenantTree(weights=weights))
        share.arrive("a", 100, 0.5, 1, "acme/x")
        share.arrive("u", 150, 1.0, 2, "u")
        keys.append((share.tag("a"), share.tag("u")))

    assert [(200, 150), (100, 150)] == keys


def test_weight_limit_holds_for_inner_nodes_of_the_tenant_tree() -> None:
    """`max_weight` also limits tenants without a configured weight, and their parents."""
    tree = TenantTree(
        {"acme": TenantNode(max_weight=0.5), "acme/b": TenantNode(weight=0.25)}, {"acme/c": 3.0}
    )

    weights = [tree.branch_weight(path) for path in ("acme", "acme/a", "acme/b", "acme/c", "u")]
    assert [0.5, 0.5, 0.25, 0.5, 1] == weights


@examples(60)
@given(st.lists(st.tuples(_BELOW, st.integers(1, 30)), min_size=1, max_size=30))
def test_limits_of_a_tenant_node_hold_for_all_its_descendants(
    wishes: list[tuple[str, int]],
) -> None:
    """Memory share, weight, queue length and caps hold for acme and its sub-tenants together."""
    caps = ApplicationCaps(inferences=5)
    node = TenantNode(max_weight=2.0, kv_share=KvShare(most=0.5), caps=caps, deadline_s=9.0)
    tree = TenantTree({"acme": node})
    shares, quota = KvShares(tree), TenantQuota(40)
    state = State(Timeouts(), tenants=tree)
    held = 0
    for number, (tenant, tokens) in enumerate(wishes):
        assert quota.has_room(tenant) == quota.has_room("acme")
        quota.arrive(tenant)
        is_refused = shares.refuses(tenant, tokens, 100) is not None
        assert is_refused == (held > 0 and held + tokens > 50)
        if not is_refused:
            held += tokens
            shares.hold(f"l{number}", tenant, tokens)
        assert 2.0 == state.effective_weight(tenant, 50.0, "priority")
        assert 9.0 == tree.deadline_s(tenant)
        assert caps == caps_of(tree, tenant)
