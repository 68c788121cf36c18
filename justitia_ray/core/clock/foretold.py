"""When VTC would end each live application, foretold by a fluid shadow of VTC on the side.

VTC (OSDI 2024) charges an inference p + 2d and serves the application with the smallest counter, so
that all that have work rise together. The shadow has one *level* X: the tokens p + 2d that every
application in a stage has been served to a unit of its weight. Of a stage with n inferences,
w = Σ (p + 2d), k = Σ h(p, d) and L = max d:

- Service S (KV token·iterations) raises X by S/ρ, where ρ = Σ ω·k/w over the applications in a
  stage, ω being the weight: a token of the level costs each of them k/w of KV token-time. The sum
  of the ratios, not the ratio of the sums. With none in a stage X stands still.
- A stage entered at level e ends at e + w/ω. The tool gap after it passes in wall time.
- VTC never stops an inference: only its start has to wait. So an application is done when its last
  inference has started, at level Y = e + w/ω·(n − 1)/n of its last stage, and L iterations later.
  Without this rule sequential long inferences are foretold 1.3 times too late.

Its *deadline* is d = (when X passed Y, or now + gaps + levels to Y / v) + L·τ, where v is the speed
of X at the present pace and τ the seconds of an iteration. It is *urgent* when only what remains of
its own longest path fits before that: now ≥ d − path − 5 s.

Stages are those expected, replaced by what is submitted, and by true lengths at each end. Stages
are counted once, whatever the charge of the account. Changes of a stage that the shadow has left
change nothing any more; a shadow that is through with all stages enters a new one where X is then.
An application that ends keeps its shadow until that is through, as VTC would still be serving it:
without that the others are foretold twice too early.

`ShadowClock` has the level and is exact in the arithmetic of its arguments. `ForetoldVtc` feeds it
from the hooks of a policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from justitia_ray.core.clock.pace import Pace
from justitia_ray.core.queue import LazyHeap
from justitia_ray.core.records import Fields, RecordReader, read_fields
from justitia_ray.core.stages import UNKNOWN_STAGE, ExpectedStage, read_stages
from justitia_ray.cost import kv_token_time, weighted_tokens
from justitia_ray.units import ApplicationId, KvTokenTime, RequestId, Seconds, Tokens

if TYPE_CHECKING:
    from justitia_ray.core.entities import Application, Inference
    from justitia_ray.core.policies.base import Delivery

MARGIN_S: Seconds = 5.0
"""Time by which an application becomes urgent before its longest path must begin."""
_BAND = 2.0
"""Factor by which rates may move before a place in the order of urgency says nothing any more."""
_RENEWED_FROM = 1.5
"""Factor from which on the places are made anew, a few with each question and each report."""
_RENEWED_WITH_EACH = 4
"""Places made anew for each inference that a report names; one for a question without a report."""


class CriticalPath(NamedTuple):
    """The longest path that an application still has to go."""

    iterations: float
    gap_s: Seconds

    def seconds(self, iteration_s: Seconds) -> Seconds:
        """Return how long it takes on replicas of this pace."""
        return self.iterations * iteration_s + self.gap_s


@dataclass(slots=True)
class Shadow:
    """An application in the shadow. It is in a stage, in a gap, or through with all stages."""

    weight: float
    sequence: int
    stages: list[ExpectedStage]
    at: int = 0
    """Stage that it is in, or that follows the gap; as many as there are: through with all."""
    entered: float | None = None
    """Level at which it entered the stage; None: it is in none."""
    gap_until: Seconds | None = None
    """End of its gap; None: it is in none."""
    passed_at: Seconds | None = None
    """When its last inference was started; None: it has not been."""
    density: float = 0
    """ω·k/w of the stage that it is in, its part of ρ; 0: it is in none."""
    released: bool = False
    """Whether its application has ended: it is forgotten when it is through."""

    @property
    def is_last(self) -> bool:
        """Whether no stage follows the one at which it is."""
        return self.at == len(self.stages) - 1

    def ratio(self) -> float:
        """Return ω·k/w of the stage at which it is, or which it enters next."""
        stage = self.stages[self.at]
        if not stage.compute_tokens:
            return 0
        return self.weight * stage.kv_token_time / stage.compute_tokens

    def levels_to_last_start(self) -> float:
        """Return the levels from the start of the stage at which it is to Y."""
        last = self.stages[-1]
        tokens = last.compute_tokens
        if not self.is_last:
            tokens = sum(stage.compute_tokens for stage in self.stages[self.at :])
        started_last = last.compute_tokens / (max(1, last.inferences) * self.weight)
        return tokens / self.weight - started_last

    def gaps_to_come(self) -> Seconds:
        """Return the gaps after the stage at which it is."""
        return 0 if self.is_last else sum(stage.gap_s for stage in self.stages[self.at : -1])


class ShadowClock:
    """Level X, its speed, and where each shadow is. Every step of a shadow costs O(log N).

    Service flows evenly from one call of `advance` to the next. A stage without tokens or without
    KV token-time takes no service: it is passed when it is entered.
    """

    def __init__(self) -> None:
        self.level: float = 0
        self.density: float = 0
        """ρ: KV token-time that raises X by 1; 0 while no shadow is in a stage."""
        self.shadows: dict[ApplicationId, Shadow] = {}
        self._now: Seconds = math.inf
        """Time that X is of; infinite before the first `advance`."""
        self._in_stage = 0
        self._by_level = LazyHeap()
        """Shadows in a stage, by the level at which they start last or leave it."""
        self._by_time = LazyHeap()
        """Shadows in a gap, by its end."""
        self._moved: dict[ApplicationId, None] = {}

    def take_moved(self) -> list[ApplicationId]:
        """Return the shadows that were changed, or went on, since the last call."""
        moved, self._moved = self._moved, {}
        return [name for name in moved if name in self.shadows]

    def add(
        self, name: ApplicationId, weight: float, sequence: int, stages: Sequence[ExpectedStage]
    ) -> None:
        """Let an application enter its first stage now; it has at least one."""
        shadow = Shadow(weight, sequence, [*stages])
        self.shadows[name] = shadow
        self._moved[name] = None
        self._enter(name, shadow)

    def put_back(self, name: ApplicationId, shadow: Shadow) -> None:
        """Put back a shadow as it was at this clock's level."""
        self.shadows[name] = shadow
        self._moved[name] = None
        if shadow.entered is not None:
            self._stay(name, shadow, shadow.entered)
        elif shadow.gap_until is not None:
            self._by_time.put(name, (shadow.gap_until, shadow.sequence))

    def remove(self, name: ApplicationId) -> None:
        """Forget an application at once; an unknown one changes nothing."""
        shadow = self.shadows.pop(name, None)
        if shadow is not None:
            self._leave(name, shadow)
            self._by_time.drop(name)

    def release(self, name: ApplicationId) -> None:
        """Forget an application as soon as it is through with its stages."""
        shadow = self.shadows[name]
        shadow.released = True
        if shadow.at == len(shadow.stages):
            del self.shadows[name]

    def change(self, name: ApplicationId, stages: Sequence[ExpectedStage], weight: float) -> None:
        """Replace the stages of an application, at least one, and its weight.

        The tokens that it was served in its stage stay served. Of stages that it has left nothing
        changes; if there are now no others, it is through with all.
        """
        shadow = self.shadows[name]
        self._moved[name] = None
        entered = shadow.entered
        if entered is not None:
            entered = self.level - (self.level - entered) * shadow.weight / weight
            self._leave(name, shadow)
        was_last = shadow.is_last
        shadow.stages, shadow.weight = [*stages], weight
        if shadow.at >= len(stages):
            self._by_time.drop(name)
            shadow.gap_until = None
            self._end(name, shadow)
        elif entered is not None:
            last_start = entered + shadow.levels_to_last_start()
            if not (was_last and shadow.is_last and last_start <= self.level):
                shadow.passed_at = None
            self._stay(name, shadow, entered)
        elif shadow.gap_until is None:
            self._enter(name, shadow)

    def advance(self, amount: KvTokenTime, now: Seconds) -> None:
        """Let service flow since the last call, up to now, which is not before that."""
        self._now = min(self._now, now)
        if not amount and self._rests_until(now):
            self._now = now
            return
        while True:
            self._end_gaps()
            until = min(_first_key(self._by_time), now)
            part = amount
            if until < now:
                part = amount * (until - self._now) / (now - self._now)
            level = _first_key(self._by_level)
            needed = (level - self.level) * self.density if self.density else math.inf
            if needed <= part:
                if part:
                    self._now += (until - self._now) * needed / part
                self.level = level
                amount -= needed
                self._reach_level()
                continue
            if self.density:  # rounding must not carry X past what happens at a level
                self.level = min(self.level + part / self.density, level)
            amount -= part
            self._now = until
            if until == now:
                self._end_gaps()
                return

    def _rests_until(self, now: Seconds) -> bool:
        """Return whether nothing happens up to now if no service flows."""
        return _first_key(self._by_time) > now and _first_key(self._by_level) > self.level

    def _end_gaps(self) -> None:
        while (name := self._by_time.first()) and self._by_time.key(name)[0] <= self._now:
            self._by_time.drop(name)
            self._moved[name] = None
            self._enter(name, self.shadows[name])

    def _reach_level(self) -> None:
        """Let the first by level start its last inference, or leave its stage."""
        name = self._by_level.first() or ""
        shadow = self.shadows[name]
        self._moved[name] = None
        if shadow.is_last and shadow.passed_at is None:
            shadow.passed_at = self._now
            self._await_level(name, shadow, shadow.entered or 0)
        else:
            self._leave(name, shadow)
            self._pass_stage(name, shadow)

    def _pass_stage(self, name: ApplicationId, shadow: Shadow) -> None:
        """Go on from the end of a stage."""
        gap_s = shadow.stages[shadow.at].gap_s
        shadow.at += 1
        if shadow.at == len(shadow.stages):
            self._end(name, shadow)
        elif gap_s > 0:
            shadow.gap_until = self._now + gap_s
            self._by_time.put(name, (shadow.gap_until, shadow.sequence))
        else:
            self._enter(name, shadow)

    def _enter(self, name: ApplicationId, shadow: Shadow) -> None:
        shadow.gap_until = shadow.passed_at = None
        self._stay(name, shadow, self.level)

    def _stay(self, name: ApplicationId, shadow: Shadow, entered: float) -> None:
        """Put an application into the stage at which it is, entered at a level up to X."""
        ratio = shadow.ratio()
        if not ratio:
            self._pass_stage(name, shadow)
            return
        shadow.entered, shadow.density = entered, ratio
        self.density += ratio
        self._in_stage += 1
        self._await_level(name, shadow, entered)

    def _await_level(self, name: ApplicationId, shadow: Shadow, entered: float) -> None:
        """Sort an application in a stage by the level at which something happens to it next."""
        if shadow.is_last and shadow.passed_at is None:
            level = entered + shadow.levels_to_last_start()
        else:
            level = entered + shadow.stages[shadow.at].compute_tokens / shadow.weight
        self._by_level.put(name, (max(level, self.level), shadow.sequence))

    def _leave(self, name: ApplicationId, shadow: Shadow) -> None:
        if shadow.entered is None:
            return
        self._by_level.drop(name)
        self._in_stage -= 1
        # None in a stage weigh nothing: this keeps rounding from adding up over busy periods.
        self.density = self.density - shadow.density if self._in_stage else 0
        shadow.entered, shadow.density = None, 0

    def _end(self, name: ApplicationId, shadow: Shadow) -> None:
        if shadow.released:
            del self.shadows[name]
        shadow.at = len(shadow.stages)
        if shadow.passed_at is None:
            shadow.passed_at = self._now


def _first_key(heap: LazyHeap) -> float:
    name = heap.first()
    return math.inf if name is None else heap.key(name)[0]


class _Call(NamedTuple):
    """Sizes of an inference: predicted while it is not over, then true."""

    compute_tokens: float
    kv_token_time: KvTokenTime
    iterations: int


@dataclass(slots=True)
class _Submitted:
    """The calls that have been submitted of one stage. A change is O(1), but for the longest."""

    ended: ExpectedStage = UNKNOWN_STAGE
    """Sums over the calls that are over, without those that produced nothing."""
    running: dict[RequestId, _Call] = field(default_factory=dict)
    """Calls that are not over."""
    compute_tokens: float = 0
    kv_token_time: KvTokenTime = 0
    """Sums over those; exact, as they are of whole numbers."""
    iterations: int = 0
    """The longest of those."""

    def begin(self, request_id: RequestId, call: _Call) -> None:
        """Put a call here, or replace it."""
        self.remove(request_id)
        self.running[request_id] = call
        self.compute_tokens += call.compute_tokens
        self.kv_token_time += call.kv_token_time
        self.iterations = max(self.iterations, call.iterations)

    def remove(self, request_id: RequestId) -> None:
        """Forget a call that is not over; an unknown one changes nothing."""
        call = self.running.pop(request_id, None)
        if call is None:
            return
        self.compute_tokens -= call.compute_tokens
        self.kv_token_time -= call.kv_token_time
        if call.iterations == self.iterations:
            self.iterations = max([one.iterations for one in self.running.values()], default=0)

    def end(self, call: _Call) -> None:
        """Count the true sizes of a call that is over."""
        ended = self.ended
        self.ended = ExpectedStage(
            ended.inferences + 1,
            ended.compute_tokens + call.compute_tokens,
            ended.kv_token_time + call.kv_token_time,
            max(ended.output_tokens, call.iterations),
            ended.gap_s,
        )

    def sums(self) -> ExpectedStage:
        """Return the sums over all calls."""
        ended = self.ended
        if not self.running:
            return ended
        return ExpectedStage(
            ended.inferences + len(self.running),
            ended.compute_tokens + self.compute_tokens,
            ended.kv_token_time + self.kv_token_time,
            max(ended.output_tokens, self.iterations),
            ended.gap_s,
        )


class _Stages:
    """The stages of one application: those expected, and those that it has submitted.

    `all` and `path` are kept until something changes; a change of a stage that has begun is O(1)
    for `all`, and O(stages) for `path`.
    """

    __slots__ = ("_all", "_expected", "_path", "submitted")

    def __init__(
        self, expected: tuple[ExpectedStage, ...], ended: Iterable[ExpectedStage] = ()
    ) -> None:
        """Begin with these stages, of which some have calls that are over."""
        self._expected = expected
        self.submitted = [_Submitted(stage) for stage in ended]
        self._all: list[ExpectedStage] | None = None
        self._path: CriticalPath | None = None

    @property
    def has_calls(self) -> bool:
        """Whether it has submitted anything that counts."""
        return any(stage.running or stage.ended.inferences for stage in self.submitted)

    def expect(self, expected: tuple[ExpectedStage, ...]) -> None:
        """Replace the stages that are expected."""
        if expected != self._expected:
            self._expected = expected
            self._all = self._path = None

    def expect_no_more(self) -> None:
        """Expect no stage of which nothing has been submitted."""
        self.expect(self._expected[: len(self.submitted)])

    def begin(self, stage: int, request_id: RequestId, call: _Call) -> None:
        """Put a call into its stage, or replace it there."""
        self._reach(stage)
        self.submitted[stage].begin(request_id, call)
        self._renew(stage)

    def end(self, stage: int, request_id: RequestId, call: _Call | None) -> None:
        """Note that a call is over, with its true sizes; None if it produced nothing."""
        self._reach(stage)
        self.submitted[stage].remove(request_id)
        if call is not None:
            self.submitted[stage].end(call)
        self._renew(stage)

    def all(self) -> Sequence[ExpectedStage]:
        """Return every stage: as submitted, or else as expected."""
        if self._all is None:
            count = max(len(self._expected), len(self.submitted))
            self._all = [self._stage(number) for number in range(count)]
        return self._all

    def path(self) -> CriticalPath:
        """Return the longest path from the calls that are not over to the end."""
        if self._path is None:
            present = len(self.submitted) - 1
            longest: float = max([stage.iterations for stage in self.submitted], default=0)
            if present >= 0 and self._missing(present) > 0:
                longest = max(longest, self._expected[present].output_tokens)
            to_come = self._expected[present + 1 :]
            gaps = self._expected[max(0, present) : -1]
            self._path = CriticalPath(
                longest + sum(stage.output_tokens for stage in to_come),
                sum(stage.gap_s for stage in gaps),
            )
        return self._path

    def _reach(self, stage: int) -> None:
        while len(self.submitted) <= stage:
            self.submitted.append(_Submitted())
            self._all = None

    def _renew(self, stage: int) -> None:
        self._path = None
        if self._all is not None:
            self._all[stage] = self._stage(stage)

    def _stage(self, number: int) -> ExpectedStage:
        expected = self._expected[number] if number < len(self._expected) else UNKNOWN_STAGE
        if number >= len(self.submitted):
            return expected
        stage = self.submitted[number].sums()
        if not stage.inferences:
            return expected
        if (missing := self._missing(number)) > 0:
            of_all = expected.inferences
            stage = ExpectedStage(
                stage.inferences + missing,
                stage.compute_tokens + missing * expected.compute_tokens / of_all,
                stage.kv_token_time + missing * expected.kv_token_time / of_all,
                max(stage.output_tokens, expected.output_tokens),
                0,
            )
        return stage if stage.gap_s == expected.gap_s else stage._replace(gap_s=expected.gap_s)

    def _missing(self, number: int) -> float:
        """Return how many more calls are expected at a stage: none after one of it is over.

        What is submitted at once comes one by one; else the shadow would pass a stage at its first.
        """
        is_present = number == len(self.submitted) - 1 < len(self._expected)
        if not is_present or self.submitted[number].ended.inferences:
            return 0
        return self._expected[number].inferences - len(self.submitted[number].running)


class _Rates(NamedTuple):
    """The rates by which places in the order of urgency were made."""

    kv_per_s: float
    iteration_s: Seconds
    density: float

    def is_near(self, other: _Rates, band: float = _BAND) -> bool:
        """Return whether no rate is further from its other than the band."""
        return all(
            a == b or (b and 1 / band < a / b < band) for a, b in zip(self, other, strict=True)
        )

    def least_wait_s(self, levels: float, own_density: float) -> Seconds:
        """Return the least time that X may take for so many levels, within the band."""
        return levels * (self.density / _BAND + own_density) / (self.kv_per_s * _BAND)

    def least_s(self, iterations: float) -> Seconds:
        """Return the least that iterations may take within the band; they may be below 0."""
        factor = 1 / _BAND if iterations > 0 else _BAND
        return iterations * self.iteration_s * factor


class ForetoldVtc:
    """Deadlines of live applications by a shadow of VTC, and which of them are urgent.

    A policy passes on its hooks, in their order; `now` never falls. Between two questions each
    event costs O(log N), and O(n) for an application with n stages. `urgent` costs O(c) for c
    candidates, applications that would be urgent if X were up to four times as fast, and an
    iteration twice as long, and O(u log u) for the u that are urgent. While rates move, all are
    placed anew, a few for each inference of a report; all at once, in O(N log N), only after a leap
    out of the band in which that holds.

    Args:
        pace: The speed of the replicas.
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self.pace = Pace() if pace is None else pace
        self.clock = ShadowClock()
        self._stages: dict[ApplicationId, _Stages] = {}
        self._rates: _Rates | None = None
        """Rates that places are made by; None while no service is known."""
        self._former: _Rates | None = None
        """Rates that those of `_to_renew` are of."""
        self._to_renew: dict[ApplicationId, None] = {}
        self._found: tuple[Seconds, list[ApplicationId]] | None = None
        """The last answer of `urgent` and its instant; None: something has changed since."""
        self._may_renew = 0
        """How many places may be made anew for what has been reported since the last question."""
        self._by_level = LazyHeap()
        """Applications in a stage, by a level before which they are not urgent."""
        self._by_time = LazyHeap()
        """All others of which a deadline is known, by an instant before which they are not."""
        self._candidates: dict[ApplicationId, None] = {}
        """Applications whose level or instant has come, until they are placed anew."""

    # --- hooks

    def arrived(self, application: Application, now: Seconds) -> None:
        """Begin a shadow with the stages that are expected; nothing if none are, or if known."""
        if application.application_id not in self._stages:
            self._begin(application)
            self._renew(application, now)

    def reweighed(self, application: Application, now: Seconds) -> None:
        """Note the weight of an application; also done with all that it submits."""
        if application.application_id in self._stages:
            self._renew(application, now)

    def submitted(self, application: Application, inference: Inference, now: Seconds) -> None:
        """Count an inference that is about to wait, by its predicted length; again: no change."""
        name = application.application_id
        self.pace.leave(inference.request_id)
        if name not in self._stages:
            self._begin(application)
        stages = self._stages[name]
        stages.expect(application.expected_stages)
        call = _call(inference, inference.expected_output)
        stages.begin(inference.stage, inference.request_id, call)
        self._renew(application, now)

    def dispatched(self, inference: Inference, now: Seconds) -> None:
        """Note that an inference was leased."""
        self.pace.begin(inference.request_id, now)

    def served(self, deliveries: Sequence[Delivery], now: Seconds) -> None:
        """Raise the level by the service of a report, and measure the pace."""
        self._found = None
        self._may_renew += _RENEWED_WITH_EACH * len(deliveries)
        self.clock.advance(self.pace.observe(deliveries, now), now)

    def ended(self, application: Application, inference: Inference, now: Seconds) -> None:
        """Count the true sizes of an inference; nothing of one that produced nothing."""
        self.pace.leave(inference.request_id)
        stages = self._stages.get(application.application_id)
        if stages is None:
            return
        made = inference.output_tokens
        call = _call(inference, made) if made else None
        stages.end(inference.stage, inference.request_id, call)
        self._renew(application, now)

    def application_ended(self, application: Application, now: Seconds) -> None:
        """Tell no more of an application; its shadow goes on with what it has submitted."""
        name = application.application_id
        stages = self._stages.get(name)
        if stages is None:
            return
        stages.expect_no_more()
        if name in self.clock.shadows and stages.has_calls:
            self._renew(application, now)
            self.clock.release(name)
        else:
            self.clock.remove(name)
        del self._stages[name]
        self._found = None
        self._displace(name)

    # --- answers

    def deadline(self, application_id: ApplicationId, now: Seconds) -> Seconds | None:
        """Return when VTC would have ended it; None if its stages or the pace are not known."""
        shadow = self.clock.shadows.get(application_id)
        if shadow is None or application_id not in self._stages:
            return None
        tail_s = shadow.stages[-1].output_tokens * self.pace.iteration_s
        if shadow.passed_at is not None:
            return shadow.passed_at + tail_s
        if self.pace.kv_per_s is None:
            return None
        levels, density = shadow.levels_to_last_start(), self.clock.density
        if shadow.entered is None:
            density += shadow.ratio()  # it will be in the stage then
        else:
            levels += shadow.entered - self.clock.level
        begins = now if shadow.gap_until is None else max(now, shadow.gap_until)
        wait_s = max(0, levels) * density / self.pace.kv_per_s
        return begins + shadow.gaps_to_come() + wait_s + tail_s

    def critical_path(self, application_id: ApplicationId) -> CriticalPath:
        """Return the longest path of what an application has not done yet, by what is known.

        A call that runs counts whole: only what waits asks whether it is urgent.
        """
        stages = self._stages.get(application_id)
        return CriticalPath(0, 0) if stages is None else stages.path()

    def is_urgent(self, application_id: ApplicationId, now: Seconds) -> bool:
        """Return whether nothing but its own longest path fits before its deadline."""
        deadline = self.deadline(application_id, now)
        return deadline is not None and self._is_urgent(application_id, deadline, now)

    def urgent(
        self, now: Seconds, waits: Callable[[ApplicationId], bool] | None = None
    ) -> list[ApplicationId]:
        """Return the applications that are urgent now: by deadline, then by arrival.

        Args:
            now: The instant; asked again at one, it answers what it did if nothing was told since.
            waits: Tells whether an application has anything to start, for the others need not be
                looked at; None: all may have.
        """
        if self._found is not None and self._found[0] == now:
            return self._found[1]
        self._place_moved()
        for heap, reached in ((self._by_level, self.clock.level), (self._by_time, now)):
            while (name := heap.first()) is not None and heap.key(name)[0] <= reached:
                heap.drop(name)
                self._candidates[name] = None
        found = []
        for name in self._candidates:
            if waits is not None and not waits(name):
                continue
            deadline = self.deadline(name, now)
            if deadline is not None and self._is_urgent(name, deadline, now):
                found.append((deadline, self.clock.shadows[name].sequence, name))
        self._found = (now, [name for _, _, name in sorted(found)])
        return self._found[1]

    # --- what outlives the scheduler

    def state(self) -> dict[str, Any]:
        """Return level and pace, and the shadows of applications that have ended, as JSON."""
        shadows = self.clock.shadows.items()
        return {
            "level": self.clock.level,
            "pace": self.pace.state(),
            "ended": {name: _record(shadow) for name, shadow in shadows if shadow.released},
        }

    def application_state(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return what is known of a live application beside what it runs, as JSON; None: nothing.

        What it runs is submitted again to whoever restores it.
        """
        stages = self._stages.get(application_id)
        shadow = self.clock.shadows.get(application_id)
        if stages is None or shadow is None:
            return None
        return {
            "shadow": _record(shadow),
            "submitted": [[*stage.ended] for stage in stages.submitted],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, into an object that has been told nothing.

        Raises:
            ValueError: If it is not of that form.
        """
        reader = RecordReader(state, ("level", "pace", "ended"), None)
        self.pace.restore(reader.mapping("pace"))
        self.clock.level = reader.number("level")
        for name, record in reader.mapping("ended").items():
            self.clock.put_back(name, _restored_shadow(record))

    def restore_application(self, application: Application, state: Mapping[str, Any]) -> None:
        """Restore what `application_state` returned, after `restore`.

        Raises:
            ValueError: If it is not of that form.
        """
        name = application.application_id
        reader = RecordReader(state, ("shadow", "submitted"))
        ended = [*read_stages(reader, "submitted")]
        self.clock.remove(name)
        self.clock.put_back(name, _restored_shadow(reader.value("shadow")))
        self._stages[name] = _Stages(application.expected_stages, ended)

    def _is_urgent(self, name: ApplicationId, deadline: Seconds, now: Seconds) -> bool:
        path_s = self.critical_path(name).seconds(self.pace.iteration_s)
        return now >= deadline - path_s - MARGIN_S

    def _begin(self, application: Application) -> None:
        """Begin with the stages expected; an ended application of this id is forgotten."""
        self.clock.remove(application.application_id)
        self._stages[application.application_id] = _Stages(application.expected_stages)

    def _renew(self, application: Application, now: Seconds) -> None:
        """Let the shadow have the stages as they are known now."""
        self._found = None
        name = application.application_id
        self.clock.advance(0, now)
        if not (stages := self._stages[name].all()):
            return
        if name in self.clock.shadows:
            self.clock.change(name, stages, application.weight)
        else:
            self.clock.add(name, application.weight, application.sequence, stages)
        self.clock.advance(0, now)  # it may be through with its stage, or its last may start

    def _place_moved(self) -> None:
        """Put at their places those that moved, and some or all others if the rates have."""
        moved = self.clock.take_moved()
        if self.pace.kv_per_s is None:
            return
        rates = _Rates(self.pace.kv_per_s, self.pace.iteration_s, self.clock.density)
        if self._rates is None or not rates.is_near(self._rates):
            self._rates, self._to_renew = rates, {}
            moved = [*self.clock.shadows]
        elif self._to_renew and self._former is not None and not rates.is_near(self._former):
            moved += self._to_renew
            self._to_renew = {}
        elif not self._to_renew and not rates.is_near(self._rates, _RENEWED_FROM):
            self._former, self._rates = self._rates, rates
            self._to_renew = dict.fromkeys(self.clock.shadows)
        for _ in range(min(max(1, self._may_renew), len(self._to_renew))):
            moved.append(self._to_renew.popitem()[0])
        self._may_renew = 0
        for name in moved:
            if name in self._stages and name in self.clock.shadows:
                self._place(name, self._rates)

    def _place(self, name: ApplicationId, rates: _Rates) -> None:
        """Put an application where it cannot be urgent before, while rates stay in the band."""
        shadow, path = self.clock.shadows[name], self._stages[name].path()
        tail_s = rates.least_s(shadow.stages[-1].output_tokens - path.iterations)
        spare_s = tail_s - path.gap_s - MARGIN_S
        self._displace(name)
        if shadow.entered is None or shadow.passed_at is not None:
            at = shadow.passed_at
            if at is None:
                levels = shadow.levels_to_last_start()
                at = (shadow.gap_until or 0) + shadow.gaps_to_come()
                at += rates.least_wait_s(levels, shadow.ratio())
            self._by_time.put(name, (at + spare_s, shadow.sequence))
            return
        last_start = shadow.entered + shadow.levels_to_last_start()
        ahead_s = max(0, -spare_s - shadow.gaps_to_come())
        self._by_level.put(name, (last_start - ahead_s / rates.least_wait_s(1, 0), shadow.sequence))

    def _displace(self, name: ApplicationId) -> None:
        self._by_level.drop(name)
        self._by_time.drop(name)
        self._candidates.pop(name, None)


_SHADOW: Fields = {
    "weight": RecordReader.positive,
    "sequence": RecordReader.integer,
    "at": RecordReader.integer,
    "entered": RecordReader.number_or_none,
    "gap_until": RecordReader.number_or_none,
    "passed_at": RecordReader.number_or_none,
    "released": RecordReader.flag,
}


def _record(shadow: Shadow) -> dict[str, Any]:
    record = {name: getattr(shadow, name) for name in _SHADOW}
    return record | {"stages": [[*stage] for stage in shadow.stages]}


def _restored_shadow(record: object) -> Shadow:
    reader = RecordReader(record, (*_SHADOW, "stages"))
    shadow = Shadow(stages=[*read_stages(reader, "stages")], **read_fields(record, _SHADOW))
    last = len(shadow.stages) - (shadow.entered is not None or shadow.gap_until is not None)
    if not 0 <= shadow.at <= last:
        raise ValueError(f"at is {shadow.at}: must be one of {len(shadow.stages)} stages")
    return shadow


def _call(inference: Inference, output_tokens: Tokens) -> _Call:
    return _Call(
        inference.cost(weighted_tokens, output_tokens),
        inference.cost(kv_token_time, output_tokens),
        -(-output_tokens // inference.choices),
    )
