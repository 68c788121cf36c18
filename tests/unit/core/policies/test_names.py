"""Policy and option names of an earlier version remain valid for one release."""

import re
import subprocess
import sys
from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application
from justitia_ray.core.policies import (
    Durable,
    Observer,
    Order,
    Policy,
    advice,
    in_force,
    parse_options,
)
from justitia_ray.core.policies.names import policy_path
from justitia_ray.core.queue import Key
from justitia_ray.core.snapshot import restore
from justitia_ray.errors import ConfigError
from tests.core_driver import CoreDriver


@pytest.mark.parametrize(
    ("options", "meant", "said"),
    [
        ({}, ("justitia", {}), None),
        ({"backfill": 8}, ("justitia", {"backfill": 8}), None),
        (
            {"order": "finish", "backfill": 8},
            ("justitia", {"backfill": 8}),
            "policy_options: leave out order: policy: justitia has no other order",
        ),
        (
            {"order": "sgps", "backfill": 8},
            ("justitia-guarded", {"order": "sgps", "backfill": 8, "guard_iterations": 0}),
            "policy: order moved: use policy: justitia-guarded, with policy_options "
            "guard_iterations: 0 added",
        ),
        (
            {"kv_share_cap": 0.5, "backfill": 8},
            ("justitia", {"backfill": 8}),
            "policy_options: leave out kv_share_cap: this release has no such option",
        ),
        (
            {"order": "sgps", "guard_iterations": 300},
            ("justitia-guarded", {"order": "sgps", "guard_iterations": 300}),
            "policy: order and guard_iterations moved: use policy: justitia-guarded",
        ),
    ],
)
def test_old_options_of_justitia_select_the_guarded_policy(
    options: dict[str, object], meant: tuple[str, dict[str, object]], said: str | None
) -> None:
    """Old option names keep their old defaults, which differ from those of the new policy."""
    assert meant == in_force("justitia", options)
    assert said == advice("justitia", options)
    core = SchedulerCore("justitia", options)
    assert meant[0] == core.ledger.policy_name
    assert in_force(*meant) == meant
    # a caller that does not translate the option gets an error with the new name
    if meant != ("justitia", options):
        with pytest.raises(ConfigError, match=re.escape(str(said))):
            parse_options("justitia", options)
    assert advice(*meant) is None


@pytest.mark.parametrize("fairness", ["application", "tenant"])
def test_snapshot_of_justitia_with_a_guard_is_restored_as_justitia_guarded(
    fairness: str,
) -> None:
    """A snapshot of an earlier version names the policy `justitia`."""
    options: dict[str, object] = {"guard_iterations": 300, "fairness": fairness}
    driver = CoreDriver(SchedulerCore("justitia", options, lease_prefix="1-"))
    driver.open("a", 300, tenant="t")
    driver.submit("a1")
    driver.submit("a2")
    driver.pull(seats=1)
    driver.now += 2
    driver.pull(seats=1, progress={"1-1": 5})
    record = driver.record()
    assert record["clock"]["counted"]
    record["clock"]["policy"] = "justitia"
    successor = SchedulerCore("justitia-guarded", {"order": "finish", "fairness": fairness})
    successor.recover([], driver.now)
    restore(successor, record["clock"], record["applications"])

    old, new = driver.core.ledger.policy, successor.ledger.policy
    assert isinstance(old, Durable)
    assert isinstance(new, Durable)
    assert old.state() == new.state()
    assert old.application_state("a") == new.application_state("a")


def _public_methods(interface: type) -> list[str]:
    return [name for name, value in vars(interface).items() if callable(value) and name[0] != "_"]


@pytest.mark.parametrize("interface", [Order, Observer, Durable, Policy])
def test_interface_of_a_policy_has_at_most_eight_methods(interface: type) -> None:
    """A policy decides the order, counts service and stores its state."""
    assert len(_public_methods(interface)) <= 8


_IMPORTED = """
import asyncio, sys
import justitia_ray.serve.scheduler.actor
from justitia_ray.config import SchedulerSection
from justitia_ray.core import events as ev
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.serve.scheduler.core_driver import CoreDriver
from justitia_ray.serve.scheduler.outboxes import Outboxes
from justitia_ray.store.scheduler_store import StoredState
async def main():
    section = SchedulerSection(lag_meter={lag_meter})
    driver = CoreDriver(section, SteadyClock(), Outboxes(), "m")
    driver.begin(StoredState(None, {{}}, {{"policy": {policy!r}}}, {{}}), 1)
    driver.apply(ev.ApplicationArrived("a", "class", "tenant", 1, 100, "i0"))
    driver.apply(ev.InferenceSubmitted("x", "a", "x", "i0", 10, 10, 10))
    driver.apply(ev.InferenceSubmitted("y", "a", "y", "i0", 10, 10, 10))
    driver.apply(ev.ReplicaPulled("r", ReplicaCapacity(30, 1, 4), 30))
    assert len(driver.core.state.leases) == 1
    assert driver.core.lag("a") is not None
    driver.apply(ev.ApplicationCancelled("a"))
asyncio.run(main())
print(*(name for name in sys.modules if name.startswith("justitia_ray")))
"""


def _imported_modules(policy: str, *, lag_meter: bool = False) -> set[str]:
    """Return the modules imported by a process whose scheduler has granted a lease."""
    source = _IMPORTED.format(policy=policy, lag_meter=lag_meter)
    done: Any = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


def test_scheduler_under_justitia_imports_no_optional_policy_and_no_lab() -> None:
    """An option that is off must cost nothing, not even its import."""
    guarded, lag = "justitia_ray.core.policies.guarded", "justitia_ray.core.lag."
    lab = "justitia_ray.lab"
    holds = "justitia_ray.core.kept_contexts", "justitia_ray.serve.scheduler.context_holds"
    off, on = _imported_modules("justitia"), _imported_modules("justitia-guarded", lag_meter=True)

    assert set() == {name for name in off if name.startswith((guarded, lag, lab, *holds))}
    assert {f"{guarded}.shadow", f"{lag}meter"} <= on
    assert set() == {name for name in on if name.startswith(lab)}


class _PolicyWithProperty(Policy):
    """Custom policy that declares `moves_with_service` as a property, as older policies do."""

    def key(self, client: str, first: Application) -> Key:
        return (first.sequence,)

    @property
    def moves_with_service(self) -> bool:  # type: ignore[override]
        return True


def test_policy_declares_with_a_property_that_service_moves_its_keys() -> None:
    core = SchedulerCore(f"{__name__}:_PolicyWithProperty")

    assert core.ledger.policy.moves_with_service


@pytest.mark.parametrize("name", ["drr", "rpm", "lcf", "mlfq", "plas"])
def test_counters_stored_under_an_old_policy_name_are_restored(name: str) -> None:
    path = policy_path(name)
    driver = CoreDriver(SchedulerCore(path))
    driver.open("a")
    driver.pull()
    driver.submit("a1", "a", prompt=100)
    driver.pull(progress={driver.lease_of("a1"): 5})
    record = driver.record()
    record["clock"]["policy"] = name
    driver.hand_over(SchedulerCore(path), record=record)
    policy = driver.core.ledger.policy

    assert isinstance(policy, Durable)
    assert record["clock"]["counted"] == policy.state()
