"""`drr` grants in the same order as its source (VTC, OSDI 2024, App. C.2).

The source makes its visits one by one; the policy computes them by keys. Whenever a replica pulls,
both are asked for as many grants as there are free seats; memory is never short.
"""

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core import events as ev
from justitia_ray.units import RequestId, Tokens
from tests.oracles.round_robin import RoundRobin
from tests.unit.core.policies.policy_driver import PolicyDriver

_Pull: TypeAlias = tuple[int, list[tuple[Tokens, str]]]
"""Free seats, and the new tokens and the fate of each running inference."""
_Operation: TypeAlias = tuple[str, int, int, _Pull]

_APPLICATIONS = 4


class _Both:
    """Round-robin policy and a direct simulation with equal events; the charge is p + 2d tokens."""

    def __init__(self, quantum: int, unit: str) -> None:
        self.driver = PolicyDriver("drr", {"quantum": quantum, "unit": unit})
        self.literal = RoundRobin(quantum)
        self.unit = unit
        self.places: dict[str, int] = {}
        """Position of each client in the ring, by its first submission."""
        self.waiting: list[RequestId] = []
        """Waiting requests in the order of submission."""
        self.prompts: dict[RequestId, Tokens] = {}
        """Prompt tokens that are not charged yet, by request."""
        self.best: dict[RequestId, Tokens] = {}
        """Largest number of tokens made by each request; repeated tokens cost nothing."""
        for number in range(_APPLICATIONS):
            self.driver.open_and_submit(f"a{number}", tenant=f"t{number % 2}")

    def apply(self, operation: _Operation) -> None:
        """Apply an operation to the policy and the simulation, and compare the grants."""
        kind, number, prompt, pull = operation
        if kind == "submit":
            self._submit(number, prompt)
        elif kind == "cancel" and self.waiting:
            name = self.waiting.pop(number % len(self.waiting))
            self.driver.handle(ev.InferenceCancelled(name))
        elif kind == "restart":
            running = len(self.driver.made)
            granted = self.driver.restart(seats=max(1, running))
            assert granted == self._expected_grants(0 if running else 1)
        elif kind == "pull":
            self._pull(*pull)

    def _submit(self, number: int, prompt: Tokens) -> None:
        name = f"a{number}/{len(self.prompts)}"
        self.places.setdefault(self._client_of(name), number + 1)
        self.literal.add_client(self.places[self._client_of(name)])
        self.prompts[name] = prompt
        self.waiting.append(name)
        self.driver.submit(name, f"a{number}", prompt=prompt)

    def _pull(self, seats: int, fates: list[tuple[Tokens, str]]) -> None:
        make: dict[RequestId, Tokens] = {}
        leaving: dict[str, list[RequestId]] = {"run": [], "finish": [], "requeue": []}
        for name, (tokens, fate) in zip(self.driver.made, fates, strict=False):
            make[name] = tokens
            leaving[fate].append(name)
            best = self.best.get(name, 0)
            self.best[name] = max(best, self.driver.made[name] + tokens)
            self.literal.decode(self.places[self._client_of(name)], 2 * (self.best[name] - best))
        self.waiting += leaving["requeue"]
        self.waiting.sort(key=lambda name: int(name.split("/")[1]))
        stay = len(self.driver.made) - len(leaving["finish"]) - len(leaving["requeue"])
        seats = max(seats, 0 if stay else 1)  # An empty replica always has room for one.
        granted = self.driver.step(stay + seats, make, leaving["finish"], leaving["requeue"])
        assert granted == self._expected_grants(seats)

    def _expected_grants(self, seats: int) -> list[RequestId]:
        granted: list[RequestId] = []
        while len(granted) < seats and self.waiting:
            heads: dict[int, RequestId] = {}
            for name in self.waiting:
                heads.setdefault(self.places[self._client_of(name)], name)
            name = heads[
                self.literal.schedule({place: self.prompts[n] for place, n in heads.items()})
            ]
            self.prompts[name] = 0
            self.waiting.remove(name)
            granted.append(name)
        return granted

    def _client_of(self, name: RequestId) -> str:
        application = name.split("/")[0]
        return application if self.unit == "application" else f"t{int(application[1:]) % 2}"


def _operations(kinds: list[str], fates: list[str]) -> st.SearchStrategy[list[_Operation]]:
    fate = st.tuples(st.integers(0, 30), st.sampled_from(fates))
    pull = st.tuples(st.integers(0, 3), st.lists(fate, max_size=4))
    operation = st.tuples(
        st.sampled_from(kinds), st.integers(0, _APPLICATIONS - 1), st.integers(1, 60), pull
    )
    return st.lists(operation, min_size=12, max_size=60)


@given(
    st.sampled_from([1, 7, 30, 100]),
    st.sampled_from(["application", "tenant"]),
    _operations(
        ["submit", "submit", "pull", "pull", "cancel"], ["run", "run", "finish", "requeue"]
    ),
)
def test_grants_have_the_order_of_a_simulated_round_robin(
    quantum: int, unit: str, operations: list[_Operation]
) -> None:
    """The policy computes all rounds at once, the simulation visits each client."""
    both = _Both(quantum, unit)
    for operation in operations:
        both.apply(operation)


@pytest.mark.slow
@given(
    st.sampled_from([7, 30]),
    _operations(["submit", "submit", "pull", "pull", "restart"], ["run", "run", "finish"]),
)
def test_restart_of_round_robin_changes_no_grant(
    quantum: int, operations: list[_Operation]
) -> None:
    """The stored state has each client's position and balance, so no prompt is charged again."""
    both = _Both(quantum, "application")
    for operation in operations:
        both.apply(operation)
