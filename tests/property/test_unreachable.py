"""Inferences of an ingress that cannot reach all replicas: all run, in order, without retries.

Connections are cut at random. A grant over a cut connection is nacked at once; every other lease
ends at the next pull of its replica.
"""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from tests.core_driver import PATIENT, CoreDriver
from tests.property.profiles import examples

_INGRESSES = ("i0", "i1")
_LARGE = 200


@dataclass
class _Pool:
    """Replicas, ingresses and the connections between them."""

    sizes: list[int]
    cut: set[tuple[str, str]]
    """(ingress, replica) pairs whose connection is cut."""
    driver: CoreDriver = field(
        default_factory=lambda: CoreDriver(SchedulerCore("fcfs", timeouts=PATIENT))
    )
    running: dict[str, list[str]] = field(default_factory=dict)
    """Running leases by replica."""
    tried: list[tuple[str, str]] = field(default_factory=list)
    """(request, replica) of each grant that was refused."""
    done: int = 0

    def submit(self, number: int, ingress_id: str, prompt: int) -> None:
        name = f"q{number}"
        self.driver.open(name, ingress_id=ingress_id)
        self._run_grants(self.driver.submit(name, name, prompt=prompt, ingress_id=ingress_id))

    def pull_all(self) -> None:
        """Advance by a second, end all running leases, and let every replica pull."""
        self.driver.now += 1.0
        for number, kv in enumerate(self.sizes):
            replica_id = f"r{number}"
            ended = dict.fromkeys(self.running.pop(replica_id, []), 10)
            self.done += len(ended)
            self._run_grants(self.driver.pull(replica_id, finished=ended, kv=kv))

    def _run_grants(self, actions: list[Action]) -> None:
        """Run granted leases; refuse those whose ingress cannot reach the replica."""
        grants = [action for action in actions if isinstance(action, Grant)]
        for grant in grants:
            self._check_order(grant)
        for grant in grants:
            if (grant.ingress_id, grant.replica_id) in self.cut:
                self.tried.append((grant.request_id, grant.replica_id))
                nacked = ev.LeaseNacked(grant.lease_id, ev.NackReason.CONNECTION)
                self._run_grants(self.driver.handle(nacked))
            else:
                self.running.setdefault(grant.replica_id, []).append(grant.lease_id)

    def _check_order(self, grant: Grant) -> None:
        """Check that an inference is only overtaken where it cannot run."""
        core = self.driver.core
        replica = core.state.replicas[grant.replica_id]
        granted = core.state.inferences[grant.request_id]
        for other in core.state.inferences.values():
            if other.lease_id is None and other.order < granted.order:
                cannot_hold = other.kv_need_tokens() > replica.capacity.kv_tokens
                is_cut = (other.ingress_id, grant.replica_id) in self.cut
                assert cannot_hold or is_cut, "was passed"


@st.composite
def _random_pool(draw: st.DrawFn) -> _Pool:
    """Draw replicas and ingresses; each ingress can reach at least one of the largest replicas."""
    sizes = [*draw(st.lists(st.sampled_from([60, 120, _LARGE]), max_size=3)), _LARGE, _LARGE]
    names = [f"r{number}" for number in range(len(sizes))]
    pairs = [(ingress_id, name) for ingress_id in _INGRESSES for name in names]
    whole = {(ingress_id, draw(st.sampled_from(names[-2:]))) for ingress_id in _INGRESSES}
    return _Pool(sizes, draw(st.sets(st.sampled_from(pairs))) - whole)


_CALLS = st.lists(
    st.tuples(st.sampled_from(_INGRESSES), st.integers(1, _LARGE - 10)), min_size=1, max_size=12
)


@examples(100)
@given(_random_pool(), _CALLS)
def test_inferences_run_in_order_and_avoid_cut_connections(
    pool: _Pool, calls: list[tuple[str, int]]
) -> None:
    """A cut connection is not tried again for an inference that fits another replica."""
    pool.pull_all()
    for number, (ingress_id, prompt) in enumerate(calls):
        pool.submit(number, ingress_id, prompt)
    for _ in calls:
        pool.pull_all()
    pool.pull_all()

    assert (len(calls), {}) == (pool.done, pool.driver.core.state.inferences)
    assert len(set(pool.tried)) == len(pool.tried)
