"""Server with constant iteration times and several clients, for tests of VTC's theorems.

Each client is represented by an application that stays open. Every running inference gains one
token per iteration, the report of an iteration comes at its end, and predicted lengths are true, so
that under `admission: peak` KV never overflows. Service is counted here, apart from the policy, as
the paper does: p on admission, then 2 for each token (h = p + 2d).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.invariants import check
from justitia_ray.core.policies import policy_path
from tests.core_driver import PATIENT
from tests.exact import exact
from tests.fake_replica import FakeReplica, HeldLease

PROMPT_PRICE = 1
OUTPUT_PRICE = 2


@dataclass(frozen=True)
class Call:
    """Inference of a client, with the iteration of its submission."""

    iteration: int
    client: str
    prompt: int
    output: int


@dataclass(frozen=True)
class Moment:
    """State after an event: service of each client, and the clients with waiting inferences."""

    iteration: int
    service: Mapping[str, int]
    waiting: frozenset[str]


@dataclass
class Run:
    """Measurements of a simulated run, in VTC's unit of service."""

    moments: list[Moment] = field(default_factory=list)
    gap: float = 0
    """Largest difference between the VTC counters of clients that wait at the same time."""
    ahead: dict[str, int] = field(default_factory=dict)
    """Largest uncharged service (D in the VTC paper's proof) of each client."""
    in_flight: int = 0
    """Largest uncharged service (I) of all clients together."""
    overtaken: int = 0
    """Largest service of other clients between the arrival of an idle client's call and its start.
    """

    def backlogged(self, *clients: str) -> list[list[Moment]]:
        """Return the longest intervals in which all given clients are backlogged (Def. 4.1)."""
        intervals: list[list[Moment]] = [[]]
        for moment in self.moments:
            if moment.waiting.issuperset(clients):
                intervals[-1].append(moment)
            elif intervals[-1]:
                intervals.append([])
        return [interval for interval in intervals if interval]


class OneServer:
    def __init__(
        self,
        kv_tokens: int,
        seats: int,
        policy: str = "vtc",
        weights: Mapping[str, int] | None = None,
    ) -> None:
        self.core = SchedulerCore(policy_path(policy), timeouts=PATIENT)
        self._replica = FakeReplica("r0", ReplicaCapacity(kv_tokens, 1, seats))
        self._weights = dict(weights or {})
        self._client_of: dict[str, str] = {}
        """Client of each lease."""
        self._service: dict[str, int] = {}
        self._run = Run()
        self._fresh: dict[str, int] = {}
        """For each call of an idle client: service of other clients at its submission."""

    def run(self, calls: Sequence[Call], iterations: int | None = None) -> Run:
        for client in sorted({call.client for call in calls}):
            weight = exact(self._weights.get(client, 1))
            self._handle(ev.ApplicationArrived(client, "class", client, weight, exact(2), "i0"), 0)
            self._service[client] = self._run.ahead[client] = 0
        due: dict[int, list[int]] = {}
        for number, call in enumerate(calls):
            due.setdefault(call.iteration, []).append(number)
        iteration = 0
        while iteration != iterations and (due or self.core.state.inferences):
            for number in due.pop(iteration, ()):
                self._submit(str(number), calls[number], iteration)
            self._iterate(calls, iteration)
            iteration += 1
        check(self.core)
        return self._run

    def _submit(self, name: str, call: Call, iteration: int) -> None:
        is_busy = call.client in {self._client_of[lease_id] for lease_id in self._replica.held}
        if not is_busy and not self.core.state.applications[call.client].waiting:
            self._fresh[name] = self._service_of_others(call.client)
        sizes = (call.prompt, call.output, call.output)
        event = ev.InferenceSubmitted(
            name, call.client, name, "i0", *sizes, true_output_tokens=call.output
        )
        self._handle(event, iteration)
        self._note(iteration)

    def _iterate(self, calls: Sequence[Call], iteration: int) -> None:
        for lease_id in list(self._replica.held):
            self._replica.make(lease_id, 1)
            self._service[self._client_of[lease_id]] += OUTPUT_PRICE
        pull = self._replica.pull()
        granted = [a for a in self.core.handle(pull, iteration) if isinstance(a, Grant)]
        for grant in granted:
            self._start(grant, calls[int(grant.request_id)])
        self._handle(ev.PullAnswered("r0"), iteration)
        held = sum(held.prompt + held.made for held in self._replica.held.values())
        assert held <= self._replica.capacity.kv_tokens
        self._note(iteration)

    def _start(self, grant: Grant, call: Call) -> None:
        run, client = self._run, call.client
        if grant.request_id in self._fresh:
            overtaken = self._service_of_others(client) - self._fresh.pop(grant.request_id)
            run.overtaken = max(run.overtaken, overtaken)
        prompt = PROMPT_PRICE * call.prompt
        self._service[client] += prompt
        self._client_of[grant.lease_id] = client
        self._replica.held[grant.lease_id] = HeldLease(call.prompt, call.output, running=True)
        to_come = dict.fromkeys(self._service, 0)
        for lease_id, held in self._replica.held.items():
            to_come[self._client_of[lease_id]] += OUTPUT_PRICE * (held.output - held.made)
        run.ahead[client] = max(run.ahead[client], prompt + to_come[client])
        run.in_flight = max(run.in_flight, prompt + sum(to_come.values()))

    def _service_of_others(self, client: str) -> int:
        return sum(self._service.values()) - self._service[client]

    def _note(self, iteration: int) -> None:
        applications = self.core.state.applications
        moment = Moment(
            iteration,
            dict(self._service),
            frozenset(name for name in applications if applications[name].waiting),
        )
        self._run.moments.append(moment)
        policy = self.core.ledger.policy
        counters = [policy.key(name, applications[name])[0] for name in moment.waiting]
        if counters:
            self._run.gap = max(self._run.gap, max(counters) - min(counters))

    def _handle(self, event: ev.Event, iteration: int) -> None:
        assert not [a for a in self.core.handle(event, iteration) if isinstance(a, Grant)]
