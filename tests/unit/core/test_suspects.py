"""Inferences of a dead engine (suspects) run on separate engines until the killer is found."""

from collections.abc import Iterable, Mapping, Sequence

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.entities import FailureCause, Outcome
from justitia_ray.core.invariants import InvariantViolation, check
from justitia_ray.core.suspects import RENAMED
from justitia_ray.errors import StoreError
from tests.core_driver import PATIENT, CoreDriver, aborted, ended, granted, refused

_KILLER = "engine_killer"


class Fleet:
    """Replicas under a core with `fcfs` and without timeouts.

    Attributes:
        driver: Driver of the core.
        refused: (request id, reason) of refused inferences, in order.
    """

    def __init__(self, replicas: int, *, deaths_allowed: int = 2, prefix: str = "") -> None:
        self.driver = CoreDriver(_create_core(deaths_allowed, prefix))
        self.refused: list[tuple[str, str]] = []
        self._up = 0
        for _ in range(replicas):
            self.start_replica()

    def start_replica(self) -> str:
        """Start a replica and return its name."""
        name, self._up = f"r{self._up}", self._up + 1
        self.report_granted(self.driver.pull(name))
        return name

    def report_granted(self, actions: Sequence[Action]) -> None:
        """Let replicas report at once the leases they were granted."""
        self.refused += refused(actions)
        for name in sorted({a.replica_id for a in actions if isinstance(a, Grant)}):
            self.report_leases(name)

    def report_leases(self, replica_id: str, finished: Iterable[str] = ()) -> None:
        """Let a replica report all its leases, and the given ends."""
        ends = {self.driver.lease_of(name): 1 for name in finished}
        held = dict.fromkeys(self.driver.core.state.replicas[replica_id].leases, 1)
        running = {lease_id: n for lease_id, n in held.items() if lease_id not in ends}
        self.report_granted(self.driver.pull(replica_id, running, ends))

    def submit_inferences(self, *names: str) -> None:
        """Submit inferences, each of its own application."""
        for name in names:
            self.driver.open(name)
            self.report_granted(self.driver.submit(name, name))

    def advance_time(self, seconds: float) -> None:
        """Advance the time and let all replicas report."""
        self.report_granted(self.driver.wait(seconds))
        for name in list(self.driver.core.state.replicas):
            if not self.driver.core.state.replicas[name].draining:
                self.report_leases(name)

    def kill_engine(
        self,
        replica_id: str,
        ran_s: float | Mapping[str, float] = 0.3,
        cause: FailureCause = FailureCause.CRASH,
    ) -> list[Action]:
        """Kill the engine of a replica; the replica leaves."""
        leases = self.driver.core.state.replicas[replica_id].leases
        ran = [(lease, self.driver.core.state.leases[lease].request_id) for lease in leases]
        took = {
            lease: ran_s if isinstance(ran_s, float) else ran_s.get(name, 0.3)
            for lease, name in ran
        }
        runs = tuple(ev.LeaseRun(lease, took[lease]) for lease, _ in ran)
        actions = self.driver.handle(ev.EngineFailed(replica_id, replica_id, cause, runs))
        self.report_granted(actions)
        self.report_granted(self.driver.handle(ev.ReplicaLost(replica_id)))
        return actions

    def crash_process(self, replica_id: str) -> list[Action]:
        """Crash the process of a replica; its loss is reported later."""
        actions = self.driver.handle(ev.ReplicaCrashed(replica_id))
        self.report_granted(actions)
        return actions

    def lose_connection(self, name: str) -> None:
        """Reject a lease because the connection to its replica was lost."""
        lease_id = self.driver.lease_of(name)
        self.report_granted(self.driver.handle(ev.LeaseNacked(lease_id, ev.NackReason.CONNECTION)))

    def inferences_by_replica(self) -> dict[str, list[str]]:
        """Return the names of the inferences on each replica."""
        state = self.driver.core.state
        return {
            name: sorted(state.leases[lease].request_id for lease in replica.leases)
            for name, replica in state.replicas.items()
        }

    def replica_of(self, name: str) -> str:
        return self.driver.core.state.leases[self.driver.lease_of(name)].replica_id


def _create_core(deaths_allowed: int = 2, prefix: str = "") -> SchedulerCore:
    return SchedulerCore(
        "fcfs", timeouts=PATIENT, lease_prefix=prefix, deaths_allowed=deaths_allowed
    )


def test_each_suspect_of_an_engine_death_runs_on_a_separate_engine() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a", "b", "c")
    for _ in range(2):
        fleet.start_replica()
    fleet.kill_engine("r0")
    fleet.advance_time(1.0)

    assert {"r1": ["a"], "r2": ["b"]} == fleet.inferences_by_replica()
    assert ["c"] == fleet.driver.waiting("c")
    fleet.submit_inferences("x", "y")
    assert ["c"] == [name for name in "abcxy" if name in fleet.driver.waiting(name)]


def test_inference_that_kills_two_engines_is_refused() -> None:
    fleet = Fleet(4)
    innocent = [f"s{k}" for k in range(10)]
    fleet.submit_inferences(*innocent, "poison")
    deaths = 0
    while "poison" in fleet.driver.core.state.inferences:
        if not fleet.driver.waiting("poison"):
            fleet.advance_time(0.3)
            fleet.kill_engine(fleet.replica_of("poison"))
            deaths += 1
        fleet.advance_time(1.0)

    assert deaths == 2
    assert [("poison", _KILLER)] == fleet.refused
    assert 0 == fleet.driver.core.suspects.open_count
    assert all(not fleet.driver.waiting(name) for name in innocent)
    for replica_id, names in fleet.inferences_by_replica().items():
        fleet.report_leases(replica_id, names)
    assert not fleet.driver.core.state.inferences


def test_call_that_kills_engines_is_found_on_a_single_replica() -> None:
    """On one replica suspects run one after the other, until each is cleared."""
    fleet = Fleet(1)
    fleet.submit_inferences("a", "b", "poison")
    fleet.kill_engine("r0", {"a": 3.0, "b": 2.0})
    fleet.start_replica()
    fleet.advance_time(1.0)
    assert {"r1": ["a"]} == fleet.inferences_by_replica()
    fleet.advance_time(3.4)
    assert {"r1": ["a"]} == fleet.inferences_by_replica()
    fleet.advance_time(0.2)
    assert {"r1": ["a", "b"]} == fleet.inferences_by_replica()
    fleet.advance_time(2.5)
    assert {"r1": ["a", "b", "poison"]} == fleet.inferences_by_replica()
    fleet.kill_engine("r1")
    assert not fleet.refused

    fleet.start_replica()
    fleet.advance_time(1.0)
    fleet.report_leases("r2", ["a"])
    fleet.advance_time(0.0)
    assert {"r2": ["b"]} == fleet.inferences_by_replica()
    fleet.advance_time(2.6)
    assert {"r2": ["b"]} == fleet.inferences_by_replica()
    fleet.report_leases("r2", ["b"])
    assert {"r2": ["poison"]} == fleet.inferences_by_replica()
    fleet.kill_engine("r2")
    assert [("poison", _KILLER)] == fleet.refused


def test_inference_beside_a_killer_in_two_engine_deaths_is_not_blamed() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a", "poison")
    for dead, alive in (("r0", "r1"), ("r1", "r2")):
        fleet.kill_engine(dead)
        assert alive == fleet.start_replica()
        fleet.advance_time(1.0)
        fleet.advance_time(1.0)
        fleet.advance_time(1.0)
        assert {alive: ["a", "poison"]} == fleet.inferences_by_replica()
    fleet.kill_engine("r2")

    assert not fleet.refused
    assert 2 == fleet.driver.core.suspects.open_count


def test_inference_beside_two_different_killers_is_not_blamed() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a", "first")
    fleet.start_replica()
    fleet.submit_inferences("second")
    assert "r1" == fleet.replica_of("second")
    fleet.kill_engine("r0", {"a": 3.0})
    fleet.advance_time(1.0)
    assert {"r1": ["a", "second"]} == fleet.inferences_by_replica()
    fleet.kill_engine("r1", {"a": 0.1})

    assert not fleet.refused
    fleet.start_replica()
    assert {"r2": ["first"]} == fleet.inferences_by_replica()
    fleet.kill_engine("r2")
    assert [("first", _KILLER)] == fleet.refused
    assert 2 == fleet.driver.core.suspects.open_count


def test_two_killers_of_one_engine_are_found_one_after_the_other() -> None:
    fleet = Fleet(3)
    fleet.submit_inferences("x", "y", "z")
    fleet.report_leases("r1", ["y"])
    fleet.report_leases("r2", ["z"])
    fleet.driver.handle(ev.PullAnswered("r1"))
    fleet.driver.handle(ev.PullAnswered("r2"))
    fleet.submit_inferences("one", "two")
    assert ["one", "two", "x"] == fleet.inferences_by_replica()["r0"]
    fleet.kill_engine("r0")
    fleet.advance_time(1.0)
    fleet.start_replica()
    assert {"one", "two", "x"} == {names[0] for names in fleet.inferences_by_replica().values()}
    fleet.kill_engine(fleet.replica_of("one"))
    fleet.kill_engine(fleet.replica_of("two"))
    assert [("one", _KILLER)] == fleet.refused
    fleet.advance_time(1.0)
    fleet.kill_engine(fleet.replica_of("two"))

    assert [("one", _KILLER), ("two", _KILLER)] == fleet.refused


@pytest.mark.parametrize("gone", ["its ingress is silent", "it was cancelled"])
def test_killer_retried_under_another_id_leaves_other_inferences_unblamed(gone: str) -> None:
    """A caller that lost its ingress retries the killing call under a new id."""
    fleet = Fleet(1)
    fleet.submit_inferences("a")
    fleet.driver.open("poison", ingress_id="i1")
    fleet.report_granted(fleet.driver.submit("poison", "poison", ingress_id="i1"))
    fleet.advance_time(0.3)
    fleet.kill_engine("r0")
    if gone == "it was cancelled":
        fleet.report_granted(fleet.driver.handle(ev.InferenceCancelled("poison")))
    fleet.advance_time(1.0)
    fleet.submit_inferences("again")
    fleet.start_replica()
    fleet.advance_time(1.0)
    assert {"a", "again"} <= set(fleet.inferences_by_replica()["r1"])
    fleet.kill_engine("r1")
    assert not fleet.refused

    for _ in range(3):
        fleet.start_replica()
    fleet.advance_time(1.0)
    fleet.kill_engine(fleet.replica_of("again"))
    assert [("again", _KILLER)] == fleet.refused


def test_success_of_an_equal_call_does_not_clear_a_killer() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("poison", "a")
    fleet.kill_engine("r0")
    fleet.start_replica()
    fleet.start_replica()
    fleet.advance_time(1.0)
    free = fleet.replica_of("a")
    fleet.report_leases(free, ["a"])
    fleet.driver.handle(ev.ReplicaLost(free))
    fleet.submit_inferences("b")
    assert [["b", "poison"]] == list(fleet.inferences_by_replica().values())
    fleet.kill_engine(fleet.replica_of("poison"))

    assert [("poison", _KILLER)] == fleet.refused


@pytest.mark.parametrize("allowed", [1, 3])
def test_number_of_engine_deaths_before_a_refusal_is_configurable(allowed: int) -> None:
    fleet = Fleet(1, deaths_allowed=allowed)
    fleet.submit_inferences("poison")
    for death in range(allowed):
        assert not fleet.refused
        fleet.kill_engine(f"r{death}")
        fleet.start_replica()
        fleet.advance_time(1.0)

    assert [("poison", _KILLER)] == fleet.refused


def test_engine_death_makes_no_suspects_if_their_detection_is_disabled() -> None:
    fleet = Fleet(1, deaths_allowed=0)
    fleet.submit_inferences("a", "b")
    for death in range(3):
        fleet.kill_engine(f"r{death}")
        fleet.start_replica()
        assert {f"r{death + 1}": ["a", "b"]} == fleet.inferences_by_replica()

    assert 0 == len(fleet.driver.core.suspects.known)


def test_engine_killed_from_outside_and_lost_replica_make_no_suspects() -> None:
    fleet = Fleet(2)
    fleet.submit_inferences("a", "b", "c", "d")
    for death in range(6):
        if death % 2:
            fleet.report_granted(fleet.driver.handle(ev.ReplicaLost(f"r{death}")))
        else:
            fleet.kill_engine(f"r{death}", cause=FailureCause.KILL)
        fleet.start_replica()

    assert 0 == len(fleet.driver.core.suspects.known)
    assert not fleet.refused
    assert {FailureCause.CRASH: 0, FailureCause.KILL: 3} == (
        fleet.driver.core.state.counters.engine_failures
    )


def test_lease_that_never_reached_the_engine_is_no_suspect() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a")
    fleet.driver.open("late")
    fleet.driver.submit("late", "late")
    ran = (ev.LeaseRun(fleet.driver.lease_of("a"), 0.3),)
    fleet.driver.handle(ev.EngineFailed("r0", "r0", FailureCause.CRASH, ran))
    assert ["late"] == fleet.driver.waiting("late")
    fleet.start_replica()

    assert {"r0": [], "r1": ["late"]} == fleet.inferences_by_replica()
    assert 1 == fleet.driver.core.suspects.open_count


def test_engine_death_reported_twice_counts_once() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a")
    runs = (ev.LeaseRun(fleet.driver.lease_of("a"), 0.3),)
    fleet.kill_engine("r0")
    fleet.start_replica()
    fleet.advance_time(1.0)
    fleet.driver.handle(ev.EngineFailed("r0", "r0", FailureCause.CRASH, runs))

    assert not fleet.refused
    assert {"r1": ["a"]} == fleet.inferences_by_replica()


def test_suspects_that_fit_no_replica_may_be_overtaken() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences(*(f"s{k}" for k in range(40)))
    fleet.start_replica()
    fleet.kill_engine("r0")
    fleet.advance_time(1.0)
    fleet.submit_inferences("x")

    assert {"r1": ["s0", "x"]} == fleet.inferences_by_replica()
    fleet.advance_time(0.9)
    fleet.advance_time(0.9)
    assert {"r1": ["s0", "s1", "s2", "x"]} == fleet.inferences_by_replica()


def test_suspect_of_a_silent_ingress_reserves_no_engine() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a")
    fleet.driver.open("silent", ingress_id="i1")
    fleet.report_granted(fleet.driver.submit("silent", "silent", ingress_id="i1"))
    inference = fleet.driver.inference("silent")
    fleet.kill_engine("r0")
    fleet.driver.core.ledger.leave(fleet.driver.application("silent"), inference)
    fleet.driver.core.ingresses.suspend(fleet.driver.application("silent"), inference)
    fleet.driver.core.ingresses.suspect.add("i1")
    fleet.submit_inferences("x")
    fleet.start_replica()

    assert {"r1": ["x"]} == fleet.inferences_by_replica()


def test_waiting_suspect_does_not_delay_its_application() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a")
    fleet.driver.open("b")
    fleet.report_granted(fleet.driver.submit("b1", "b"))
    fleet.kill_engine("r0")
    fleet.start_replica()
    fleet.advance_time(1.0)
    fleet.report_granted(fleet.driver.submit("b2", "b"))

    assert {"r1": ["a", "b2"]} == fleet.inferences_by_replica()
    assert ["b1"] == fleet.driver.waiting("b")
    fleet.report_leases("r1", ["a"])
    assert {"r1": ["b1", "b2"]} == fleet.inferences_by_replica()


def test_suspect_runs_on_the_emptiest_replica() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a")
    fleet.start_replica()
    fleet.submit_inferences("w")  # r1 has the most free memory
    fleet.start_replica()
    fleet.kill_engine("r0")
    fleet.advance_time(1.0)
    assert {"r1": ["w"], "r2": ["a"]} == fleet.inferences_by_replica()
    fleet.submit_inferences("x", "y")

    assert {"r1": ["w", "x", "y"], "r2": ["a"]} == fleet.inferences_by_replica()


def test_cancelled_suspect_lets_the_next_suspect_run() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a", "b")
    fleet.kill_engine("r0")
    fleet.start_replica()
    fleet.advance_time(1.0)
    fleet.report_granted(fleet.driver.handle(ev.InferenceCancelled("a")))

    assert {"r1": ["b"]} == fleet.inferences_by_replica()
    fleet.report_leases("r1", ["b"])
    assert 0 == len(fleet.driver.core.suspects.known)
    assert "suspects" not in fleet.driver.record()["clock"]


def test_killer_is_blamed_although_its_neighbours_change() -> None:
    """Callers may leave after each death and call again, so any of them might be the killer."""
    fleet = Fleet(1)
    fleet.submit_inferences("poison", "n0")
    deaths = 0
    while not fleet.refused and deaths < 5:
        fleet.advance_time(0.3)
        fleet.kill_engine(f"r{deaths}")
        fleet.report_granted(fleet.driver.handle(ev.InferenceCancelled(f"n{deaths}")))
        deaths += 1
        fleet.advance_time(1.1)
        fleet.submit_inferences(f"n{deaths}")
        fleet.start_replica()

    assert ([("poison", _KILLER)], 3) == (fleet.refused, deaths)


def test_refused_killer_ends_its_application_and_counts_as_failed() -> None:
    fleet = Fleet(1, deaths_allowed=1)
    fleet.submit_inferences("poison")
    fleet.driver.handle(ev.ApplicationClosed("poison"))
    actions = fleet.kill_engine("r0")

    assert [("poison", "finished")] == ended(actions)
    assert 1 == fleet.driver.core.state.counters.ended[Outcome.FAILED]


@pytest.mark.parametrize("name", ["poison", f"poison{RENAMED}{RENAMED}"])
def test_count_of_engine_deaths_by_a_call_survives_a_scheduler_restart(name: str) -> None:
    """An ingress that timed out resubmits under other ids, but the count of deaths stays."""
    fleet = Fleet(1)
    fleet.submit_inferences("poison")
    fleet.kill_engine("r0")
    fleet.driver.hand_over(_create_core(prefix="2-"))
    fleet.driver.submit(name, "poison", resubmitted=True)
    fleet.start_replica()
    fleet.advance_time(0.3)
    fleet.kill_engine("r1")

    assert [(name, _KILLER)] == fleet.refused


def test_engine_death_reported_only_to_a_new_scheduler_counts() -> None:
    """The replica reports which leases ran, and the ingress which inferences held them."""
    fleet = Fleet(1, prefix="1-")
    fleet.submit_inferences("poison", "a")
    fleet.driver.wait(0.3)
    runs = [(fleet.driver.lease_of(name), fleet.driver.inference(name)) for name in ("poison", "a")]
    fleet.driver.hand_over(_create_core(prefix="2-"), ["r0"])
    dead = tuple(ev.LeaseRun(lease, 0.3) for lease, _ in runs)
    fleet.driver.resubmit(runs[0][1], runs[0][0])
    fleet.driver.handle(ev.EngineFailed("r0", "r0", FailureCause.CRASH, dead))
    fleet.driver.pull(
        "r0", finished=[ev.LeaseFinished(lease, 10, 1, None) for lease, _ in runs], draining=True
    )
    fleet.driver.resubmit(runs[1][1], runs[1][0])
    fleet.start_replica()
    fleet.advance_time(1.0)
    assert {"r0": [], "r1": ["poison"]} == fleet.inferences_by_replica()
    assert 2 == fleet.driver.core.suspects.open_count

    fleet.kill_engine("r1")
    assert [("poison", _KILLER)] == fleet.refused


def test_suspect_resubmitted_after_the_report_of_its_engine_death_stays_suspect() -> None:
    """Ingresses reconnect to a new scheduler one after the other."""
    fleet = Fleet(1, prefix="1-")
    fleet.submit_inferences("a", "b")
    runs = [(fleet.driver.lease_of(name), fleet.driver.inference(name)) for name in ("a", "b")]
    fleet.driver.hand_over(_create_core(prefix="2-"), ["r0"])
    dead = tuple(ev.LeaseRun(lease, 0.3) for lease, _ in runs)
    fleet.driver.handle(ev.EngineFailed("r0", "r0", FailureCause.CRASH, dead))
    fleet.driver.pull(
        "r0", finished=[ev.LeaseFinished(lease, 10, 1, None) for lease, _ in runs], draining=True
    )
    fleet.driver.resubmit(runs[0][1], runs[0][0])
    fleet.driver.handle(ev.InferenceCancelled("a"))
    fleet.driver.resubmit(runs[1][1], runs[1][0])

    assert ["b"] == list(fleet.driver.core.suspects.known)
    assert 1 == fleet.driver.core.suspects.open_count


def test_suspects_of_an_ingress_that_does_not_return_are_forgotten() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a")
    fleet.kill_engine("r0")
    fleet.driver.hand_over(SchedulerCore("fcfs"))
    assert 1 == len(fleet.driver.core.suspects.known)
    fleet.driver.wait(30.0)

    assert 0 == len(fleet.driver.core.suspects.known)


def test_error_of_a_damaged_suspect_record_names_the_record() -> None:
    driver = CoreDriver()
    driver.open()
    record = driver.record()
    record["clock"]["suspects"] = {"deaths": {}, "suspects": {"a": {"ran_s": {"r0": -1}}}}
    with pytest.raises(StoreError, match=r"clock\.suspects"):
        driver.hand_over(SchedulerCore(), record=record)


def test_two_running_suspects_on_one_replica_break_an_invariant() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a", "b")
    core = fleet.driver.core
    inferences = [fleet.driver.inference(name) for name in ("a", "b")]
    core.suspects.note_death("r9", [(inference, 0.3) for inference in inferences])
    with pytest.raises(InvariantViolation, match="open suspects share it"):
        check(core)


def test_scheduler_without_engine_deaths_checks_no_suspects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A decision must cost no more while no engine has died."""
    fleet = Fleet(2)
    asked: list[str] = []
    for name in ("separate_suspects", "ranked", "note_running", "forget", "resume"):
        monkeypatch.setattr(
            type(fleet.driver.core.suspects), name, lambda *_, name=name: asked.append(name)
        )
    fleet.submit_inferences("a", "b", "c")
    fleet.report_leases("r0", fleet.inferences_by_replica()["r0"])

    assert not asked
    assert granted(fleet.driver.handle(ev.DeadlinePassed())) == []


def test_call_that_hangs_two_engines_is_refused() -> None:
    """A hang stops an engine like a crash, only later."""
    driver = CoreDriver(_create_core(2, ""))
    driver.open("hanger")
    driver.submit("hanger", "hanger")
    for name in ("r0", "r1"):
        driver.pull(name)
        driver.now += 2.0
        lease_id = driver.lease_of("hanger")
        driver.pull(name, progress={lease_id: 1})
        driver.now += 20.0
        actions = driver.pull(name, progress={lease_id: 1}, stalled=True, hangs=True)
        driver.pull(name, progress={}, stalled=True, hangs=True)
        driver.now += 2.0

    assert [("hanger", _KILLER)] == refused(actions)


def test_suspects_of_a_stalled_engine_are_cleared_when_it_continues() -> None:
    """Any call may cause a single slow step of the engine."""
    driver = CoreDriver(_create_core(2, ""))
    driver.open("slow")
    driver.submit("slow", "slow")
    for _ in range(3):
        driver.pull("r0")
        driver.now += 2.0
        driver.pull("r0")
        lease_id = driver.lease_of("slow")
        driver.pull("r0", progress={lease_id: 1})
        driver.now += 20.0
        assert [] == refused(driver.pull("r0", progress={}, stalled=True, hangs=True))
        driver.now += 2.0
        assert [] == refused(driver.pull("r0"))
    assert 0 == len(driver.core.suspects.known)


def test_suspended_engine_makes_no_suspects() -> None:
    """A suspended engine is handled like one that was killed from outside."""
    driver = CoreDriver(_create_core(2, ""))
    driver.open("a")
    driver.submit("a", "a")
    driver.pull("r0")
    driver.pull("r0", progress={driver.lease_of("a"): 1})
    driver.pull("r0", progress={}, stalled=True)

    assert 0 == len(driver.core.suspects.known)
    assert ["a"] == granted(driver.pull("r1"))


def test_crash_of_a_replica_process_counts_as_death_of_its_engine() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("poison", "a")
    fleet.driver.open("late")
    fleet.driver.submit("late", "late")  # this lease is granted, but not reported yet
    for _ in range(3):
        fleet.start_replica()
    fleet.crash_process("r0")
    fleet.advance_time(1.0)
    alone = {name: fleet.replica_of(name) for name in ("poison", "a", "late")}

    assert 3 == len(set(alone.values()))
    fleet.crash_process(alone["poison"])
    assert [("poison", _KILLER)] == fleet.refused
    assert 0 == fleet.driver.core.suspects.open_count
    assert {FailureCause.CRASH: 2, FailureCause.KILL: 0} == (
        fleet.driver.core.state.counters.engine_failures
    )


def test_suspects_requeued_before_the_crash_report_are_separated() -> None:
    """An ingress notices the end of a process at once, and its calls are leased again."""
    fleet = Fleet(1)
    fleet.submit_inferences("poison", "a", "b")
    fleet.start_replica()
    for name in ("poison", "a", "b"):
        fleet.lose_connection(name)
    assert ["a", "b", "poison"] == fleet.inferences_by_replica()["r1"]
    aborts = aborted(fleet.crash_process("r0"))

    assert 2 == len(aborts)
    assert ["b"] == fleet.inferences_by_replica()["r1"]
    fleet.start_replica()
    fleet.advance_time(1.0)
    assert ["poison"] == fleet.inferences_by_replica()["r2"]
    fleet.crash_process("r2")
    assert [("poison", _KILLER)] == fleet.refused


def test_suspect_that_survives_on_another_replica_is_cleared() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a")
    fleet.start_replica()
    fleet.advance_time(2.0)
    fleet.lose_connection("a")
    fleet.crash_process("r0")
    assert ["a"] == fleet.inferences_by_replica()["r1"]
    fleet.advance_time(2.0)
    assert 1 == fleet.driver.core.suspects.open_count
    fleet.advance_time(0.6)

    assert 0 == fleet.driver.core.suspects.open_count


def test_connection_lost_before_the_last_pull_makes_no_suspect_of_a_crash() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a")
    fleet.start_replica()
    fleet.lose_connection("a")
    fleet.report_leases("r0")
    fleet.crash_process("r0")

    assert 0 == len(fleet.driver.core.suspects.known)


def test_crash_of_an_unknown_replica_changes_nothing() -> None:
    fleet = Fleet(1)
    fleet.submit_inferences("a")
    fleet.crash_process("other")

    assert {"r0": ["a"]} == fleet.inferences_by_replica()
    assert 0 == len(fleet.driver.core.suspects.known)


def test_killer_found_while_running_on_another_replica_is_aborted() -> None:
    """The ingress lost the connection before the crash of the process was reported."""
    fleet = Fleet(1)
    fleet.submit_inferences("poison")
    for _ in range(2):
        fleet.start_replica()
        fleet.advance_time(1.0)
        dead = fleet.replica_of("poison")
        fleet.start_replica()
        fleet.lose_connection("poison")
        lease_id = fleet.driver.lease_of("poison")
        actions = fleet.crash_process(dead)

    assert [("poison", _KILLER)] == fleet.refused
    assert [lease_id] == aborted(actions)
