"""The rules of the core's state, one function each; for tests and debugging, O(everything).

`check` is called between events. Each rule raises `InvariantViolation`, which is a bug of the core
and never an answer to a caller.
"""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from justitia_ray.core.admission import kv_need_tokens
from justitia_ray.core.entities import Application, Inference, InferenceState
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.tally import Tally
from justitia_ray.core.tenant import Tenant
from justitia_ray.core.tenant_share import TenantShare
from justitia_ray.core.virtual_clock import VirtualClock
from justitia_ray.units import ClientId, IngressId

RELATIVE_TOLERANCE = 1e-9
"""Of sums in floats, relative to what went into them; ints and fractions are compared exactly."""


class InvariantViolation(AssertionError):
    """The state breaks a rule.

    Attributes:
        rule: The name of the function that states the rule.
        ids: The entities concerned.
        detail: What is wrong.
    """

    def __init__(self, rule: str, ids: tuple[str, ...], detail: str) -> None:
        super().__init__(rule, ids, detail)
        self.rule = rule
        self.ids = ids
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.rule}: {', '.join(self.ids)}: {self.detail}"


def inferences_are_in_one_place(core: SchedulerCore) -> None:
    """Each inference waits, is in flight, claimed or kept out: one of them, as its state says."""
    rule = "inferences_are_in_one_place"
    state = core.state
    seen: set[str] = set()
    for application in state.applications.values():
        waiting = [inference.request_id for inference in application.waiting]
        places = {
            "waiting": (waiting, (InferenceState.WAITING,)),
            "in_flight": (application.in_flight, (InferenceState.LEASED, InferenceState.RUNNING)),
            "claimed": (application.claimed, (InferenceState.WAITING,)),
            "kept out": (application.kept_out, (InferenceState.WAITING,)),
        }
        for place, (request_ids, allowed) in places.items():
            for request_id in request_ids:
                ids = (application.application_id, request_id)
                inference = state.inferences.get(request_id)
                _require(inference is not None, rule, ids, f"is {place} and unknown")
                assert inference is not None
                _require(request_id not in seen, rule, ids, f"is {place} and elsewhere")
                _require(inference.state in allowed, rule, ids, f"is {place} and {inference.state}")
                has_lease = inference.lease_id is not None
                in_flight = place == "in_flight"
                _require(has_lease == in_flight, rule, ids, f"is {place}, {inference.lease_id=}")
                owner = inference.application_id
                _require(owner == application.application_id, rule, ids, f"belongs to {owner}")
                seen.add(request_id)
    lost = tuple(state.inferences.keys() - seen)
    _require(not lost, rule, lost, "in no place")


def silent_ingresses_are_kept_out(core: SchedulerCore) -> None:
    """What would wait is kept out of the order if its ingress is silent, and only then."""
    rule = "silent_ingresses_are_kept_out"
    state, ingresses = core.state, core.ingresses
    for application in state.applications.values():
        places = (("waits", application.waiting), ("is kept out", application.kept_out.values()))
        for place, inferences in places:
            for inference in inferences:
                silent = ingresses.is_silent(inference.ingress_id)
                ids = (inference.request_id, inference.ingress_id)
                _require(silent == (place == "is kept out"), rule, ids, f"{place}, {silent=}")
    there_are = sum(len(application.kept_out) for application in state.applications.values())
    detail = f"counted {ingresses.kept_out} as kept out, there are {there_are}"
    _require(ingresses.kept_out == there_are, rule, (), detail)
    of_ingress: dict[IngressId, list[Inference]] = {}
    for inference in state.inferences.values():
        of_ingress.setdefault(inference.ingress_id, []).append(inference)
    for ingress_id in state.ingresses.keys() | of_ingress.keys():
        there = of_ingress.get(ingress_id, [])
        _require(ingresses.of(ingress_id) == there, rule, (ingress_id,), "its list is another")
        is_known = ingress_id in state.ingresses
        _require(is_known, rule, (ingress_id,), "was lost, and its inferences have not ended")


def waiting_inferences_are_in_order(core: SchedulerCore) -> None:
    """Inside an application the policy's order holds, for re-queued inferences too."""
    key = core.order.policy.inference_key
    for application in core.state.applications.values():
        orders = [key(inference) for inference in application.waiting]
        _require(
            orders == sorted(orders),
            "waiting_inferences_are_in_order",
            (application.application_id,),
            f"orders are {orders}",
        )


def leases_agree(core: SchedulerCore) -> None:
    """A lease, its inference and its replica name each other."""
    rule = "leases_agree"
    state = core.state
    for lease_id, lease in state.leases.items():
        inference = state.inferences.get(lease.request_id)
        replica = state.replicas.get(lease.replica_id)
        held = inference.lease_id if inference is not None else None
        _require(lease.lease_id == lease_id, rule, (lease_id,), f"calls itself {lease.lease_id}")
        _require(held == lease_id, rule, (lease_id, lease.request_id), f"inference holds {held}")
        on_replica = replica is not None and lease_id in replica.leases
        _require(on_replica, rule, (lease_id, lease.replica_id), "not on its replica")
    for replica in state.replicas.values():
        unknown = tuple(
            lease_id
            for lease_id in replica.leases
            if lease_id not in state.leases
            or state.leases[lease_id].replica_id != replica.replica_id
        )
        _require(not unknown, rule, (replica.replica_id, *unknown), "not leased to this replica")
    for inference in state.inferences.values():
        known = inference.lease_id is None or inference.lease_id in state.leases
        _require(known, rule, (inference.request_id,), f"holds unknown lease {inference.lease_id}")


def queue_holds_what_waits(core: SchedulerCore) -> None:
    """The queue has exactly the applications with waiting inferences; its first has least key."""
    rule = "queue_holds_what_waits"
    queue = core.order.queue
    waiting = [a for a in core.state.applications.values() if a.waiting]
    names = tuple(application.application_id for application in waiting)
    outside = tuple(name for name in names if name not in queue)
    _require(not outside, rule, outside, "waits outside the queue")
    _require(len(queue) == len(waiting), rule, names, f"wait; the queue has {len(queue)}")
    expected = expected_first(core)
    first = queue.first()
    _require(first is expected, rule, _ids(expected, first), "not the least key is first")


def expected_first(core: SchedulerCore) -> Application | None:
    """Return the application of the queue that comes first, found by looking at all. O(N)."""
    queue, policy = core.order.queue, core.order.policy
    clients: dict[str, list[Application]] = {}
    for application in core.state.applications.values():
        if application.application_id in queue:
            clients.setdefault(policy.client(application), []).append(application)
    heads = {
        client: min(applications, key=policy.application_key)
        for client, applications in clients.items()
        if policy.eligible_at(client) <= core.state.now
    }
    least = min(heads, key=lambda client: policy.key(client, heads[client]), default=None)
    return None if least is None else heads[least]


def accounts_are_of_live_applications(core: SchedulerCore) -> None:
    """Live applications have an account and a session, with their weight; others have none."""
    rule = "accounts_are_of_live_applications"
    fair_share = core.order.fair_share
    odd = tuple(fair_share.accounts.keys() ^ core.state.applications.keys())
    _require(not odd, rule, odd, "either live or with an account, not both")
    sessions = fair_share.sessions()
    owed = {n for tenant in _tenants(core).values() for n in tenant.members if tenant.owes(n)}
    for application_id, account in fair_share.accounts.items():
        session = sessions.get(application_id)
        ids = (application_id,)
        _require(session is not None, rule, ids, "has no session")
        assert session is not None
        _require(not session.released, rule, ids, "is live and its session released")
        weights = {core.state.applications[application_id].weight, account.weight, session.weight}
        _require(len(weights) == 1, rule, ids, f"weights {weights}")
    for application_id, session in sessions.items():
        live = application_id in fair_share.accounts
        kept = live or (session.released and session.active) or application_id in owed
        _require(kept, rule, (application_id,), "session of nobody")


def gps_owes_what_was_charged(core: SchedulerCore) -> None:
    """Served clock: Σ over active of w·(F − V) = Σ over not withdrawn of (chg − att)."""
    if core.order.options.clock != "served":
        return
    fair_share = core.order.fair_share
    clock = fair_share.clock
    charged = sum(
        a.charged - a.attained for a in fair_share.accounts.values() if not a.withdrawn
    )  # fmt: skip
    # What was added and subtracted on the way: V for each unit of weight, and every charge.
    weights = sum(session.weight for session in clock.sessions().values())
    scale = 1 + clock.virtual_time * (1 + weights)
    scale += sum(account.charged for account in fair_share.accounts.values())
    owed = clock.backlog()
    _require(
        _equal(owed, charged, scale),
        "gps_owes_what_was_charged",
        tuple(fair_share.accounts),
        f"GPS owes {owed}, charged and not attained is {charged}",
    )


def idle_applications_are_withdrawn(core: SchedulerCore) -> None:
    """Served clock: since the last report, exactly the idle applications are out of GPS.

    Those that fell idle after it, and those put back from a snapshot whose inferences may yet be
    submitted again, await their withdrawal.
    """
    if core.order.options.clock != "served":
        return
    rule = "idle_applications_are_withdrawn"
    for application_id, account in core.order.fair_share.accounts.items():
        application = core.state.applications[application_id]
        ids = (application_id,)
        if account.withdrawn:
            _require(application.is_idle, rule, ids, "busy and withdrawn")
        elif application.is_idle:
            awaits = core.applications.awaits_withdrawal(application_id)
            _require(awaits, rule, ids, "idle and not withdrawn")


def active_weight_is_the_sum(core: SchedulerCore) -> None:
    """The clock's running sum of active weights holds, and a session is active while F > V."""
    rule = "active_weight_is_the_sum"
    for clock in _clocks(core):
        total: float = 0
        for session_id, session in clock.sessions().items():
            ahead = session.finish - clock.virtual_time
            _require(
                session.active == (ahead > 0),
                rule,
                (session_id,),
                f"active={session.active} with F − V = {ahead}",
            )
            total += session.weight if session.active else 0
        summed = clock.active_weight
        _require(_equal(summed, total, 1 + total), rule, (), f"kept {summed}, summed {total}")


def tenants_are_owed_the_same_at_both_levels(core: SchedulerCore) -> None:
    """Since the last look at a tenant, root, GPS inside and reference server owe it the same."""
    rule = "tenants_are_owed_the_same_at_both_levels"
    fair_share = core.order.fair_share
    for name, tenant in _tenants(core).items():
        root = fair_share.clock.session(name)
        by_root = tenant.server.weight * max(0, root.finish - tenant.server.since)
        weights = sum(session.weight for session in tenant.gps.sessions().values())
        scale = 1 + root.finish * root.weight + tenant.gps.virtual_time * (1 + weights)
        scale += fair_share.clock.virtual_time
        scale += sum(fair_share.accounts[name].charged for name in tenant.live)
        for where, owed in (("GPS", tenant.gps.backlog()), ("server", tenant.server.total)):
            _require(_equal(by_root, owed, scale), rule, (name,), f"{by_root}; {where} {owed}")
        agreed = root.released or root.weight == tenant.server.weight
        _require(agreed, rule, (name,), f"{root.weight=}, inside {tenant.server.weight}")


def _tenants(core: SchedulerCore) -> dict[ClientId, Tenant]:
    fair_share = core.order.fair_share
    return fair_share.tenants() if isinstance(fair_share, TenantShare) else {}


def _clocks(core: SchedulerCore) -> list[VirtualClock]:
    return [core.order.fair_share.clock, *(tenant.gps for tenant in _tenants(core).values())]


def replicas_have_seats_for_their_leases(core: SchedulerCore) -> None:
    """No replica is granted more sequences than it has seats, unless one lease has it alone.

    Leases of an earlier scheduler count when they are granted upon, not when they are taken over.
    """
    for replica in core.state.replicas.values():
        granted = {
            lease_id: footprint.choices
            for lease_id, footprint in replica.leases.items()
            if lease_id.startswith(core.state.lease_prefix)
        }
        seats = replica.capacity.max_num_seqs
        _require(
            len(granted) <= 1 or sum(granted.values()) <= seats,
            "replicas_have_seats_for_their_leases",
            (replica.replica_id, *granted),
            f"{sum(granted.values())} sequences for {seats} seats",
        )


def service_is_what_was_metered(core: SchedulerCore) -> None:
    """What is booked for unfinished inferences is what they attained and what was booked before."""
    rule = "service_is_what_was_metered"
    attained: dict[str, float] = dict.fromkeys(core.state.applications, 0)
    for inference in core.state.inferences.values():
        attained[inference.application_id] += inference.attained
    for application_id, application in core.state.applications.items():
        metered = attained[application_id] + application.booked_before
        booked = application.unfinished_kv_token_time
        total = core.order.fair_share.accounts[application_id].attained
        ids = (application_id,)
        _require(booked == metered, rule, ids, f"booked {booked}, metered {metered}")
        if core.order.options.accounts_cost == "kv_token_time":
            _require(total >= booked, rule, ids, f"attained {total}, of which unfinished {booked}")


def census_counts_what_is_there(core: SchedulerCore) -> None:
    """Limits are held against counts that are kept as things come and go."""
    rule = "census_counts_what_is_there"
    state = core.state
    applications = [application.tenant for application in state.applications.values()]
    owners = [state.applications[i.application_id].tenant for i in state.inferences.values()]
    for census, tenants in (
        (state.open_applications, applications),
        (state.known_inferences, owners),
    ):
        for tenant, count in Counter(tenants).items():
            counted = census.of(tenant)
            _require(counted == count, rule, (tenant,), f"counted {counted}, has {count}")
        detail = f"counted {census.total} in all, there are {len(tenants)}"
        _require(census.total == len(tenants), rule, (), detail)


def tally_is_of_what_waits(core: SchedulerCore) -> None:
    """The sums over the queue are those of a walk over it."""
    rule = "tally_is_of_what_waits"
    walked = Tally()
    for application in core.state.applications.values():
        for inference in application.waiting.values():
            walked.waits(inference, kv_need_tokens(inference, 1))
    counted = core.state.tally
    for name in ("waiting_kv_tokens", "waiting_kv_token_time"):
        told, true = getattr(counted, name), getattr(walked, name)
        _require(_equal(told, true, max(1, true)), rule, (), f"{name} is {told}, not {true}")


RULES: tuple[Callable[[SchedulerCore], None], ...] = (
    inferences_are_in_one_place,
    silent_ingresses_are_kept_out,
    waiting_inferences_are_in_order,
    leases_agree,
    queue_holds_what_waits,
    accounts_are_of_live_applications,
    gps_owes_what_was_charged,
    idle_applications_are_withdrawn,
    active_weight_is_the_sum,
    tenants_are_owed_the_same_at_both_levels,
    replicas_have_seats_for_their_leases,
    service_is_what_was_metered,
    census_counts_what_is_there,
    tally_is_of_what_waits,
)


def check(core: SchedulerCore) -> None:
    """Hold the state to every rule.

    Raises:
        InvariantViolation: If it breaks one.
    """
    for rule in RULES:
        rule(core)


def _require(holds: bool, rule: str, ids: tuple[str, ...], detail: str) -> None:
    if not holds:
        raise InvariantViolation(rule, ids, detail)


def _ids(*applications: Application | None) -> tuple[str, ...]:
    return tuple("none" if a is None else a.application_id for a in applications)


def _equal(one: float, other: float, scale: float) -> bool:
    if isinstance(one, int | Fraction) and isinstance(other, int | Fraction):
        return one == other
    return abs(one - other) <= RELATIVE_TOLERANCE * scale
