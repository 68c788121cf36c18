"""What the order over a tree of tenants guarantees on replicas, and a flat order does not.

Lag is against GPS inside the tenant, as in `test_tenant_passing`; all work below one top-level node
arrives at once (`test_tenant_order` shows what may happen otherwise).
"""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.clock.branch import Node
from justitia_ray.core.policies.guarded import policy as guarded
from justitia_ray.core.policies.guarded.policy import GuardedPolicy
from justitia_ray.units import KvTokenTime
from tests.property.engine import Arrival, Engine, Server
from tests.property.profiles import examples
from tests.property.test_guard import random_shadow
from tests.property.test_tenant_order import run_tenants
from tests.property.test_tenant_passing import TenantEngine as _TenantEngine
from tests.property.workloads import servers

_INFERENCES = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=5
).map(tuple)
_WEIGHTS = st.sampled_from([Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2)])
_BELOW = st.sampled_from(["", "/a", "/b", "/b/c", "/b/d"])
_ORDERS: list[dict[str, object]] = [
    {},
    {"order": "sgps"},
    {"guard_iterations": 1},
    {"order": "sgps", "guard_iterations": 3},
]


@st.composite
def _arrivals_of_trees(draw: st.DrawFn) -> list[Arrival]:
    """Return applications below up to three top-level nodes; each node's arrive at once."""
    found = []
    for top in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, 30))
        weights = {below: draw(_WEIGHTS) for below in ("", "/a", "/b", "/b/c", "/b/d")}
        for below in draw(st.lists(_BELOW, min_size=1, max_size=6)):
            stages = (draw(_INFERENCES),)
            found.append(Arrival(at, stages, weights[below], tenant=f"T{top}{below}"))
    return found


class TreeEngine(_TenantEngine):
    """Engine that records when GPS inside the tenant would have finished each application."""

    def least_part(self, tenant: str) -> float:
        """Return the tenant's smallest share of the machine by weight, over all reports."""
        return self._parts.get(tenant, 1.0)

    def __init__(self, replicas: list[Server], options: dict[str, object]) -> None:
        super().__init__(replicas, options)
        self._parts: dict[str, float] = {}

    def _report(self, number: int, server: Server) -> None:
        before = self._served
        Engine._report(self, number, server)
        for leaf in self.share.nodes.kept_leaves().values():
            self.share._update_path(
                leaf
            )  # Otherwise the tenant's virtual time would be that of its last change.
        for leaf in self.share.nodes.kept_leaves().values():
            part: float = 1
            node: Node | None = leaf
            while node is not None:
                clock = self.share.nodes.clock_of(node)
                weights = sum(session.weight for session in clock.sessions().values())
                part, node = part * float(node.weight / weights), node.parent
            self._parts[leaf.path] = min(part, self._parts.get(leaf.path, 1.0))
        for name, tag in self._tag_inside.items():
            tenant = self.share.nodes.leaves.get(self._arrivals[name].tenant)
            if tenant is None or tenant.gps.virtual_time >= tag:
                self._reached.setdefault(name, before)


@pytest.mark.parametrize("options", _ORDERS)
@examples(15)
@given(data=st.data())
def test_lag_inside_a_tenant_is_bounded_at_any_depth_of_the_tree(
    options: dict[str, Any], data: st.DataObject
) -> None:
    """The overtaking budget applies in total, not once for each level of the tree."""
    replicas, applications = data.draw(servers()), data.draw(_arrivals_of_trees())
    parts: dict[str, list[float]] = {}
    tenant_guard_budget = GuardedPolicy.tenant_guard_budget

    def noted_budget(policy: GuardedPolicy, tenant: str) -> KvTokenTime:
        budget = tenant_guard_budget(policy, tenant)
        parts.setdefault(tenant, []).append(budget / policy.guard_budget)
        return budget

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarded, "ForetoldVtc", random_shadow(data.draw(st.integers(0, 99))))
        patch.setattr(GuardedPolicy, "tenant_guard_budget", noted_budget)
        engine = TreeEngine(replicas, options)
        outcomes = engine.run(applications)
    budget = options.get("guard_iterations", 0) * sum(r.kv_tokens for r in replicas)
    ratio = max(
        [max(given) / engine.least_part(tenant) for tenant, given in parts.items()], default=1
    )

    late = max(engine.inner_lags().values()) - outcomes.in_flight - outcomes.report
    assert late <= budget * max(1, ratio)


@examples(30)
@given(
    st.integers(2, 8),
    st.data(),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), min_size=1, max_size=5),
    st.tuples(st.integers(1, 15), st.integers(1, 8)),
    st.integers(1, 4),
)
def test_splitting_a_tenant_into_children_does_not_advance_its_finish(
    inferences: int,
    data: st.DataObject,
    others: list[tuple[int, int]],
    size: tuple[int, int],
    seats: int,
) -> None:
    """Sub-tenants must gain a tenant nothing; all inferences have one size."""
    cut = data.draw(st.integers(1, inferences - 1))
    came = data.draw(st.integers(0, 40))
    rest = {f"o{n}": _arrival_of(f"O{n}", at, size, k) for n, (at, k) in enumerate(others)}
    kv_tokens = seats * sum(size)
    whole = run_tenants({"w": _arrival_of("T", came, size, inferences), **rest}, kv_tokens, seats)
    pieces = {
        "p": _arrival_of("T/p", came, size, cut),
        "q": _arrival_of("T/q", came, size, inferences - cut),
    }
    parts = run_tenants({**pieces, **rest}, kv_tokens, seats)

    assert max(parts.finished["p"], parts.finished["q"]) >= whole.finished["w"]


def _arrival_of(tenant: str, iteration: int, size: tuple[int, int], inferences: int) -> Arrival:
    return Arrival(iteration, ((size,) * inferences,), tenant=tenant)


@pytest.mark.parametrize(("below", "holds"), [("/", True), ("-", False)])
def test_splitting_a_tenant_delays_others_only_without_a_tenant_tree(
    below: str, holds: bool
) -> None:
    """A tenant runs 40 inferences as one tenant or as eight sub-tenants, beside five others.

    As eight top-level tenants (`T-0`, …) it has eight times the share, and the others wait for it.
    """
    size = (4, 4)
    rest = {f"o{n}": _arrival_of(f"O{n}", 0, size, 20) for n in range(5)}
    whole = run_tenants({"w": _arrival_of("T", 0, size, 40), **rest}, 16, 2)
    pieces = {f"p{n}": _arrival_of(f"T{below}{n}", 0, size, 5) for n in range(8)}
    parts = run_tenants({**pieces, **rest}, 16, 2)

    gained = whole.finished["w"] - max(parts.finished[name] for name in pieces)
    later = max(parts.finished[name] - whole.finished[name] for name in rest)
    assert (gained <= 0) == holds
    assert (later <= 8) == holds  # Two iterations of four tokens occupy the seats.


def test_tenants_own_applications_share_equally_with_its_child_tenants() -> None:
    """Tenant T shares equally among T/a, T/b and its own applications; U has half the machine."""
    size = (4, 4)
    tenants = {"a": "T/a", "b": "T/b", "t": "T", "u": "U"}
    arrivals = {name: _arrival_of(path, 0, size, 12) for name, path in tenants.items()}
    arrivals["many"] = _arrival_of("T/a", 0, size, 12)
    finished = run_tenants(arrivals, 16, 2).finished

    assert finished["u"] < min(finished[name] for name in "abt")
    assert max(finished["b"], finished["t"]) < max(finished["a"], finished["many"])
