"""Deadlines and urgency of the VTC shadow, against a literal implementation in fractions."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Delivery
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.pace import Pace
from justitia_ray.core.stages import ExpectedStage
from justitia_ray.cost import kv_token_time
from justitia_ray.units import KvTokenTime, Seconds
from tests.exact import exact
from tests.oracles.shadow import LiteralShadow


class GivenPace(Pace):
    """Fixed iteration time of an engine, set by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_per_s = exact(100)
        self.iteration_s = exact(1, 32)

    def observe(self, deliveries: Iterable[Delivery], now: Seconds) -> KvTokenTime:
        return sum(delivery.amount for delivery in deliveries)


class World:
    """Simulated VTC schedule under test, and its oracle, which get the same events."""

    def __init__(self, reports: int = 1) -> None:
        self.reports = reports
        self.now: Any = Fraction(1000)
        self.pace = GivenPace()
        self.foretold = ForetoldVtc(lambda: self.literal.kv_tokens, self.pace)
        self.foretold.clock.level = exact(0)
        self.literal = LiteralShadow(self.pace.iteration_s)
        self.applications: dict[str, Application] = {}
        self.expected: dict[str, list[ExpectedStage]] = {}
        self.calls: dict[str, list[dict[str, tuple[Inference, int, bool]]]] = {}
        self.names = 0

    def arrive(self, weight: int, stages: list[ExpectedStage]) -> None:
        name = f"a{self.names}"
        self.names += 1
        application = Application(name, "c", "t", exact(weight), 1, "i", self.now, self.names)
        application.expected_stages = tuple(stages)
        self.applications[name] = application
        self.expected[name], self.calls[name] = stages, []
        self._update_literal()
        self.foretold.arrived(application, self.now)
        if stages:
            self.literal.add(name, application.weight, application.sequence, stages)
            self._update_literal()

    def submit(self, name: str, stage: int, prompt: int, output: int) -> None:
        request = f"r{self.names}"
        self.names += 1
        rows = self.calls[name]
        stage = min(stage, len(rows))
        inference = Inference(
            request, name, request, "i", prompt, output, 100, 1, self.now, self.names, stage=stage
        )
        if stage == len(rows):
            rows.append({})
        rows[stage][request] = (inference, output, False)
        self.foretold.submitted(self.applications[name], inference, self.now)
        self._rebuild_literal(name)

    def end(self, name: str, output: int) -> None:
        """End the oldest running inference of an application after this many output tokens."""
        for row in self.calls[name]:
            for request, (inference, _, is_over) in row.items():
                if not is_over:
                    inference.output_tokens = output
                    if output:
                        row[request] = (inference, output, True)
                    else:
                        del row[request]
                    self.foretold.ended(self.applications[name], inference, self.now)
                    self._rebuild_literal(name)
                    return

    def reweigh(self, name: str, weight: int) -> None:
        self.applications[name].weight = exact(weight)
        self.foretold.reweighed(self.applications[name], self.now)
        self._rebuild_literal(name)

    def leave(self, name: str) -> None:
        application = self.applications[name]
        self.expected[name] = self.expected[name][: len(self.calls[name])]
        if name in self.literal.members and any(self.calls[name]):
            self._rebuild_literal(name)
        elif name in self.literal.members:
            self.literal.remove(name)
        self.foretold.application_ended(application, self.now)
        del self.applications[name]

    def pass_time(self, amount: int, seconds: int) -> None:
        """Advance the time in several reports, and divide the service among them."""
        for _ in range(self.reports):
            self.now += Fraction(seconds, 3 * self.reports)
            part = exact(amount, self.reports)
            self.literal.advance(Fraction(amount, self.reports), self.now)
            self.foretold.served([Delivery("", "", 0, 0, 0, part)], self.now)

    def apply(self, kind: str, *values: Any) -> None:
        if kind == "arrive":
            self.arrive(*values)
        elif kind == "serve":
            self.pass_time(*values)
        elif kind == "memory":
            self.literal.kv_tokens = exact(values[0])
            self.pass_time(0, 0)  # The free memory is read at a report.
        elif kind == "pace":
            self.pace.kv_per_s = exact(values[0])
            self.pace.iteration_s = self.literal.iteration_s = exact(values[1], 1024)
            self.pass_time(0, 0)  # The iteration time is read at a report.
        elif self.applications:
            names = [*self.applications]
            getattr(self, kind)(names[values[0] % len(names)], *values[1:])

    def check(self) -> None:
        """Check every deadline, and the order of the urgent applications."""
        kv_per_s, iteration_s = self.pace.kv_per_s, self.pace.iteration_s
        urgent = []
        for name, application in self.applications.items():
            if name not in self.literal.members:
                assert self.foretold.deadline(name, self.now) is None
                continue
            deadline = self.literal.deadline(name, self.now, kv_per_s)
            assert deadline == self.foretold.deadline(name, self.now)
            iterations, gaps_s = self._remaining_path(name)
            margin = min(150, iterations)
            if self.now >= deadline - (iterations + margin) * iteration_s - gaps_s:
                urgent.append((deadline, application.sequence, name))
        assert [name for _, _, name in sorted(urgent)] == self.foretold.urgent(self.now)
        assert self.literal.density() == self.foretold.clock.density.total

    def _remaining_path(self, name: str) -> tuple[Any, Any]:
        """Return the iterations of the longest remaining path, and its number of gaps."""
        rows, expected = self.calls[name], self.expected[name]
        left: list[float] = [d for row in rows for _, d, is_over in row.values() if not is_over]
        if self._missing(name, len(rows) - 1):
            left.append(expected[len(rows) - 1].output_tokens)
        later = sum(stage.output_tokens for stage in expected[len(rows) :])
        gaps = sum(stage.gap_s for stage in expected[max(0, len(rows) - 1) : -1])
        return max(left, default=0) + later, gaps

    def _missing(self, name: str, number: int) -> int:
        """Return the number of calls of a stage that are not submitted yet."""
        rows, expected = self.calls[name], self.expected[name]
        if number != len(rows) - 1 or not 0 <= number < len(expected):
            return 0
        if any(is_over for _, _, is_over in rows[number].values()):
            return 0
        return max(0, int(expected[number].inferences) - len(rows[number]))

    def _update_literal(self) -> None:
        self.literal.advance(Fraction(0), self.now)

    def _rebuild_literal(self, name: str) -> None:
        self._update_literal()
        stages = []
        rows, expected = self.calls[name], self.expected[name]
        for number in range(max(len(rows), len(expected))):
            row = rows[number].values() if number < len(rows) else ()
            gap_s = expected[number].gap_s if number < len(expected) else 0
            if row:
                sizes = [(i.prompt_tokens, d) for i, d, _ in row]
                stage = ExpectedStage(
                    len(row),
                    sum(p + 2 * d for p, d in sizes),
                    sum(kv_token_time(p, d) for p, d in sizes),
                    max(d for _, d in sizes),
                    gap_s,
                )
                if missing := self._missing(name, number):
                    more = expected[number]
                    n, w, k, longest, _ = stage
                    w += missing * more.compute_tokens / more.inferences
                    k += missing * more.kv_token_time / more.inferences
                    longest = max(longest, more.output_tokens)
                    stage = ExpectedStage(n + missing, w, k, longest, gap_s)
                stages.append(stage)
            elif number < len(expected):
                stages.append(expected[number])
            else:
                stages.append(ExpectedStage(0, 0, 0, 0, 0))
        weight = self.applications[name].weight
        if name in self.literal.members:
            self.literal.change(name, weight, stages)
        elif stages:
            sequence = self.applications[name].sequence
            self.literal.add(name, weight, sequence, stages)
        self._update_literal()


sizes = st.integers(1, 40)
stages = st.builds(
    lambda n, p, d, gap: ExpectedStage(
        n, exact(n * (p + 2 * d)), exact(n * kv_token_time(p, d)), d, exact(gap, 2)
    ),
    st.integers(1, 4),
    sizes,
    sizes,
    st.integers(0, 9),
)
_FIRST = [ExpectedStage(2, exact(60), exact(500), 20, exact(2))] * 2
steps = st.one_of(
    st.tuples(st.just("arrive"), st.integers(1, 3), st.lists(stages, max_size=3)),
    st.tuples(st.just("submit"), st.integers(0, 9), st.integers(0, 3), sizes, sizes),
    st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 60)),
    st.tuples(st.just("reweigh"), st.integers(0, 9), st.integers(1, 4)),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("serve"), st.integers(0, 5000), st.integers(0, 40)),
    st.tuples(st.just("memory"), st.integers(0, 200)),
    st.tuples(st.just("pace"), st.integers(85, 116), st.integers(26, 38)),
)


@given(st.lists(steps, min_size=4, max_size=30))
def test_core_and_oracle_compute_equal_deadlines_and_urgency(
    run: list[tuple[Any, ...]],
) -> None:
    """Heaps with stale keys may make an answer quicker, but must not change it."""
    world = World()
    world.arrive(1, _FIRST)
    for step in run:
        world.apply(*step)
        world.check()


@given(st.lists(steps, min_size=4, max_size=20), st.integers(2, 5))
def test_simulated_vtc_does_not_depend_on_the_number_of_reports(
    run: list[tuple[Any, ...]], reports: int
) -> None:
    """With an even flow of service, several reports have the effect of one."""
    once, often = World(), World(reports)
    for world in (once, often):
        world.arrive(1, _FIRST)
        for step in run:
            world.apply(*step)
    clock, other = once.foretold.clock, often.foretold.clock
    assert (clock.level, clock.owed) == (other.level, other.owed)
    for name in once.applications:
        assert once.foretold.deadline(name, once.now) == often.foretold.deadline(name, often.now)
