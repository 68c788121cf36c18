"""The schedulers (arms) by name, each with the settings among which a report selects the best.

`justitia` and its variants are this project's scheduling core. The others are `rivals`:
re-implementations of other schedulers.
"""

from collections.abc import Callable, Mapping
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


def _grid(*options: Mapping[str, object]) -> tuple[ArmOptions, ...]:
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
        _grid(
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
        _grid({}, {"decays": True}, {"acting_weight": 0.25}, {"acting_weight": 0.1}),
    ),
    "concur": ArmKind(
        ConcurArm,
        "fcfs",
        _grid(
            {},
            {"hit_rate": 0.8},
            {"low": 0.5, "high": 0.8, "hit_rate": 0.5},
            {"low": 0.5, "high": 0.8, "hit_rate": 0.8},
        ),
    ),
    "mori": ArmKind(
        MoriArm,
        "fcfs",
        _grid({}, {"new": 0.5}, {"new": 0.2}, {"new": 0.0}),
    ),
    "gittins": ArmKind(
        GittinsArm,
        "priority",
        _grid({}, {"by": "age"}, {"by": "length"}, {"by": "length", "placed": "pinned"}),
    ),
}
