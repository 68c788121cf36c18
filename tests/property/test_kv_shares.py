"""Property tests of KV shares: reserved memory stays reserved, and nothing else is refused."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.kv_shares import KvShares
from justitia_ray.core.tenants import KvShare, TenantNode, TenantTree, Tier
from tests.property.profiles import examples

_TOTAL = 120
_TENANTS = ("a", "a/x", "b", "c")
_TIERS = ("flex", "default", "priority")
_LENDS = st.sampled_from([0.0, 0.5, 1.0])


@st.composite
def _guaranteed_shares(draw: st.DrawFn, parts: int) -> dict[str, KvShare]:
    """Return the guaranteed memory shares of tiers and tenants, at most 1 in sum."""
    left, found = parts, {}
    for name in (*_TIERS, "a", "b"):
        part = draw(st.integers(0, left))
        left -= part
        found[name] = KvShare(guaranteed=part / parts, lends=draw(_LENDS))
    return found


@dataclass(frozen=True)
class _Request:
    tenant: str
    tier: str
    tokens: int
    ends: int | None
    """Index of a running request that ends before this one; None if none ends."""


_WISHES = st.lists(
    st.builds(
        _Request,
        st.sampled_from(_TENANTS),
        st.sampled_from(_TIERS),
        st.integers(1, 40),
        st.none() | st.integers(0, 50),
    ),
    min_size=1,
    max_size=40,
)


class _Memory:
    """KV memory of running requests, computed independently of the shares under test."""

    def __init__(self, shares: dict[str, KvShare]) -> None:
        self.of = shares
        tree = TenantTree({name: TenantNode(kv_share=shares[name]) for name in "ab"})
        self.shares = KvShares(tree, {name: Tier(1.0, shares[name]) for name in _TIERS})
        self.running: dict[str, _Request] = {}
        self._started = 0

    def held(self, name: str | None = None) -> int:
        """Return the tokens in use by a tier or a top-level tenant; None stands for all."""
        return sum(
            one.tokens
            for one in self.running.values()
            if name in (None, one.tier, one.tenant.partition("/")[0])
        )

    def reserved_at_most(self, names: set[str]) -> float:
        """Return the most tokens that are reserved for the given tiers and tenants."""
        return sum(self.of[n].guaranteed * (1 - self.of[n].lends) * _TOTAL for n in names)

    def reserved_for(self, names: set[str]) -> float:
        """Return the tokens that are now reserved for the given tiers and tenants."""
        return sum(
            max(
                0.0, self.of[name].guaranteed * (1 - self.of[name].lends) * _TOTAL - self.held(name)
            )
            for name in names
        )

    def has_reservation(self, name: str) -> bool:
        """Return whether a tier or a top-level tenant has a reservation that it does not lend."""
        share = self.of.get(name, KvShare())
        return share.guaranteed * (1 - share.lends) > 0

    def is_within(self, name: str, tokens: int) -> bool:
        """Return whether more tokens would stay within a tier's or a tenant's reservation."""
        if name not in self.of:
            return False
        share = self.of[name]
        return self.held(name) + tokens <= share.guaranteed * (1 - share.lends) * _TOTAL

    def admits(self, wish: _Request) -> bool:
        node = self.shares.refuses(wish.tenant, wish.tokens, _TOTAL, wish.tier)
        return node is None and not self.shares.tier_refuses(wish.tier, wish.tokens, _TOTAL)

    def start(self, wish: _Request) -> None:
        self._started += 1
        name = f"l{self._started}"
        self.running[name] = wish
        self.shares.hold(name, wish.tenant, wish.tokens, wish.tier)

    def end(self, number: int) -> None:
        name = sorted(self.running)[number % len(self.running)]
        del self.running[name]
        self.shares.release(name)


@examples(100)
@given(_guaranteed_shares(24), _WISHES)
def test_only_calls_that_would_take_memory_reserved_for_a_tier_are_refused(
    shares: dict[str, KvShare], wishes: list[_Request]
) -> None:
    """Reservations of tiers and tenants add up; a request too large for the rest may run alone."""
    memory = _Memory(shares)
    for wish in wishes:
        if wish.ends is not None and memory.running:
            memory.end(wish.ends)
        top = _top_tenant(wish)
        tiers = set(_TIERS) - {wish.tier}
        tenants = {"a", "b"} - {top}
        for_tiers = 0.0 if memory.is_within(wish.tier, wish.tokens) else memory.reserved_for(tiers)
        for_tenants = 0.0 if memory.is_within(top, wish.tokens) else memory.reserved_for(tenants)
        left = _TOTAL - memory.held() - wish.tokens
        running = memory.running.values()
        alone = not any(
            one.tier == wish.tier or not memory.has_reservation(one.tier) for one in running
        )
        alone = alone and wish.tokens > _TOTAL - memory.reserved_at_most(tiers)
        first = not any(
            _top_tenant(one) == top or not memory.has_reservation(_top_tenant(one))
            for one in running
        )
        first = first and wish.tokens > _TOTAL - for_tiers - memory.reserved_at_most(tenants)
        if not memory.admits(wish):
            assert left < for_tiers + for_tenants
            continue
        assert left >= for_tiers or not for_tiers or alone
        assert left >= for_tiers + for_tenants or not for_tenants or alone or first
        if left >= 0:
            memory.start(wish)


def _top_tenant(wish: _Request) -> str:
    return wish.tenant.partition("/")[0]


@examples(100)
@given(_guaranteed_shares(24), _WISHES)
def test_reserved_memory_of_a_tier_is_available_on_arrival(
    shares: dict[str, KvShare], wishes: list[_Request]
) -> None:
    """Without shares of tenants, a tier gets the memory that it does not lend at once."""
    memory = _Memory({**shares, "a": KvShare(), "b": KvShare()})
    kept = memory.reserved_for(set(_TIERS))
    for wish in wishes:
        if wish.ends is not None and memory.running:
            memory.end(wish.ends)
        fits = memory.held() + wish.tokens <= _TOTAL
        if wish.tokens <= _TOTAL - kept and memory.admits(wish) and fits:
            memory.start(wish)
        for tier in _TIERS:
            tokens = int(memory.reserved_for({tier}) + 1e-9)
            if tokens:
                assert memory.admits(_Request("c", tier, tokens, None))
                assert memory.held() + tokens <= _TOTAL + 1e-9
