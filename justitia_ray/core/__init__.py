"""The scheduling core: pure, synchronous, without Ray, vLLM, asyncio or a clock.

Theory of operation
    `SchedulerCore.handle(event, now)` is the only way in, and the actions it returns the only way
    out. GPS, the ideal fluid server that gives every active application service in proportion to
    its weight at every instant, is simulated on the side by `virtual_clock`; an application's tag F
    says when GPS would finish it. Replicas are given the inferences of the application with the
    smallest tag, all it can use until it is done (Justitia, arXiv:2510.17015v1, Sec. IV-C).

    Service is metered with the formula of the cost: an inference that has produced g tokens of a
    prompt of p has received h(p, g) = Σᵢ₌₁..g (p+i), in token·iterations.

Differs from the paper:
    V moves by the service really delivered, not at the nominal rate of the machine, and accounts
    are settled (`fair_share` says how). With a nominal clock, whenever a large application cannot
    use the whole machine, GPS runs ahead of it, and later small ones queue behind it.

Bound
    S is the service reported so far, e an application's last start, f̄ the S at which V reaches its
    final tag F. Its lag is S(e) − S(f̄). GPS and the replicas have done the same work at all times
    (the invariant of `fair_share`), so that a lag in service needs no rate of the machine.

    One stage, true costs, strict order. Let t0 be the last start before e of a larger tag. Nothing
    of a smaller tag waited then, or it would have gone first: all of it was in flight, or had not
    arrived. So what is served in (t0, e] is part of I(t0), the work in flight just after t0, or
    belongs to A, applications with tags ≤ F that arrived after t0. They arrived before V reached F,
    for later ones have larger tags; GPS, which keeps to its tags, has served all of A by f̄. Hence
    S(e) − S(t0) ≤ I(t0) + A and S(f̄) − S(t0) ≥ A: the lag is at most I(t0). After e the application
    is done in d_max iterations, its longest output.
    - Weights: nothing in this depends on them.
    - Replicas: I is the sum over all. If a later tag may start on a replica too small for the
      first in order, that is a start out of order, below.
    - Reports that lag: service not reported is in flight to the core, so I counts it, and S(e) may
      be taken as really served. Only f̄ is not known to better than a report: one more.
    - Known online: I as the sum of what each lease can still be served, by its true length or its
      maximum. Under `peak` it is at most Σ M_r·d_max. It is that of t0, not the largest since the
      application arrived: t0 may lie before its arrival, and I fall until then.

    Exceptions, all measured and added since t0 (`delay_bound`); none is a constant.
    - Starts out of order add their work. `backfill`: n passes of *each* inference that was first in
      line, n·c_max for one that is passed once is too little. `kv_share_cap` κ: C_max + (1 − κ)/κ·C
      is too little as well if inferences do not divide κ·M. Both fail where those that pass have
      small weights, so that GPS serves them later. Without a limit of passes no bound is told.
    - Stages and tool gaps: an application in a stage cannot use what GPS gives it. When it falls
      idle, rule 4 gives the rest to others, whose tags V then passes at once: their lag grows by
      that credit though they have one stage themselves. In exchange rule 5 charges it from V on, so
      that one I is enough for its own last stage. One that is never idle (overlapping stages) is
      not charged anew: what GPS has served ahead of it is added when it submits, and for itself
      an I for each t0 and its path, the service while nothing of it waited.
    - Errors: work in flight when rule 1 doubles its application's charge, or rule 7 raises it, as
      GPS owes it later, and credit given back by rule 3. `V(e) ≤ F + o/w` plus I, with o the most
      in flight beyond one charge, is false both ways: V leaps when a giant turns out small, and
      mice that wait with small tags while V passes them are charged from V on. Against GPS with
      true costs there is no bound: if they are known, and differ, none is told.
    - Nominal clock: none under fragmentation, as V runs ahead of the machine. Other policies, cost
      functions, and fairness between tenants: the lag is told, and no bound.

    The paper's Theorem 1 (v1, Sec. IV-D): f − f̄ ≤ 2·c_max + C_max/M. It assumes one server, true
    costs, all inferences there at arrival, and memory without fragmentation; it takes c_max, a
    cost, for a duration (Eq. 5: an inference of p and d runs d iterations, less than its cost), so
    that it is loose where it holds. Its proof takes the server for busy in [b_m, e_j] (Eq. 8),
    while only [a_j, e_j] is, and A ∪ B for all that is served there. With tools both fail: what the
    nominal GPS finished while its applications were away is still to come, before whoever arrives
    then. 20 applications in a gap put the next one three times the bound behind
    (`tests/properties/test_bound_limits`); with the served clock and rule 4 it goes first.

Rooms
    scheduler (which room an event goes to), applications, inferences, leases, replicas, ingresses,
    recovery (lives and failures), order (policy, accounts, queue in step), admission (is there
    room), lag, lag_accounts, delay_bound, service_history (how late against GPS, and how late at
    most), transitions (the states of an inference), snapshot (what outlives the scheduler),
    invariants.
"""

from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.state import Timeouts

__all__ = ["SchedulerCore", "Timeouts"]
