"""Rules of autoscaling: whether the controller polls, and whether the settings fit each other."""

from collections.abc import Iterator

from justitia_ray.doctor.rule import (
    Breach,
    LeaderSnapshot,
    Rule,
    Severity,
    Snapshot,
    breach,
    for_leader,
)
from justitia_ray.units import Seconds

_SILENT_S: Seconds = 30.0
"""Seconds without a poll of the autoscaler after which it is a fault. Serve's controller polls
every second, but may restart.
"""


def _missing_polls(look: LeaderSnapshot) -> Iterator[Breach]:
    scaling = look.leader.scaling
    if scaling is None or not scaling.is_serves:
        return
    if scaling.asked_s_ago is None:
        yield breach("autoscaler", said="has not asked this scheduler yet")
    elif scaling.asked_s_ago > _SILENT_S:
        yield breach("autoscaler", said=f"asked {scaling.asked_s_ago:.0f} s ago at last")


def _short_patience(look: LeaderSnapshot) -> Iterator[Breach]:
    scaling = look.leader.scaling
    if scaling is None or scaling.downscale_delay_s is None:
        return
    if scaling.load_s > scaling.downscale_delay_s:
        yield breach("downscale_delay_s", scaling=scaling)


def _limit_reached(look: LeaderSnapshot) -> Iterator[Breach]:
    scaling = look.leader.scaling
    if scaling is not None and scaling.maximum is not None and scaling.asked > scaling.maximum:
        yield breach("max_replicas", scaling=scaling)


SCALING_RULES: tuple[Rule[[Snapshot]], ...] = (
    Rule(
        "autoscaler_that_does_not_ask",
        Severity.RISK,
        "Serve's controller asks the scheduler how many replicas it wants.",
        for_leader(_missing_polls),
        "with autoscaling in the arguments, Serve's controller {said}: the number of replicas stays"
        " as it is",
        "see the controller's log (serve/controller_*.log in Ray's log directory) for why; it asks"
        " by the name and the namespace of the scheduler",
    ),
    Rule(
        "replicas_that_leave_too_soon",
        Severity.RISK,
        "A replica is missed for longer than it takes to load, before it goes.",
        for_leader(_short_patience),
        "a replica takes {scaling.load_s:.0f} s to load, and is drained when it has not been wanted"
        " for {scaling.downscale_delay_s:g} s: it will be loaded again and again",
        "raise autoscaling.downscale_delay_s, to twice the loading time or more; or leave it out,"
        " and say the loading time in autoscaling.load_s",
    ),
    Rule(
        "queue_that_asks_for_more_than_the_limit",
        Severity.NOTE,
        "The queue asks for no more replicas than autoscaling.max_replicas.",
        for_leader(_limit_reached),
        "the queue asks for {scaling.asked} replicas, and autoscaling.max_replicas is"
        " {scaling.maximum}",
        "raise it, or accept that all that is asked takes longer than autoscaling.target_drain_s",
    ),
)
"""Rules of the doctor about autoscaling."""
