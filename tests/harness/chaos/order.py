"""Check of the order of grants in a chaos run, apart from inferences in flight.

The order of a fault-free run is known without one: among waiting inferences the smallest tag F goes
first (DESIGN.md 2, *Order*), and every grant carries the rank of F at that moment. Each grant y of
the run is therefore compared with every inference x of another application that certainly waited
then:

- y was not granted before t, the latest call of any inference granted no later than y: grants are
numbered, and nothing is granted before it is called for.

- x certainly waited at t if its call was made `settle_s` before t, and no fault that keeps
submissions from the scheduler was being recovered from at t (or ended less than `settle_s` before).

- x was granted by the same scheduler, after y. (A new leader receives everything again; tags that
differ in it are counted separately.)

The pair is *inverted* if x's tag was smaller all the same. A tag can only rise while its
application has something waiting, so the tag at x's own grant is the largest that x had at t, and
every inversion found is real. It is *explained* by what was in flight if, between t and the first
run of x in the journal, a process died that may have held a lease of x (its first grant was then
earlier, and lost); or if, while x waited, its ingress may have failed to reach a replica, which x
then avoids for as long as it waits. Unexplained inversions are counted, and none is allowed.
Inferences that already run are never compared with waiting ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from justitia_ray.serve.ingress.replica_links import LONGEST_PAUSE_S
from justitia_ray.units import Seconds
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import Call, EngineRun, TagAcrossRestart

SETTLE_S: Seconds = 1.0
"""Longest time in seconds from a call to its submission to the scheduler, on busy cores."""

HOLDS_UP = frozenset(
    {
        FaultKind.SCHEDULER_KILLED,
        FaultKind.SCHEDULER_STOPPED,
        FaultKind.INGRESS_KILLED,
        FaultKind.GCS_KILLED,
        FaultKind.INGRESS_CUT,
        FaultKind.SCHEDULER_CUT,
        FaultKind.INGRESS_HALF_OPEN,
    }
)
"""Faults that delay submissions to the scheduler."""
LOSES_LEASES = frozenset(
    {
        FaultKind.SCHEDULER_KILLED,
        FaultKind.SCHEDULER_STOPPED,
        FaultKind.REPLICA_KILLED,
        FaultKind.ENGINE_KILLED,
        FaultKind.ENGINE_STOPPED,
        FaultKind.INGRESS_KILLED,
        FaultKind.SCALED,
        FaultKind.REDEPLOYED,
        FaultKind.REPLICA_CUT,
        FaultKind.INGRESS_CUT,
        FaultKind.SCHEDULER_CUT,
        FaultKind.REPLICA_BUSY,
        FaultKind.REPLICA_HALF_OPEN,
        FaultKind.INGRESS_HALF_OPEN,
        FaultKind.PORT_BLOCKED,
        FaultKind.DRAINING_KILLED,
        FaultKind.ALL_REPLICAS_KILLED,
        FaultKind.POISON,
    }
)
"""Faults that may cancel a run, or lose a grant before its inference starts."""

HIDES_REPLICAS: Mapping[FaultKind, Seconds] = {
    FaultKind.REPLICA_CUT: SETTLE_S,
    FaultKind.INGRESS_CUT: SETTLE_S,
    FaultKind.REPLICA_BUSY: SETTLE_S,
    FaultKind.REPLICA_HALF_OPEN: SETTLE_S,
    FaultKind.INGRESS_HALF_OPEN: SETTLE_S,
    # An ingress doubles its pause after each failed attempt.
    FaultKind.PORT_BLOCKED: LONGEST_PAUSE_S,
}
"""Seconds after each kind of fault in which an ingress may avoid a healthy replica."""


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """Interval of a fault, from its injection to the end of its recovery."""

    kind: FaultKind
    begins_at: Seconds
    ends_at: Seconds


@dataclass(frozen=True, slots=True)
class OrderMeasure:
    pairs: int
    """Number of pairs of a granted inference and another application's inference that waited then.
    """
    inverted: int
    """Number of pairs in which the waiting inference had the earlier virtual finish time."""
    unexplained: tuple[str, ...]
    """Pairs in the wrong order that no fault or message in transit explains."""
    tags: int
    """Number of applications that waited when a scheduler was killed and had not begun."""
    tags_changed: tuple[str, ...]
    """Applications whose virtual finish time changed when a new scheduler took over."""


def measure_order(
    runs: Sequence[EngineRun],
    calls: Iterable[Call],
    windows: Sequence[FaultWindow],
    tags: Sequence[TagAcrossRestart] = (),
    settle_s: Seconds = SETTLE_S,
) -> OrderMeasure:
    """Compare each grant with the inferences that waited then, and count grants out of order."""
    made = {(call.inference, call.number): call for call in calls}
    known = [run for run in runs if (run.inference, run.call) in made]
    pairs = inverted = 0
    unexplained = []
    for granted in _runs_by_epoch(known):
        firsts = _first_runs(granted)
        earliest = 0.0
        for y in granted:
            earliest = max(earliest, made[y.inference, y.call].called_at)
            if any(_delays_submissions(window, earliest, settle_s) for window in windows):
                continue
            for x in firsts:
                call = made[x.inference, x.call]
                if x.rank <= y.rank or call.called_at + settle_s > earliest:
                    continue
                if call.application_id == made[y.inference, y.call].application_id:
                    continue
                pairs += 1
                if x.priority >= y.priority:
                    continue
                inverted += 1
                if not any(
                    _may_lose_lease(w, earliest, x.began_at)
                    or _may_hide_replica(w, call.called_at, x.began_at)
                    for w in windows
                ):
                    unexplained.append(
                        f"{y.inference} ({y.lease_id}) before {x.inference} ({x.lease_id})"
                    )
    changed = tuple(
        f"{tag.application_id}: {tag.before!r} became {tag.after!r}"
        for tag in tags
        if tag.before != tag.after
    )
    return OrderMeasure(pairs, inverted, tuple(unexplained), len(tags), changed)


def _runs_by_epoch(runs: Sequence[EngineRun]) -> list[list[EngineRun]]:
    """Return the runs of each scheduler epoch, in the order of their grants."""
    epochs = sorted({run.epoch for run in runs})
    return [
        sorted((run for run in runs if run.epoch == epoch), key=lambda run: run.rank)
        for epoch in epochs
    ]


def _first_runs(granted: Sequence[EngineRun]) -> list[EngineRun]:
    """Return the first run of each call, in the order of the grants."""
    firsts: dict[tuple[str, int], EngineRun] = {}
    for run in granted:
        firsts.setdefault((run.inference, run.call), run)
    return list(firsts.values())


def _delays_submissions(window: FaultWindow, at: Seconds, settle_s: Seconds) -> bool:
    return window.kind in HOLDS_UP and window.begins_at <= at <= window.ends_at + settle_s


def _may_lose_lease(window: FaultWindow, since: Seconds, until: Seconds) -> bool:
    return window.kind in LOSES_LEASES and window.ends_at >= since and window.begins_at <= until


def _may_hide_replica(window: FaultWindow, since: Seconds, until: Seconds) -> bool:
    after_s = HIDES_REPLICAS.get(window.kind)
    return after_s is not None and window.ends_at + after_s >= since and window.begins_at <= until
