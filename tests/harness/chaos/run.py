"""A chaos run on a cluster: the load, the faults during it, and the result."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from justitia_ray.client.transport import HttpTransport
from justitia_ray.core.usage import DAY_S
from justitia_ray.errors import JustitiaError
from justitia_ray.units import Seconds
from tests.harness.answers import Answer
from tests.harness.chaos.app import loads_file
from tests.harness.chaos.callers import Callers
from tests.harness.chaos.cluster import ChaosCluster
from tests.harness.chaos.counts import count_calls
from tests.harness.chaos.crowd import CROWD, QuotaTenantLoad
from tests.harness.chaos.faults import ClusterFaults
from tests.harness.chaos.fleet import FleetLimits, FleetMeasure, measure_fleet
from tests.harness.chaos.leak_check import ResourceCount, count_resources, leaks
from tests.harness.chaos.load import TWO_CHOICES, PlannedApplication, draw_load, draw_long_streams
from tests.harness.chaos.order import measure_order
from tests.harness.chaos.plan import FaultKind, FaultRound
from tests.harness.chaos.records import (
    EngineRun,
    InjectedFault,
    RunRecords,
    read_journal,
    read_loadings,
)
from tests.harness.chaos.recovery import (
    fault_windows,
    had_no_effect,
    recovery_s,
    rerun_elsewhere_s,
)
from tests.harness.chaos.report import ChaosResult, FaultOutcome
from tests.harness.chaos.rounds import FaultRounds, fake_answers
from tests.harness.chaos.target import run_in_thread, wait_until

_CLEAN_WITHIN_S: Seconds = 90.0
"""Seconds until the cluster is idle: inferences of a dead ingress end after 30 s, their
applications by idle timeout.
"""

_CROWD_A_PHASE = 8
_CROWD_EVERY_S: Seconds = 0.25
"""Seconds between two calls of the tenant with a quota."""
_KEEPERS = frozenset(
    {
        FaultKind.INGRESS_KILLED,
        FaultKind.REPLICA_KILLED,
        FaultKind.LOADING_KILLED,
        FaultKind.DRAINING_KILLED,
        FaultKind.ALL_REPLICAS_KILLED,
        FaultKind.ENGINE_KILLED,
        FaultKind.REDIS_EMPTIED,
        FaultKind.REDEPLOYED,
    }
)
"""Faults of processes that also hold usage counts; together with a scheduler's death they may lose
some.
"""
_BASELINE = "baseline-"
"""Prefix of application names in the load that records correct answers before any fault."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunSize:
    applications: int
    inferences: int
    redis_away_s: Seconds
    stopped_s: Seconds
    everything_redeployed: bool
    output_tokens: tuple[int, int] = (40, 160)
    two_choices: float = TWO_CHOICES
    tail_streams: int = 0
    """Number of long streams in each phase, so that replicas must drain while they run."""
    tail_tokens: tuple[int, int] = (250, 600)


class ChaosRun:
    """Runs a load on a cluster while a plan injects faults."""

    def __init__(
        self,
        cluster: ChaosCluster,
        engine: str,
        plan: Sequence[FaultRound],
        shape: RunSize,
        seed: int,
        say: Say,
    ) -> None:
        """Draw the random load; `run` makes the first call.

        Args:
            cluster: Running, and idle.
            engine: Which engines it has, for the result.
            plan: The rounds.
            shape: How much load.
            seed: Of the load.
            say: Told what goes on, a line each.
        """
        self._cluster = cluster
        self._target = cluster.target
        self._engine = engine
        self._plan = plan
        self._shape = shape
        self._seed = seed
        self._say = say
        self.records = RunRecords()
        """Records of the callers and the fault injector so far."""
        self.runs: tuple[EngineRun, ...] = ()
        """Engine runs, available after `run`."""
        self._unmended: tuple[str, ...] = ()
        self._scaled = self._target.config.autoscaling
        self._began_at = time.monotonic()
        self.load = draw_load(
            seed,
            shape.applications,
            shape.inferences,
            len(plan) + 1,
            shape.output_tokens,
            shape.two_choices,
        ) + draw_long_streams(seed, len(plan) + 1, shape.tail_streams, shape.tail_tokens)

    async def run(self) -> ChaosResult:
        """Run the load, inject all faults, and return the result.

        Raises:
            JustitiaError: If something that was killed is not started again at all.
        """
        began_at = self._began_at
        http = HttpTransport(self._cluster.url, api_key=self._cluster.api_key)
        cluster_faults = ClusterFaults(
            self._cluster,
            self._shape.redis_away_s,
            self._shape.stopped_s,
            everything=self._shape.everything_redeployed,
        )
        rounds = FaultRounds(
            self._target, http, self.load, self._plan, self._shape.stopped_s, cluster_faults.ways
        )
        self.records = rounds.records
        crowd = QuotaTenantLoad(http)
        try:
            expected = await self._expected_answers(http)
            await wait_until(self._target.accounts_are_ready, "there are accounts")
            await count_resources(self._target)  # The first count opens connections that stay open.
            before = await self._resources_when_idle(None)
            async with rounds.sampling():
                await self._run_rounds(rounds, crowd)
                self._say("all callers are done; waiting until the cluster is whole and idle")
                after = await self._resources_when_idle(before)
            for name in after.stored:
                asked_at, closed_at = self.records.closed.get(name, (0.0, 0.0))
                self._say(
                    f"left over: {name}, closed between {asked_at - began_at:.1f} s and"
                    f" {closed_at - began_at:.1f} s"
                )
        finally:
            await http.aclose()
        quota = await self._quota_flaws(crowd)
        return replace(self._result(began_at, expected, before, after), quota=tuple(quota))

    # --- load and rounds

    async def _run_rounds(self, rounds: FaultRounds, crowd: QuotaTenantLoad) -> None:
        beside = partial(crowd.call_repeatedly, _CROWD_A_PHASE, _CROWD_EVERY_S)
        try:
            await rounds.run_rounds(beside=beside, told=self._print_round)
        except* JustitiaError as failures:
            failure = failures.exceptions[0]
        else:
            return
        raise failure

    def _print_round(
        self, fault_round: FaultRound, faults: Sequence[InjectedFault], open_calls: int
    ) -> None:
        runs = read_journal(self._target.journal)
        for fault in faults:
            took = recovery_s(fault, self.records, runs)
            shown = "not seen to recover" if took is None else f"{took:.2f} s"
            if had_no_effect(fault, self.records, runs):
                shown = "nothing to recover"
            self._say(
                f"round {fault_round.number + 1}/{len(self._plan)} at"
                f" {fault.injected_at - self._began_at:.1f} s: {fault.kind} {fault.target}"
                f" ({open_calls} calls open): {shown}"
            )

    async def _quota_flaws(self, crowd: QuotaTenantLoad) -> list[str]:
        """Describe violations of the quota, and wrong usage figures."""
        today = int(time.time() // DAY_S)
        told = await self._target.ask_scheduler("usage", [today - 1, today])
        usage = [of_day[CROWD] for of_day in told["days"].values() if CROWD in of_day]
        saved_s = self._target.config.store.save_interval_s + 1.0 + self._shape.redis_away_s
        killed = FaultKind.SCHEDULER_KILLED
        deaths_at = [fault.injected_at for fault in self.records.faults if fault.kind is killed]
        others_at = [fault.injected_at for fault in self.records.faults if fault.kind in _KEEPERS]
        both_at = [
            at for at in deaths_at if any(abs(at - other_at) <= saved_s for other_at in others_at)
        ]
        return crowd.record.flaws(usage, self.records.faults, both_at, saved_s)

    # --- before and after

    async def _expected_answers(self, http: HttpTransport) -> Mapping[str, Answer]:
        """Return the correct answers: those of fake engines, or those recorded before any fault."""
        if self._engine == "fake":
            return fake_answers(self.load, self._target.config)
        self._say("asking for every answer before any fault")
        baseline = RunRecords()
        await Callers(http, http, baseline).run_applications(
            [_as_unary_baseline(planned) for planned in self.load]
        )
        return {
            call.inference.removeprefix(_BASELINE): call.answer
            for call in baseline.calls
            if call.answer is not None
        }

    async def _resources_when_idle(self, before: ResourceCount | None) -> ResourceCount:
        """Return the resources of the idle service; wait a while for leaks to disappear."""
        try:
            await wait_until(run_in_thread(self._target.is_whole), "Serve runs all of it again")
        except JustitiaError as error:  # The caller reports the resource counts in any case.
            self._unmended = (str(error),)
        deadline = time.monotonic() + _CLEAN_WITHIN_S
        while True:
            now = await count_resources(self._target)
            if not leaks(before or now, now) or time.monotonic() > deadline:
                return now
            await asyncio.sleep(0.5)

    def _result(
        self,
        began_at: Seconds,
        expected: Mapping[str, Answer],
        before: ResourceCount,
        after: ResourceCount,
    ) -> ChaosResult:
        records, runs = self.records, read_journal(self._target.journal)
        self.runs = tuple(runs)
        outcomes = tuple(
            FaultOutcome(
                fault,
                recovery_s(fault, records, runs),
                rerun_elsewhere_s(fault, records, runs),
                had_no_effect(fault, records, runs),
            )
            for fault in records.faults
        )
        return ChaosResult(
            self._engine,
            count_calls(self.load, records, runs, expected),
            measure_order(runs, records.calls, fault_windows(records, runs), records.tags),
            outcomes,
            (*self._unmended, *records.spared, *leaks(before, after)),
            began_at,
            time.monotonic() - began_at,
            fleet=self._fleet_measure(runs),
        )

    def _fleet_measure(self, runs: Sequence[EngineRun]) -> FleetMeasure | None:
        if self._scaled is None:
            return None
        loads = read_loadings(loads_file(self._target.config))
        return measure_fleet(FleetLimits.from_autoscaling(self._scaled), self.records, runs, loads)


def _as_unary_baseline(planned: PlannedApplication) -> PlannedApplication:
    """Return the same inferences as unary calls under other names."""
    return replace(
        planned,
        application_id=_BASELINE + planned.application_id,
        stages=tuple(
            tuple(replace(one, name=_BASELINE + one.name, stream=False) for one in stage)
            for stage in planned.stages
        ),
    )
