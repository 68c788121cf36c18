"""The schedulers (arms) by name, each with the settings among which a report selects the best.

`ARMS` is for recorded sessions, `APPLICATION_ARMS` for applications whose calls run in parallel.

`justitia` and its variants are this project's scheduling core. The others are `rivals`:
re-implementations of other schedulers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from justitia_ray.engine_model.steps import EnginePolicy
from justitia_ray.sim.sessions.arm import SessionArm
from justitia_ray.sim.sessions.core_arm import CoreArm
from justitia_ray.sim.sessions.rivals.cache_ttl import CacheTtlArm
from justitia_ray.sim.sessions.rivals.concur import ConcurArm
from justitia_ray.sim.sessions.rivals.gittins import GittinsArm
from justitia_ray.sim.sessions.rivals.lmetric import LMetricArm
from justitia_ray.sim.sessions.rivals.mori import MoriArm
from justitia_ray.sim.sessions.rivals.pinned import PinnedArm
from justitia_ray.sim.sessions.rivals.thunder_agent import ThunderAgentArm

ArmOptions: TypeAlias = tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class ArmKind:
    """A scheduler of sessions, and the order in which its engines serve waiting turns."""

    make: Callable[..., SessionArm]
    """Function that creates the scheduler from the replicas, the sessions of the run, and options.
    """
    engine_policy: EnginePolicy
    grid: tuple[ArmOptions, ...] = ((),)
    """Options to try."""


def _option_combinations(*options: Mapping[str, object]) -> tuple[ArmOptions, ...]:
    return tuple(tuple(one.items()) for one in options)


ARMS: Mapping[str, ArmKind] = {
    "justitia": ArmKind(CoreArm, "priority"),
    "justitia-class-mean": ArmKind(partial(CoreArm, predictions="class mean"), "priority"),
    "justitia-no-working-set": ArmKind(
        partial(CoreArm, options={"working_set": False}), "priority"
    ),
    "pinned": ArmKind(PinnedArm, "fcfs"),
    "lmetric": ArmKind(LMetricArm, "fcfs"),
    "cache-ttl": ArmKind(
        CacheTtlArm,
        "priority",
        _option_combinations(
            {"ttl_s": 2.0},
            {"ttl_s": 10.0},
            {"ttl_s": 30.0},
            {},
            {"ttl_s": 10.0, "placed": "lmetric"},
            {"placed": "lmetric"},
        ),
    ),
    "thunder-agent": ArmKind(
        ThunderAgentArm,
        "fcfs",
        _option_combinations({}, {"decays": True}, {"acting_weight": 0.25}, {"acting_weight": 0.1}),
    ),
    "concur": ArmKind(
        ConcurArm,
        "fcfs",
        _option_combinations(
            {},
            {"hit_rate": 0.8},
            {"low": 0.5, "high": 0.8, "hit_rate": 0.5},
            {"low": 0.5, "high": 0.8, "hit_rate": 0.8},
        ),
    ),
    "mori": ArmKind(
        MoriArm,
        "fcfs",
        _option_combinations({}, {"new": 0.5}, {"new": 0.2}, {"new": 0.0}),
    ),
    "gittins": ArmKind(
        GittinsArm,
        "priority",
        _option_combinations(
            {}, {"by": "age"}, {"by": "length"}, {"by": "length", "placed": "pinned"}
        ),
    ),
}


def _crossed(
    grid: Iterable[ArmOptions], name: str, values: Sequence[object]
) -> tuple[ArmOptions, ...]:
    """Return all options of a grid with each value of one more option."""
    return tuple((*options, (name, value)) for options in grid for value in values)


APPLICATION_ARMS: Mapping[str, ArmKind] = {
    **ARMS,
    "cache-ttl": ArmKind(
        CacheTtlArm,
        "priority",
        (
            *_option_combinations({"ttl_s": 0.5}, {"ttl_s": 2.0}, {"ttl_s": 10.0}, {}),
            *_option_combinations({"ttl_s": 2.0, "placed": "lmetric"}, {"placed": "lmetric"}),
        ),
    ),
    "thunder-agent": ArmKind(
        ThunderAgentArm,
        "fcfs",
        _crossed(ARMS["thunder-agent"].grid, "context", ("sum", "longest")),
    ),
    "concur": ArmKind(
        ConcurArm,
        "fcfs",
        (
            *ARMS["concur"].grid,
            *_option_combinations(
                {"low": 0.5, "high": 0.8, "hit_rate": 0.5, "start": 16.0},
                {"low": 0.8, "high": 0.95, "hit_rate": 0.5},
            ),
        ),
    ),
    "mori": ArmKind(MoriArm, "fcfs", _crossed(ARMS["mori"].grid, "context", ("sum", "longest"))),
    "vtc": ArmKind(partial(CoreArm, policy="vtc"), "priority"),
}
"""Schedulers of applications; `vtc` is the reference of fairness."""
