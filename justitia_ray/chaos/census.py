"""What there is before and after a run, and what of it was leaked.

Roles are what processes are for, so that one that was killed is compared with the one in its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from justitia_ray.units import ApplicationId

FILES_TOLERANCE = 24
"""File descriptors that a long-lived process may have more than before: Ray keeps connections to
the workers that it has spoken to (a few for each that was started again), httpx and uvicorn idle
ones for seconds. A leak of one for each call would be hundreds."""
IDLE_WORKERS_TOLERANCE = 4
"""Ray keeps as many idle worker processes as the machine has cores, and starts some ahead."""


@dataclass(frozen=True, slots=True)
class Census:
    """What there is at one instant, with nothing to do."""

    processes: Mapping[str, int]
    """How many of each role."""
    files: Mapping[str, int]
    """Most file descriptors that a process of a role has open."""
    actors: Mapping[str, int]
    """Living actors of each class."""
    applications: int
    waiting: int
    in_flight: int
    """Leases."""
    busy_kv_tokens: int
    """That the engines' own gauges say are held."""
    tickets: int
    """Inferences that the ingresses hold for outstanding."""
    stored: tuple[ApplicationId, ...]
    """Applications in Redis."""


def leaks(before: Census, after: Census) -> list[str]:
    """Return in words what is left that was not there before."""
    found = []
    for name in ("applications", "waiting", "in_flight", "busy_kv_tokens", "tickets"):
        left = getattr(after, name)
        if left:
            found.append(f"{name}: {left} in place of 0")
    if after.stored:
        found.append(f"stored: {', '.join(after.stored)} in place of none")
    for what, tolerance in (("processes", 0), ("actors", 0), ("files", FILES_TOLERANCE)):
        earlier, later = getattr(before, what), getattr(after, what)
        for role in sorted(later):
            allowed = IDLE_WORKERS_TOLERANCE if role == IDLE_WORKER else tolerance
            if what == "files" and role in (IDLE_WORKER, LOG_MONITOR):
                continue
            if later[role] > earlier.get(role, 0) + allowed:
                found.append(f"{what} of {role}: {later[role]} in place of {earlier.get(role, 0)}")
    return found


LOG_MONITOR = "log_monitor.py"
"""Ray's; it keeps the logs of the latest 200 workers open, the dead ones too."""
IDLE_WORKER = "idle worker"
"""The role of Ray's workers that run nothing."""
