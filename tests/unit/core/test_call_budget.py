"""Cost of a decision in calls of the package's functions, which is equal on every machine.

A submission that is granted takes 136 under `justitia`, a report of 15 leases 173; both are held
near that.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import justitia_ray
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import ReplicaCapacity

PACKAGE = str(Path(justitia_ray.__file__).parent)
LEASES = 15


def count_package_calls(act: Callable[[], object]) -> int:
    """Return the number of calls of the package's functions while `act` runs."""
    count = 0

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


class RunningLoad:
    """Applications with one running inference each, on one replica with free memory."""

    def __init__(self, policy: str) -> None:
        self.core = SchedulerCore(policy)
        self.now = 100.0
        for number in range(LEASES):
            self._open_application(f"a{number}")
            self.submit_inference(f"r{number}", f"a{number}")
        self.report_progress({})
        self.leases = dict.fromkeys(self.core.state.leases, 0)
        self.report_progress(self.leases)

    def _open_application(self, name: str) -> None:
        event = ev.ApplicationArrived(name, "class", "tenant", 1, 10_000, "i0")
        self.core.handle(event, self.now)

    def submit_inference(self, request_id: str, name: str) -> object:
        event = ev.InferenceSubmitted(request_id, name, request_id, "i0", 100, 50, 100)
        return self.core.handle(event, self.now)

    def report_progress(self, made: dict[str, int]) -> object:
        """Report the tokens generated under each lease, and ask for work."""
        self.now += 0.25
        progress = [ev.LeaseProgress(name, 100, n, running=True) for name, n in made.items()]
        capacity = ReplicaCapacity(100_000, 16, 256)
        event = ev.ReplicaPulled("r0", capacity, 50_000, tuple(progress))
        return self.core.handle(event, self.now)


@pytest.mark.parametrize(("policy", "most"), [("justitia", 140), ("fcfs", 134)])
def test_granted_submission_stays_within_its_call_budget(policy: str, most: int) -> None:
    load = RunningLoad(policy)

    assert count_package_calls(lambda: load.submit_inference("next", "a0")) <= most
    assert "next" in {lease.request_id for lease in load.core.state.leases.values()}


@pytest.mark.parametrize(("policy", "most"), [("justitia", 176), ("fcfs", 176)])
def test_report_of_fifteen_leases_stays_within_its_call_budget(policy: str, most: int) -> None:
    load = RunningLoad(policy)
    made = dict.fromkeys(load.leases, 8)

    assert count_package_calls(lambda: load.report_progress(made)) <= most
    assert {8} == {i.output_tokens for i in load.core.state.inferences.values()}
