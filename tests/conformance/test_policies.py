"""Rules that every policy keeps, regardless of its order."""

import json
from collections.abc import Callable, Mapping

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.policies import LAB_POLICIES, POLICIES, find_policy, policy_path
from justitia_ray.core.policies.options import UNIT
from justitia_ray.core.policies.vtc import VtcPolicy
from justitia_ray.core.snapshot import clock_record
from justitia_ray.cost import kv_token_time, weighted_tokens
from tests.conformance.policy_service import Service
from tests.core_driver import CoreDriver, aborted, ended, granted, refused

Options = Mapping[str, object]

NAMES = (*POLICIES, *LAB_POLICIES)

_OWN: dict[str, Options] = {
    "rpm": {"requests_per_minute": 4},  # so that clients are delayed
    "drr": {"quantum": 20},
    "mlfq": {"quantum": 500},
    "justitia-guarded": {"fairness": "tenant"},
}
"""Policy options under which a small load shows the effect of each policy."""
_OF_TENANTS: dict[str, Options] = {"rpm": {"requests_per_minute": 12}}
"""Options for runs in which each client is a tenant, and so has more work."""
_ORDERED_BY_LENGTH = {"sjf"}
"""Policies that order inferences by their own length instead of their application's."""


def _variants() -> list[tuple[str, Options]]:
    """Return every policy with its options, and again with tenants as clients where supported."""
    variants: list[tuple[str, Options]] = [(name, _OWN.get(name, {})) for name in NAMES]
    variants += [
        (name, {**_OWN.get(name, {}), **_OF_TENANTS.get(name, {}), "unit": "tenant"})
        for name in NAMES
        if UNIT in find_policy(policy_path(name)).OPTIONS
    ]
    accounts: list[Options] = [
        {"fairness": "tenant"},
        {"fairness": "tenant", "cost": "compute"},
        {"cost": "compute"},
        {"clock": "nominal"},
    ]
    passing: list[Options] = [
        {"fairness": "tenant", "order": "sgps", "guard_iterations": 0},
        {"fairness": "tenant", "order": "sgps", "guard_iterations": 30},
        {"fairness": "tenant", "order": "finish", "guard_iterations": 300},
    ]
    variants += [("justitia", options) for options in accounts]
    return variants + [("justitia-guarded", options) for options in passing]


pytestmark = pytest.mark.parametrize(
    ("policy", "options"),
    [
        pytest.param(name, options, id="-".join([name, *map(str, options.values())]))
        for name, options in _variants()
    ],
)


def _open_application(driver: CoreDriver, name: str, tenant: str) -> None:
    driver.handle(ev.ApplicationArrived(name, "class", tenant, 1, 100, "i0", 100))


def test_no_inference_is_lost_or_duplicated(policy: str, options: Options) -> None:
    service = Service(policy, options)
    service.load()
    service.run()
    ends = service.ends()

    assert sorted(service.submitted) == sorted(granted(service.log))
    assert sorted({name.split("/")[0] for name in service.submitted}) == sorted(
        end.application_id for end in ends
    )
    assert len(service.submitted) == sum(end.inferences for end in ends)
    assert sum(service.outputs.values()) == sum(end.output_tokens for end in ends)


def test_no_inference_is_lost_or_duplicated_when_replicas_die(
    policy: str, options: Options
) -> None:
    """Engines and replicas die, and one joins; interrupted inferences run again and end once."""
    service = Service(policy, options)
    service.load()
    service.break_engine("r0")
    service.step()
    service.fail_one("r1")
    service.step()
    service.lose_replica("r1")
    service.step()
    service.add_replica("r2", ReplicaCapacity(400, 1, 5))
    service.run()
    ends = service.ends()

    assert set(service.submitted) == set(granted(service.log))
    assert 6 == len({end.application_id for end in ends}) == len(ends)
    assert len(service.submitted) == sum(end.inferences for end in ends)
    assert 1 == sum(end.failed for end in ends)


@pytest.mark.parametrize("tenants", ["one", "own"])
def test_equal_applications_are_served_in_order_of_arrival(
    policy: str, options: Options, tenants: str
) -> None:
    """Equal applications are ordered by arrival, never by a hash."""
    driver = CoreDriver(
        SchedulerCore(policy_path(policy), {**options, **_options_without_limit(policy)})
    )
    names = ["c", "a", "b", "e", "d"]
    for name in names:
        _open_application(driver, name, "t" if tenants == "one" else f"of {name}")
        driver.submit(f"{name}1", name)

    assert [f"{name}1" for name in names] == granted(driver.pull())


def test_inferences_of_an_application_are_served_in_order_of_submission(
    policy: str, options: Options
) -> None:
    """Experiments showed no gain from serving the longest or the shortest inference first.

    Under `sjf` the order is that of the predicted lengths.
    """
    driver = CoreDriver(
        SchedulerCore(policy_path(policy), {**options, **_options_without_limit(policy)})
    )
    driver.open()
    lengths = {f"x{number}": 5 + number * number % 11 for number in range(6)}
    for number, (name, length) in enumerate(lengths.items()):
        driver.submit(name, prompt=60 - number * 7, output=length)
    expected = list(lengths)
    if policy in _ORDERED_BY_LENGTH:
        expected.sort(key=lengths.__getitem__)  # stable for equal lengths

    assert expected == granted(driver.pull())


def test_sort_keys_of_applications_are_unique(policy: str, options: Options) -> None:
    """Every sort key ends in a sequence number, so that two ids are never compared."""
    driver = CoreDriver(SchedulerCore(policy_path(policy), options))
    for name in "abcdef":
        _open_application(driver, name, f"of {name}")
        driver.submit(f"{name}1", name)
    order = driver.core.ledger.policy
    applications = driver.core.state.applications.values()

    assert 6 == len({order.key(order.client(a), a) for a in applications})


def _apply_further_events(service: Service) -> None:
    """Apply a mix of scheduler events: arrivals, weight changes, lost replicas, cancellations."""
    service.step()
    service.load(1, first=3)
    service.handle(ev.WeightChanged("b3", 3))
    service.add_replica("r2", ReplicaCapacity(260, 1, 4))
    service.step()
    service.handle(ev.InferenceCancelled("a3/1"))
    service.fail_one("r2")
    service.step()
    service.break_engine("r0")
    service.load(1, first=4)
    service.lose_replica("r1")
    service.handle(ev.ApplicationCancelled("b4"))
    service.run()


@pytest.mark.parametrize("steps", [0, 3, 9])
def test_scheduler_restart_does_not_change_later_grants(
    policy: str, options: Options, steps: int
) -> None:
    """The stored state must contain everything that affects the order of grants.

    One run continues; in the other a new scheduler starts from the stored state, the ingress
    resubmits everything, and the replicas report. From then on both make the same grants in the
    same order at the same replicas with the same priorities, and the same ends.
    """
    runs = []
    for restarts in (False, True):
        service = Service(policy, options)
        service.load()
        for _ in range(steps):
            service.step()
        service.log.clear()
        assert service.running_ids()
        if restarts:
            service.restart()
        service.report()

        assert [] == service.log, "nothing has changed, and something was done"

        _apply_further_events(service)
        runs.append(service)

    assert runs[0].executed_actions() == runs[1].executed_actions()


@pytest.mark.parametrize("steps", [0, 3, 9])
def test_scheduler_restart_after_lost_replicas_loses_no_inference(
    policy: str, options: Options, steps: int
) -> None:
    """Inferences that wait again before the restart run once, and running ones continue.

    After a restart the progress of earlier attempts is unknown. The service that is not booked
    again goes to the application's first inferences that report, so the order may differ from that
    without a restart.
    """
    service = Service(policy, options)
    service.load()
    for _ in range(steps):
        service.step()
    service.break_engine("r0")
    service.step()
    running = service.running_ids()
    leases = {service.holds[name] for name in running}
    service.restart()
    adopted_from = len(service.log)
    service.run()

    assert running
    assert set(service.submitted) == set(granted(service.log))
    assert not running & set(granted(service.log[adopted_from:]))
    assert not leases & set(aborted(service.log[adopted_from:]))
    assert 6 == len({name for name, _ in ended(service.log)}) == len(ended(service.log))


def test_cancelled_application_is_charged_only_for_started_inferences(
    policy: str, options: Options
) -> None:
    """A cancelled application pays for its running inferences until they are aborted."""
    service = Service(policy, options)
    service.load()
    driver = service.driver
    share = driver.core.ledger.fair_share
    victim = next(
        name
        for name, application in driver.core.state.applications.items()
        if application.in_flight
    )
    held = {
        lease_id: held
        for fake in service.replicas.values()
        for lease_id, held in fake.held.items()
        if service.owners[lease_id].startswith(f"{victim}/")
    }
    ended_before = driver.application(victim).kv_token_time - sum(
        driver.inference(service.owners[lease_id]).attained for lease_id in held
    )
    service.make_tokens(1)
    actions = service.handle(ev.ApplicationCancelled(victim))
    before = len(ended(service.log))
    service.report()
    (end, *_) = service.ends()[before:]
    served = ended_before + sum(kv_token_time(one.prompt, one.made) for one in held.values())

    assert (victim, "cancelled", served) == (
        end.application_id,
        end.outcome.value,
        end.kv_token_time,
    )
    assert sorted(held) == sorted(aborted(actions))
    assert all(name.startswith(f"{victim}/") for name, _ in refused(actions))
    assert victim not in share.accounts

    service.run()

    assert 6 == len(ended(service.log))


def test_ended_applications_leave_no_state(policy: str, options: Options) -> None:
    """A service runs for months, so ended applications must free their memory."""
    service = Service(policy, options)
    service.load()
    service.handle(ev.InferenceCancelled("a2/0"))
    service.handle(ev.ApplicationCancelled("b2"))
    service.break_engine("r1")
    service.run()
    state = json.dumps(clock_record(service.driver.core)["counted"], allow_nan=False)

    assert not [name for name in service.submitted if f'"{name}"' in state]
    assert not [name for name, _ in ended(service.log) if f'"{name}"' in state]


def _cancel_waiting(driver: CoreDriver) -> tuple[int, int]:
    driver.submit("x", prompt=10, output=20)
    driver.handle(ev.InferenceCancelled("x"))
    return 0, 0


def _cancel_running(driver: CoreDriver) -> tuple[int, int]:
    """Cancel a running inference with 5 of 20 tokens made, 2 of them not yet reported."""
    driver.submit("x", prompt=10, output=20)
    lease = next(iter(driver.core.state.leases), None)
    if lease is None:
        driver.pull()
        lease = driver.lease_of("x")
    driver.pull(progress={lease: 3})
    driver.handle(ev.InferenceCancelled("x"))
    driver.last_word(lease, prompt=10, output=5)
    return 10, 5


@pytest.mark.parametrize("cancel", [_cancel_waiting, _cancel_running])
def test_cancelled_inference_is_charged_the_service_that_it_received(
    policy: str, options: Options, cancel: Callable[[CoreDriver], tuple[int, int]]
) -> None:
    """A policy that charges an inference in advance refunds the unused part."""
    driver = CoreDriver(SchedulerCore(policy_path(policy), options))
    driver.open(cost=1000)
    prompt, output = cancel(driver)
    order = driver.core.ledger.policy

    assert 10 * output + output * (output + 1) // 2 == driver.application().kv_token_time
    if isinstance(order, VtcPolicy):
        assert weighted_tokens(prompt, output) == order.counters.level(
            order.client(driver.application())
        )


def _options_without_limit(policy: str) -> Options:
    """Return policy options under which no client is delayed by a rate limit."""
    return {"requests_per_minute": 100} if policy == "rpm" else {}
