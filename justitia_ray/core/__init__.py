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

Bound (served clock, true costs, one stage, one replica)
    Let S be service delivered, f̄ the S at which V reaches an application's final tag F, e its last
    start, I the largest remaining work in flight. At the last start of a larger tag, all work of
    smaller tags is in flight or has not arrived; hence S(e) − S(f̄) ≤ I. The paper's Theorem 1
    (f − f̄ ≤ 2·c_max + C_max/M) uses a cost as a time, and its proof needs [b_m, a_j] busy (Eq. 8),
    which it need not be when an application waits for its tools.

Rooms
    scheduler (which room an event goes to), applications, inferences, leases, replicas, recovery
    (lives and failures), order (policy, accounts, queue in step), admission (is there room),
    transitions (the states of an inference), snapshot (what outlives the scheduler), invariants.
"""

from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.state import Timeouts

__all__ = ["SchedulerCore", "Timeouts"]
