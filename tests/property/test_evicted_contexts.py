"""Evictions that the core does not foresee: what tags, tenants and GPS pay for lost contexts.

Sessions continue their contexts on replicas with little memory. At each start the engine may have
evicted a part of the context on which the table of the core counts, or keep a context of which the
table knows nothing. The core itself decides how much of the lost prefill it forgives. All amounts
are whole numbers and fractions, and the sums are formed here, apart from the core.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.entities import Inference
from justitia_ray.core.own_contexts import OwnContexts
from justitia_ray.core.tenants import TIERS, TenantNode, TenantTree
from justitia_ray.cost import PrefillCost
from tests.exact import exact
from tests.property.engine import Arrival, Engine, Outcomes, Server, Sizes
from tests.property.profiles import examples

_FATES: Mapping[str, Callable[[int, int], int]] = {
    "kept": lambda believed, prompt: believed,
    "half": lambda believed, prompt: believed // 2,
    "gone": lambda believed, prompt: 0,
    "more": lambda believed, prompt: (believed + prompt) // 2,
}
"""Functions that draw how many tokens of a prompt are still cached when it starts."""


_TREE = {"one": Fraction(1), "two": Fraction(3), "two/x": Fraction(1), "two/y": Fraction(1, 2)}
_PRICE = PrefillCost(3)


@dataclass(frozen=True)
class _World:
    """Sessions of a property test, replicas, and what happens to cached contexts."""

    sessions: Sequence[Arrival]
    replicas: Sequence[Server]
    fates: Sequence[str]
    """What happened to the cached context of each started inference; repeated as needed."""
    price: PrefillCost = _PRICE
    options: Mapping[str, object] = field(default_factory=dict)


class _EvictingEngine(Engine):
    """Engine with evictions that the core learns of only from reported cached tokens."""

    def __init__(self, world: _World) -> None:
        super().__init__(world.replicas, options=world.options, prefill_cost=world.price)
        self.started: dict[str, tuple[Inference, int]] = {}
        """Tokens that the engine computes for each started inference."""
        self._world = world
        self._forgiven: float = 0
        tree = {path: TenantNode(weight=exact(weight)) for path, weight in _TREE.items()}
        self.core.handle(ev.TenantsChanged(TenantTree(tree), TIERS), 0.0)

    def found_tokens(self, grant: Grant, prompt: int) -> int:
        """Return the tokens of the prompt that are still cached."""
        fates, state = self._world.fates, self.core.state
        believed = prompt - state.leases[grant.lease_id].uncomputed_tokens
        fate = fates[len(self.started) % len(fates)]
        found = min(prompt - 1, int(_FATES[fate](int(believed), prompt)))
        self.started[grant.request_id] = state.inferences[grant.request_id], prompt - found
        return found

    def note_handled(self) -> None:
        """Compare GPS's remaining work with the charges, without prefill that is not charged."""
        share, forgiven = self.core.ledger.fair_share, self.core.state.counters.forgiven
        if not share.sets_apart:
            self._served -= int(forgiven - self._forgiven)
        self._forgiven = forgiven
        level = share.clock.virtual_time
        owed = sum(
            session.weight * max(0, session.finish - level)
            for session in share.clock.sessions().values()
        )
        live = [account for account in share.accounts.values() if not account.withdrawn]
        assert owed == sum(account.charged - account.attained for account in live), "GPS owes"

    def computed_and_paid(self) -> dict[str, tuple[int, float, float]]:
        """Return each application's cost of computed tokens, and its paid and uncharged parts."""
        sums: dict[str, tuple[int, float, float]] = {}
        for inference, tokens in self.started.values():
            name, prefill = inference.application_id, inference.prefill
            assert prefill is not None
            cost = self._world.price.of(tokens, int(inference.prompt_tokens))
            before = sums.get(name, (0, 0, 0))
            new = (cost, prefill.paid, prefill.forgiven)
            sums[name] = (before[0] + new[0], before[1] + new[1], before[2] + new[2])
        return sums


def _run(world: _World) -> tuple[_EvictingEngine, Outcomes]:
    """Run a drawn load; fail if the accounts are wrong or a start exceeds its bound.

    The lags are measured by the service that tags pay.
    """
    engine = _EvictingEngine(world)
    outcomes = engine.run(world.sessions)
    sums, counters = engine.computed_and_paid(), engine.core.state.counters
    for name, (computed, paid, forgiven) in sums.items():
        assert paid + forgiven == computed, "the tenant pays for what was computed"
        if not world.price.per_pair:
            assert forgiven <= paid, f"the tag of {name} pays for at least half"
    assert counters.prefill == sum(computed for computed, _, _ in sums.values())
    assert counters.forgiven == sum(forgiven for _, _, forgiven in sums.values())
    if world.options.get("fairness") != "tenant":
        for name, ended in outcomes.ended.items():
            assert ended.lag is not None
            assert ended.lag.bound_kv_token_time is not None
            assert ended.lag.kv_token_time <= ended.lag.bound_kv_token_time, f"bound of {name}"
            assert outcomes.lag[name] <= ended.lag.bound_kv_token_time + outcomes.report, name
    return engine, outcomes


_TURNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=4, max_size=6)
"""Tokens that each turn adds to the context, and those of its answer."""


def _stages(first: int, turns: Sequence[tuple[int, int]], *, asides: bool) -> tuple[Sizes, ...]:
    """Return turns that continue one context, some beside a short call."""
    stages: list[Sizes] = []
    for number, (more, output) in enumerate(turns):
        first += more
        stages.append(((first, output), (2, 1)) if asides and number % 2 else ((first, output),))
        first += output
    return tuple(stages)


_SESSIONS = st.builds(
    Arrival,
    iteration=st.integers(0, 20),
    stages=st.builds(_stages, st.integers(4, 14), _TURNS, asides=st.booleans()),
    weight=st.sampled_from([Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2)]),
    gap=st.integers(0, 8),
    predicted=st.sampled_from([Fraction(1), Fraction(1), Fraction(1, 3), Fraction(3)]),
    tenant=st.sampled_from(["one", "two/x", "two/y"]),
)
_REPLICAS = st.builds(
    Server,
    kv_tokens=st.integers(60, 90),
    seats=st.integers(1, 6),
    report_every=st.integers(1, 3),
)
_WORLDS = st.builds(
    _World,
    sessions=st.lists(_SESSIONS, min_size=3, max_size=6),
    replicas=st.lists(_REPLICAS, min_size=1, max_size=2),
    fates=st.lists(st.sampled_from([*_FATES, "kept", "kept"]), min_size=1, max_size=12),
    price=st.sampled_from([_PRICE, PrefillCost(40), PrefillCost(3, 2)]),
    options=st.sampled_from([{}, {"fairness": "tenant"}]),
)


@examples(60)
@given(_WORLDS)
def test_evicted_contexts_keep_charges_exact_and_lags_within_the_bound(world: _World) -> None:
    """Recomputing a context that others evicted is not charged to the application."""
    _run(world)


@contextmanager
def _forgiven_without_limit() -> Iterator[None]:
    limit = property(lambda _: 10**9, lambda *_: None)
    with patch.object(OwnContexts, "forgivable", limit):
        yield


@contextmanager
def _forgiven_moves_v_only() -> Iterator[None]:
    def serve(share: ServedShare, name: str, amount: float) -> float:
        share.clock.serve(amount)
        return amount

    with patch.object(ServedShare, "miss", serve):
        yield


@contextmanager
def _forgiven_does_not_move_v() -> Iterator[None]:
    """Mutant of the accounts that charges a tenant for free prefill but serves it to none."""
    miss = TenantShare.miss

    def charge(share: TenantShare, name: str, amount: float) -> float:
        with patch.object(type(share.clock), "serve", lambda *_: None):
            return miss(share, name, amount)

    with patch.object(TenantShare, "miss", charge):
        yield


def _session(begins: int, first: int, turns: Sequence[tuple[int, int]]) -> Arrival:
    return Arrival(begins, _stages(first, turns, asides=False), tenant="one")


_THREE = [
    _session(0, 8, ((0, 4),) * 6),
    _session(6, 11, ((0, 3),) * 6),
    _session(2, 15, ((2, 2),) * 6),
]
"""Sessions of which one loses its context to the others again and again."""


@pytest.mark.parametrize(
    ("broken", "options", "message"),
    [
        (_forgiven_without_limit, {}, "at least half"),
        (_forgiven_moves_v_only, {}, "GPS owes"),
        (_forgiven_does_not_move_v, {"fairness": "tenant"}, "GPS owes"),
    ],
)
def test_each_mutant_of_uncharged_prefill_is_detected(
    broken: Callable[[], AbstractContextManager[None]], options: dict[str, object], message: str
) -> None:
    world = _World(_THREE, [Server(60, seats=1)], ["kept"], options=options)
    engine, _ = _run(world)
    assert engine.core.state.counters.forgiven > 0

    with broken(), pytest.raises(AssertionError, match=message):
        _run(world)
