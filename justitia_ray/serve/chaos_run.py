"""One chaos run on one cluster: the load, the strikes, and what came of them."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from justitia_ray.chaos.answers import Answer, unary_answer
from justitia_ray.chaos.callers import Callers
from justitia_ray.chaos.census import Census, leaks
from justitia_ray.chaos.counts import count
from justitia_ray.chaos.journal import Run, read_journal
from justitia_ray.chaos.load import TWO_CHOICES, PlannedApplication, draw_load
from justitia_ray.chaos.notes import Hit, Notes
from justitia_ray.chaos.order import measure_order
from justitia_ray.chaos.plan import Strike
from justitia_ray.chaos.recovery import (
    OVER_AFTER_S,
    elsewhere_s,
    hit_nothing,
    is_over,
    recovery_s,
    windows,
)
from justitia_ray.chaos.result import Outcome, Struck
from justitia_ray.client.handle_transport import HandleTransport
from justitia_ray.client.transport import HttpTransport
from justitia_ray.config import AppConfig
from justitia_ray.errors import JustitiaError
from justitia_ray.serve.chaos_census import take_census
from justitia_ray.serve.chaos_cluster import ChaosCluster
from justitia_ray.serve.chaos_patience import in_thread, until
from justitia_ray.serve.chaos_sampler import keep_sampling
from justitia_ray.serve.chaos_strikes import Striker
from justitia_ray.serve.chaos_upheavals import Upheavals
from justitia_ray.serve.fake_openai import FakeAnswer, parse_request
from justitia_ray.units import Seconds

_CLEAN_WITHIN_S: Seconds = 90.0
"""Orphans of a dead ingress are ended after 30 s, their applications by idle time after that."""

_PEACE = "peace-"
"""Before the names of what is asked for in peace."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """How much of everything a run has."""

    applications: int
    inferences: int
    redis_away_s: Seconds
    stopped_s: Seconds
    everything_redeployed: bool
    output_tokens: tuple[int, int] = (40, 160)
    two_choices: float = TWO_CHOICES


class ChaosRun:
    """Plays a load on a running cluster while a plan strikes it."""

    def __init__(
        self,
        cluster: ChaosCluster,
        engine: str,
        plan: Sequence[Strike],
        shape: Shape,
        seed: int,
        say: Say,
    ) -> None:
        """Draw the load; nothing is called before `run`.

        Args:
            cluster: Running, and idle.
            engine: Which engines it has, for the result.
            plan: The strikes.
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
        self.notes = self._notes = Notes()
        """What was noted so far."""
        self.runs: tuple[Run, ...] = ()
        """The journal, after `run`."""
        self._unmended: tuple[str, ...] = ()
        self._began_at = time.monotonic()
        self.load = draw_load(
            seed,
            shape.applications,
            shape.inferences,
            len(plan) + 1,
            shape.output_tokens,
            shape.two_choices,
        )

    async def run(self) -> Outcome:
        """Play and strike to the end.

        Raises:
            JustitiaError: If something that was killed is not started again at all.
        """
        began_at = self._began_at
        http = HttpTransport(self._cluster.url)
        handle = HandleTransport(self._target.handle("Ingress"))
        callers = Callers(http, handle, self._notes)
        try:
            expected = await self._expected(http)
            before = await self._settled(None)
            sampling = asyncio.create_task(keep_sampling(self._target, self._notes))
            try:
                await self._play_and_strike(callers)
            finally:
                sampling.cancel()
                await asyncio.gather(sampling, return_exceptions=True)
            self._say("all callers are done; waiting until the cluster is whole and idle")
            after = await self._settled(before)
            for name in after.stored:
                asked_at, closed_at = self._notes.closed.get(name, (0.0, 0.0))
                self._say(
                    f"left over: {name}, closed between {asked_at - began_at:.1f} s and"
                    f" {closed_at - began_at:.1f} s"
                )
        finally:
            await http.aclose()
        return self._outcome(began_at, expected, before, after)

    # --- load and strikes

    async def _play_and_strike(self, callers: Callers) -> None:
        upheavals = Upheavals(
            self._cluster,
            self._shape.redis_away_s,
            self._shape.stopped_s,
            everything=self._shape.everything_redeployed,
        )
        striker = Striker(
            self._target,
            callers,
            self._notes,
            self.load,
            stopped_s=self._shape.stopped_s,
            more_ways=upheavals.ways,
        )
        try:
            async with asyncio.TaskGroup() as group:
                for strike in self._plan:
                    await striker.ready(strike)
                    group.create_task(callers.play(self._of_phase(strike.number)))
                    await asyncio.sleep(strike.after_s)
                    open_calls = callers.open_calls
                    hits = await striker.strike(strike)
                    self._notes.hits += hits
                    await asyncio.gather(*(self._recovered(hit) for hit in hits))
                    self._tell(strike, hits, open_calls)
                group.create_task(callers.play(self._of_phase(len(self._plan))))
        except* JustitiaError as failures:
            failure = failures.exceptions[0]
        else:
            return
        raise failure

    def _of_phase(self, phase: int) -> list[PlannedApplication]:
        return [planned for planned in self.load if planned.phase == phase]

    async def _recovered(self, hit: Hit) -> None:
        """Wait until the service is back from a fault, or long enough."""
        deadline = hit.back_at + OVER_AFTER_S
        while time.monotonic() < deadline:
            runs = await asyncio.to_thread(read_journal, self._target.journal)
            if is_over(hit, self._notes, runs):
                return
            await asyncio.sleep(0.2)

    def _tell(self, strike: Strike, hits: Sequence[Hit], open_calls: int) -> None:
        runs = read_journal(self._target.journal)
        for hit in hits:
            took = recovery_s(hit, self._notes, runs)
            shown = "not seen to recover" if took is None else f"{took:.2f} s"
            if hit_nothing(hit, self._notes, runs):
                shown = "nothing to recover"
            self._say(
                f"strike {strike.number + 1}/{len(self._plan)} at"
                f" {hit.struck_at - self._began_at:.1f} s: {hit.kind} {hit.target}"
                f" ({open_calls} calls open): {shown}"
            )

    # --- before and after

    async def _expected(self, http: HttpTransport) -> Mapping[str, Answer]:
        """Return the right answers: of fake engines by computing, of others by asking in peace."""
        if self._engine == "fake":
            return fake_answers(self.load, self._target.config)
        self._say("asking for every answer in peace")
        peace = Notes()
        await Callers(http, http, peace).play([_in_peace(planned) for planned in self.load])
        return {
            call.inference.removeprefix(_PEACE): call.answer
            for call in peace.calls
            if call.answer is not None
        }

    async def _settled(self, before: Census | None) -> Census:
        """Return what there is once nothing is to be done; of leaks, those that stay."""
        try:
            await until(in_thread(self._target.is_whole), "Serve runs all of it again")
        except JustitiaError as error:  # what was counted is to be told all the same
            self._unmended = (str(error),)
        deadline = time.monotonic() + _CLEAN_WITHIN_S
        while True:
            now = await take_census(self._target)
            if not leaks(before or now, now) or time.monotonic() > deadline:
                return now
            await asyncio.sleep(0.5)

    def _outcome(
        self, began_at: Seconds, expected: Mapping[str, Answer], before: Census, after: Census
    ) -> Outcome:
        notes, runs = self._notes, read_journal(self._target.journal)
        self.runs = tuple(runs)
        struck = tuple(
            Struck(
                hit,
                recovery_s(hit, notes, runs),
                elsewhere_s(hit, notes, runs),
                hit_nothing(hit, notes, runs),
            )
            for hit in notes.hits
        )
        return Outcome(
            self._engine,
            count(self.load, notes, runs, expected),
            measure_order(runs, notes.calls, windows(notes, runs), notes.tags),
            struck,
            (*self._unmended, *leaks(before, after)),
            began_at,
            time.monotonic() - began_at,
        )


def fake_answers(load: Sequence[PlannedApplication], config: AppConfig) -> dict[str, Answer]:
    """Return the right answer of fake engines to each inference: a function of its prompt."""
    model, longest = config.model.name, config.engine.fake.max_model_len
    answers = {}
    for inference in (one for planned in load for one in planned.inferences):
        body = json.dumps(inference.body(1) | {"stream": False}).encode()
        request = parse_request(inference.path, body, model, longest)
        whole = json.loads(FakeAnswer(request, model, "expected").body())
        answers[inference.name] = unary_answer(whole)
    return answers


def _in_peace(planned: PlannedApplication) -> PlannedApplication:
    """Return the same inferences, all unary, under other names."""
    return replace(
        planned,
        application_id=_PEACE + planned.application_id,
        stages=tuple(
            tuple(replace(one, name=_PEACE + one.name, stream=False) for one in stage)
            for stage in planned.stages
        ),
    )
