"""Invariants of the core's state, one function each; for tests and debugging, O(everything).

`check` is called between events. A broken rule raises `InvariantViolation`, which is a bug of the
core and never an answer to a caller.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import TypeAlias

from justitia_ray.core.clock.branch import Branch
from justitia_ray.core.clock.tenant import Tenant
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.core.entities import Application, Inference, KnownReplica
from justitia_ray.core.policies.justitia import JustitiaPolicy
from justitia_ray.core.prefixes import Beginning, Beginnings
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.state import Counters, DeadlineKind
from justitia_ray.core.states import ApplicationState, InferenceState
from justitia_ray.core.tenants import BEYOND, SEPARATOR
from justitia_ray.units import ClientId, IngressId, LeaseId

RELATIVE_TOLERANCE = 1e-9
"""Relative tolerance of sums of floats; sums of integers and fractions are exact."""

Findings: TypeAlias = Iterator[tuple[bool, Iterable[str], str]]
"""Results of checking a rule: whether each part of the state is correct, its entities, and the
fault.
"""
Rule: TypeAlias = Callable[[SchedulerCore], Findings]


class InvariantViolation(AssertionError):
    """The state of the core breaks a rule, which the message names with the entities."""


def inferences_are_in_one_place(core: SchedulerCore) -> Findings:
    """Each inference is in exactly one collection of its application, the one for its state."""
    state = core.state
    seen: set[str] = set()
    for application in state.applications.values():
        waiting = [inference.request_id for inference in application.waiting]
        places = {
            "waiting": (waiting, (InferenceState.WAITING,)),
            "in_flight": (application.in_flight, (InferenceState.LEASED, InferenceState.RUNNING)),
            "held_back": (
                application.held_back,
                (InferenceState.SUSPENDED, InferenceState.CLAIMED),
            ),
        }
        for place, (request_ids, allowed) in places.items():
            for request_id in request_ids:
                ids = (application.application_id, request_id)
                inference = state.inferences.get(request_id)
                yield inference is not None, ids, f"is {place} and unknown"
                assert inference is not None
                yield request_id not in seen, ids, f"is {place} and elsewhere"
                yield inference.state in allowed, ids, f"is {place} and {inference.state}"
                has_lease = inference.lease_id is not None
                in_flight = place == "in_flight"
                yield has_lease == in_flight, ids, f"is {place}, {inference.lease_id=}"
                owner = inference.application_id
                yield owner == application.application_id, ids, f"belongs to {owner}"
                seen.add(request_id)
    lost = tuple(state.inferences.keys() - seen)
    yield not lost, lost, "in no place"


def suspect_ingresses_are_suspended(core: SchedulerCore) -> Findings:
    """A waiting inference is suspended if and only if its ingress may be lost."""
    state, ingresses = core.state, core.ingresses
    for application in state.applications.values():
        for inference in (*application.waiting, *application.held_back.values()):
            if inference.state is not InferenceState.CLAIMED:
                suspect = inference.ingress_id in ingresses.suspect
                ids = (inference.request_id, inference.ingress_id)
                is_suspended = inference.state is InferenceState.SUSPENDED
                yield suspect == is_suspended, ids, f"is {inference.state}, {suspect=}"
    there_are = sum(one.state is InferenceState.SUSPENDED for one in state.inferences.values())
    detail = f"counted {ingresses.suspended} as suspended, there are {there_are}"
    yield ingresses.suspended == there_are, (), detail
    of_ingress: dict[IngressId, list[Inference]] = {}
    for inference in state.inferences.values():
        of_ingress.setdefault(inference.ingress_id, []).append(inference)
    for ingress_id in state.ingresses.keys() | of_ingress.keys():
        there = of_ingress.get(ingress_id, [])
        same = ingresses.inferences_of(ingress_id) == there
        yield same, (ingress_id,), "its list is another"
        is_known = ingress_id in state.ingresses
        yield is_known, (ingress_id,), "was lost, and its inferences have not ended"


def waiting_inferences_are_in_order(core: SchedulerCore) -> Findings:
    """Waiting inferences of an application are in the policy's order, also after being requeued."""
    key = core.ledger.policy.inference_key
    for application in core.state.applications.values():
        orders = [key(inference) for inference in application.waiting]
        yield orders == sorted(orders), (application.application_id,), f"orders are {orders}"


def leases_agree(core: SchedulerCore) -> Findings:
    """Each lease, its inference and its replica name each other."""
    state = core.state
    for lease_id, lease in state.leases.items():
        inference = state.inferences.get(lease.request_id)
        replica = state.replicas.get(lease.replica_id)
        held = inference.lease_id if inference is not None else None
        yield lease.lease_id == lease_id, (lease_id,), f"calls itself {lease.lease_id}"
        yield held == lease_id, (lease_id, lease.request_id), f"inference holds {held}"
        on_replica = replica is not None and lease_id in replica.leases
        yield on_replica, (lease_id, lease.replica_id), "not on its replica"
    for replica in state.replicas.values():
        unknown = tuple(
            lease_id
            for lease_id in replica.leases
            if lease_id not in state.leases
            or state.leases[lease_id].replica_id != replica.replica_id
        )
        yield not unknown, (replica.replica_id, *unknown), "not leased to this replica"
    for inference in state.inferences.values():
        known = inference.lease_id is None or inference.lease_id in state.leases
        yield known, (inference.request_id,), f"holds unknown lease {inference.lease_id}"


def memory_counts_once(core: SchedulerCore) -> Findings:
    """A replica's KV sums are the unshared KV of its leases, and each shared beginning once."""
    state = core.state
    for replica in state.replicas.values():
        leases, names = replica.leases, (replica.replica_id,)
        shared = list(leases.beginnings or ())
        context = sum(one.context_tokens for one in leases.values())
        full = sum(one.full_tokens for one in leases.values())
        held = sum(node.held_tokens for node in shared)
        for name, told, true in (
            ("context", leases.context_tokens, context + held),
            ("full", leases.full_tokens, full + held),
            ("sequences", leases.sequences, sum(one.choices for one in leases.values())),
        ):
            yield told == true, names, f"{name}: told {told}, summed {true}"
        least = min((one.context_tokens for one in leases.values()), default=0)
        yield least >= 0, names, f"a lease holds {least} tokens of its own"
        if leases.beginnings is not None:
            yield from _beginnings_are_of_leases(core, replica, leases.beginnings)


def caches_agree(core: SchedulerCore) -> Findings:
    """A replica's sums of cached and uncomputed tokens equal those of its contexts and leases."""
    state = core.state
    for replica in state.replicas.values():
        names = (replica.replica_id,)
        awaited = sum(state.leases[lease_id].uncomputed_tokens for lease_id in replica.leases)
        told = replica.uncomputed_tokens
        yield told == awaited, names, f"waits for {told} tokens, its leases for {awaited}"
        contexts = replica.contexts
        idle = [context for _, context in contexts.idle()]
        summed = sum(context.own_tokens for context in idle)
        live = sum(context.own_tokens for context in idle if context.is_live)
        told_idle = contexts.tokens, contexts.live_tokens
        yield told_idle == (summed, live), names, f"contexts: {told_idle}, summed {summed}, {live}"
        holders = Counter(
            id(state.leases[lease_id].context)
            for lease_id in replica.leases
            if state.leases[lease_id].context is not None
        )
        for name, context in contexts.held():
            held = holders[id(context)]
            yield held == context.leases > 0, (name,), f"held by {held}, told {context.leases}"
        yield not any(context.leases for context in idle), names, "an idle context is held"
        for name, context in contexts.idle():
            is_ended = name not in state.applications
            yield not (context.is_live and is_ended), (name,), "has ended, and its context has not"


def _beginnings_are_of_leases(
    core: SchedulerCore, replica: KnownReplica, beginnings: Beginnings
) -> Findings:
    """Shared beginnings of prompts belong to leases, and a lease has its longest ones."""
    having: dict[Beginning, set[LeaseId]] = {node: set() for node in beginnings}
    for lease_id in replica.leases:
        lease = core.state.leases[lease_id]
        named, path = core.state.inferences[lease.request_id].prefixes, beginnings.path(lease_id)
        longest = path[0].prefix if path else None
        yield (
            longest == (named[-1] if named and replica.capacity.caches_prefixes else None),
            (lease_id,),
            f"its longest is {longest}",
        )
        for node in path:
            having[node].add(lease_id)
        shared = next((node.prefix.tokens for node in path if len(node.leases) > 1), 0)
        told = beginnings.shared.get(lease_id, 0)
        yield told == shared, (lease_id,), f"said to share {told}, shares {shared}"
    for node, lease_ids in having.items():
        ids = (replica.replica_id, *node.leases)
        yield lease_ids == node.leases.keys() and bool(lease_ids), ids, f"had by {lease_ids}"
        yield node.own_tokens > 0, ids, f"adds {node.own_tokens} tokens"
        yield node.missed.keys() <= node.leases.keys(), ids, "missed by what does not have it"


def open_suspects_are_apart(core: SchedulerCore) -> Findings:
    """No replica runs two inferences that are suspected of having killed an engine."""
    state = core.state
    for replica in state.replicas.values():
        own = [name for name in replica.leases if name.startswith(state.lease_prefix)]
        granted = [state.leases[name].request_id for name in own]
        suspects = [name for name in granted if core.suspects.is_open(state.inferences[name])]
        yield len(suspects) < 2, (replica.replica_id, *suspects), "open suspects share it"


def queue_holds_what_waits(core: SchedulerCore) -> Findings:
    """The queue contains exactly the applications with waiting inferences.

    Its first has the smallest key.

    Policies with overtaking have a rule of their own for the first application.
    """
    queue = core.ledger.queue
    waiting = [a for a in core.state.applications.values() if a.waiting]
    names = tuple(application.application_id for application in waiting)
    outside = tuple(name for name in names if name not in queue)
    yield not outside, outside, "waits outside the queue"
    yield len(queue) == len(waiting), names, f"wait; the queue has {len(queue)}"
    if not core.ledger.policy.lets_pass:
        expected, first = expected_first(core), queue.first()
        ids = ["none" if a is None else a.application_id for a in (expected, first)]
        same = first is expected or same_key(core, expected, first)
        yield same, ids, "not the least key is first"


def expected_first(core: SchedulerCore) -> Application | None:
    """Return the application that must be first in the queue, by a full search. O(N)."""
    policy, heads = core.ledger.policy, least_of_clients(core)
    least = min(heads, key=lambda client: policy.key(client, heads[client]), default=None)
    return None if least is None else heads[least]


def least_of_clients(core: SchedulerCore) -> dict[ClientId, Application]:
    """Return the application with the smallest key of each client that may start. O(N)."""
    policy = core.ledger.policy
    if isinstance(core.ledger.fair_share, TenantShare) and isinstance(policy, JustitiaPolicy):
        tenants, clients = least_of_tenants(core), dict[ClientId, list[Application]]()
        for application in tenants.values():
            clients.setdefault(policy.client(application), []).append(application)
        by_client = {
            client: min(applications, key=lambda one: policy.key(client, one))
            for client, applications in clients.items()
        }
    else:
        by_client = _applications_of_least_key(core, policy.client)
    return {
        client: application
        for client, application in by_client.items()
        if policy.eligible_at(client) <= core.state.now
    }


def least_of_tenants(core: SchedulerCore) -> dict[ClientId, Application]:
    """Return for each waiting tenant its application with the smallest tag. O(N)."""
    return _applications_of_least_key(core, lambda application: application.leaf)


def _applications_of_least_key(
    core: SchedulerCore, group: Callable[[Application], ClientId]
) -> dict[ClientId, Application]:
    groups: dict[ClientId, list[Application]] = {}
    for application in core.state.applications.values():
        if application.application_id in core.ledger.queue:
            groups.setdefault(group(application), []).append(application)
    key = core.ledger.policy.application_key
    return {name: min(applications, key=key) for name, applications in groups.items()}


def same_key(core: SchedulerCore, one: Application | None, other: Application | None) -> bool:
    """Return whether the keys of two applications differ at most by rounding."""
    if not isinstance(core.ledger.fair_share, TenantShare) or one is None or other is None:
        return False
    if one.is_deprioritised != other.is_deprioritised:
        return False
    keys = [core.tag(application.application_id) for application in (one, other)]
    return abs(keys[0] - keys[1]) <= RELATIVE_TOLERANCE * (1 + max(keys))


def accounts_are_of_live_applications(core: SchedulerCore) -> Findings:
    """Each live application has an account, and a GPS session with its weight.

    No others have an account.
    """
    fair_share = core.ledger.fair_share
    odd = tuple(fair_share.accounts.keys() ^ core.state.applications.keys())
    yield not odd, odd, "either live or with an account, not both"
    sessions = fair_share.sessions()
    owed = {
        n for tenant in _tenant_leaves(core).values() for n in tenant.members if tenant.has_debt(n)
    }
    for application_id, account in fair_share.accounts.items():
        session = sessions.get(application_id)
        ids = (application_id,)
        yield session is not None, ids, "has no session"
        assert session is not None
        yield not session.released, ids, "is live and its session released"
        application = core.state.applications[application_id]
        weights = {core.ledger.weight_of(application), account.weight, session.weight}
        yield len(weights) == 1, ids, f"weights {weights}"
    for application_id, session in sessions.items():
        live = application_id in fair_share.accounts
        kept = live or (session.released and session.active) or application_id in owed
        yield kept, (application_id,), "session of nobody"


def gps_owes_what_was_charged(core: SchedulerCore) -> Findings:
    """GPS owes what was charged and not attained: Σ w·(F − V) = Σ (chg − att).

    Holds with the served clock. The first sum is over active sessions, the second over applications
    that are not withdrawn.
    """
    if core.ledger.options.clock != "served":
        return
    fair_share, applications = core.ledger.fair_share, core.state.applications
    for number, clock in enumerate(_clocks_by_quota(core)):
        accounts = {
            name: account
            for name, account in fair_share.accounts.items()
            if (fair_share.sets_apart and applications[name].is_deprioritised) == bool(number)
        }
        charged = sum(a.charged - a.attained for a in accounts.values() if not a.withdrawn)
        # Rounding errors grow with virtual time per unit of weight, and with every charge.
        weights = sum(session.weight for session in clock.sessions().values())
        scale = 1 + clock.virtual_time * (1 + weights)
        scale += sum(account.charged for account in fair_share.accounts.values())
        owed = clock.backlog()
        detail = f"GPS owes {owed}, charged and not attained is {charged}"
        yield _are_equal(owed, charged, scale), accounts, detail


def idle_applications_are_withdrawn(core: SchedulerCore) -> Findings:
    """With the served clock, GPS has no sessions of applications that were idle at the last report.

    Applications that became idle after the last report, and restored applications whose inferences
    may still be resubmitted, are withdrawn later.
    """
    if core.ledger.options.clock != "served":
        return
    for application_id, account in core.ledger.fair_share.accounts.items():
        application = core.state.applications[application_id]
        ids = (application_id,)
        if account.withdrawn:
            yield application.is_idle, ids, "busy and withdrawn"
        elif application.is_idle:
            awaits = application_id in core.applications.settled_since_report
            yield awaits or not application.state.is_settled, ids, "idle and not withdrawn"


def applications_are_in_their_states(core: SchedulerCore) -> Findings:
    """The state and the indexes of an application agree on whether it has inferences.

    A restored application may have no inferences even while its state is closing or stopping.
    """
    for name, application in core.state.applications.items():
        state, is_idle = application.state, application.is_idle
        is_restored = core.state.deadlines.is_set(DeadlineKind.RETURN, name)
        allowed = {
            ApplicationState.OPEN: not is_idle,
            ApplicationState.RECOVERING: is_idle and is_restored,
            ApplicationState.CLOSING: not is_idle or is_restored,
            ApplicationState.STOPPING: not is_idle or is_restored,
        }.get(state, state.is_settled and is_idle)
        yield allowed, (name,), f"is {state}, {is_idle=}, {is_restored=}"
        since = application.idle_since
        yield is_idle == (since is not None), (name,), f"{is_idle=}, idle since {since}"
        told = application.story[-1][1] if application.story else None
        yield told is state, (name,), f"is {state}, its story ends with {told}"
    settled = {name for name, one in core.state.applications.items() if one.state.is_settled}
    odd = tuple(core.applications.settled_since_report.keys() - settled)
    yield not odd, odd, "is listed as settled, and is not"


def active_weight_is_the_sum(core: SchedulerCore) -> Findings:
    """The running sum of active weights is correct, and a session is active while F > V."""
    tenants = _tenant_leaves(core).values()
    branches = [branch.clock for branch in _kept_branches(core).values()]
    leaves = [tenant.gps for tenant in tenants]
    for clock in (*_clocks_by_quota(core), *branches, *leaves):
        total: float = 0
        for session_id, session in clock.sessions().items():
            ahead = session.finish - clock.virtual_time
            detail = f"active={session.active} with F − V = {ahead}"
            yield session.active == (ahead > 0), (session_id,), detail
            total += session.weight if session.active else 0
        summed = clock.active_weight
        yield _are_equal(summed, total, 1 + total), (), f"kept {summed}, summed {total}"


def tenants_are_owed_the_same_at_both_levels(core: SchedulerCore) -> Findings:
    """A tenant is owed the same by the root, its GPS clock and its ideal server."""
    fair_share = core.ledger.fair_share
    for path, branch in _kept_branches(core).items():
        above = fair_share.clock if branch.parent is None else branch.parent.clock
        if path == BEYOND and isinstance(fair_share, TenantShare):
            above = fair_share.nodes.beyond
        session = above.session(branch.name)
        by_parent = branch.weight * max(0, session.finish - branch.since)
        weights = sum(child.weight for child in branch.clock.sessions().values())
        scale = 1 + session.finish * session.weight + branch.clock.virtual_time * (1 + weights)
        scale += above.virtual_time + sum(a.charged for a in fair_share.accounts.values())
        owed = branch.clock.backlog()
        yield _are_equal(by_parent, owed, scale), (path,), f"{by_parent}; children {owed}"
    for name, tenant in _tenant_leaves(core).items():
        clock = fair_share.clock if tenant.parent is None else tenant.parent.clock
        root = clock.session(tenant.name)
        by_root = tenant.server.weight * max(0, root.finish - tenant.server.since)
        weights = sum(session.weight for session in tenant.gps.sessions().values())
        scale = 1 + root.finish * root.weight + tenant.gps.virtual_time * (1 + weights)
        scale += clock.virtual_time
        scale += sum(fair_share.accounts[name].charged for name in tenant.live)
        for where, owed in (("GPS", tenant.gps.backlog()), ("server", tenant.server.total)):
            yield _are_equal(by_root, owed, scale), (name,), f"{by_root}; {where} {owed}"
        agreed = root.released or root.weight == tenant.server.weight
        yield agreed, (name,), f"{root.weight=}, inside {tenant.server.weight}"


def _tenant_leaves(core: SchedulerCore) -> dict[ClientId, Tenant]:
    fair_share = core.ledger.fair_share
    return fair_share.nodes.kept_leaves() if isinstance(fair_share, TenantShare) else {}


def _clocks_by_quota(core: SchedulerCore) -> tuple[VirtualClock, ...]:
    """Return the GPS clocks of applications within quota and of those beyond quota."""
    share = core.ledger.fair_share
    return (share.clock, share.nodes.beyond) if isinstance(share, TenantShare) else (share.clock,)


def _kept_branches(core: SchedulerCore) -> dict[ClientId, Branch]:
    fair_share = core.ledger.fair_share
    return fair_share.nodes.kept_branches() if isinstance(fair_share, TenantShare) else {}


def replicas_have_seats_for_their_leases(core: SchedulerCore) -> Findings:
    """No replica is granted more sequences than it has seats, except a single larger lease.

    Leases of an earlier scheduler count only when this scheduler grants another lease there.
    """
    for replica in core.state.replicas.values():
        granted = {
            lease_id: footprint.choices
            for lease_id, footprint in replica.leases.items()
            if lease_id.startswith(core.state.lease_prefix)
        }
        sequences, seats = sum(granted.values()), replica.capacity.max_num_seqs
        holds = len(granted) <= 1 or sequences <= seats
        yield holds, (replica.replica_id, *granted), f"{sequences} sequences for {seats} seats"


def service_is_what_was_metered(core: SchedulerCore) -> Findings:
    """Service booked for unfinished inferences equals what they received under all schedulers."""
    attained: dict[str, float] = dict.fromkeys(core.state.applications, 0)
    leaving = (departure.inference for departure in core.state.leaving.values())
    for inference in (*core.state.inferences.values(), *leaving):
        attained[inference.application_id] += inference.attained
    for application_id, application in core.state.applications.items():
        metered = attained[application_id] + application.booked_before
        booked = application.unfinished_kv_token_time
        total = core.ledger.fair_share.accounts[application_id].attained
        ids = (application_id,)
        yield booked == metered, ids, f"booked {booked}, metered {metered}"
        if core.ledger.options.accounts_cost == "kv_token_time":
            yield total >= booked, ids, f"attained {total}, of which unfinished {booked}"


def prefill_is_what_was_paid(core: SchedulerCore) -> Findings:
    """Booked and charged costs of computing prompts equal those of the unfinished inferences."""
    sums = {
        name: [account.pending_before, account.paid_before, account.forgiven_before]
        for name, one in core.state.applications.items()
        if (account := one.prefill) is not None
    }
    leaving = (departure.inference for departure in core.state.leaving.values())
    for inference in (*core.state.inferences.values(), *leaving):
        prefill, name = inference.prefill, inference.application_id
        if prefill is None:
            continue
        yield name in sums, (name,), f"prefill of {inference.request_id} without an account"
        of = sums.get(name, [0, 0, 0])
        of[0] += prefill.charged
        of[1] += prefill.paid
        of[2] += prefill.forgiven
    for name, (pending, paid, forgiven) in sums.items():
        of_name = core.state.applications[name].prefill
        assert of_name is not None
        yield of_name.pending == pending, (name,), f"pending {of_name.pending}, {pending}"
        yield of_name.unfinished == paid, (name,), f"paid {of_name.unfinished}, {paid}"
        yield of_name.forgiven == forgiven, (name,), f"forgiven {of_name.forgiven}, {forgiven}"


def quotas_count_what_is_there(core: SchedulerCore) -> Findings:
    """Each count that is compared with a limit equals the number of existing entities."""
    state = core.state
    top = {name: a.tenant.partition(SEPARATOR)[0] for name, a in state.applications.items()}
    applications = list(top.values())
    owners = [top[inference.application_id] for inference in state.inferences.values()]
    for quota, tenants in (
        (state.open_applications, applications),
        (state.known_inferences, owners),
    ):
        for tenant, count in Counter(tenants).items():
            counted = quota.count_of(tenant)
            yield counted == count, (tenant,), f"counted {counted}, has {count}"
        detail = f"counted {quota.total} in all, there are {len(tenants)}"
        yield quota.total == len(tenants), (), detail


def counters_sum_what_waits(core: SchedulerCore) -> Findings:
    """Running sums over the queue equal the sums of a full pass over the queue."""
    walked = Counters()
    for application in core.state.applications.values():
        for inference in application.waiting.values():
            walked.count_waiting(inference, 1)
    counted = core.state.counters
    for name in ("waiting_kv_tokens", "waiting_kv_token_time"):
        told, true = getattr(counted, name), getattr(walked, name)
        yield _are_equal(told, true, max(1, true)), (), f"{name} is {told}, not {true}"


RULES: tuple[Rule, ...] = (
    inferences_are_in_one_place,
    suspect_ingresses_are_suspended,
    waiting_inferences_are_in_order,
    leases_agree,
    memory_counts_once,
    caches_agree,
    open_suspects_are_apart,
    queue_holds_what_waits,
    accounts_are_of_live_applications,
    gps_owes_what_was_charged,
    idle_applications_are_withdrawn,
    applications_are_in_their_states,
    active_weight_is_the_sum,
    tenants_are_owed_the_same_at_both_levels,
    replicas_have_seats_for_their_leases,
    service_is_what_was_metered,
    prefill_is_what_was_paid,
    quotas_count_what_is_there,
    counters_sum_what_waits,
)


def rules_of(core: SchedulerCore) -> tuple[Rule, ...]:
    """Return `RULES` and the rules of the current policy."""
    return (*RULES, *core.ledger.policy.INVARIANTS)


def check_rule(rule: Rule, core: SchedulerCore) -> None:
    """Raise `InvariantViolation` if the state of the core breaks this rule.

    Raises:
        InvariantViolation: If the state breaks the rule.
    """
    for holds, ids, detail in rule(core):
        if not holds:
            raise InvariantViolation(f"{rule.__name__}: {', '.join(ids)}: {detail}")


def check(core: SchedulerCore) -> None:
    """Raise `InvariantViolation` if the state of the core breaks any rule.

    Raises:
        InvariantViolation: If the state breaks a rule.
    """
    for rule in rules_of(core):
        check_rule(rule, core)


def _are_equal(one: float, other: float, scale: float) -> bool:
    if isinstance(one, int | Fraction) and isinstance(other, int | Fraction):
        return one == other
    return abs(one - other) <= RELATIVE_TOLERANCE * scale
