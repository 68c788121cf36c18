"""The stages of an application as currently known: expected, submitted, and with true sizes.

Expected stages are replaced by submitted inferences, and predicted lengths by true lengths when
inferences end. Each stage counts once, independently of the charge of the account.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from justitia_ray.core.stages import UNKNOWN_STAGE, ExpectedStage
from justitia_ray.cost import kv_token_time, weighted_tokens
from justitia_ray.units import KvTokenTime, RequestId, Seconds, Tokens

if TYPE_CHECKING:
    from justitia_ray.core.entities import Inference


class CriticalPath(NamedTuple):
    """The longest path of inferences and tool gaps that an application still has to complete."""

    iterations: float
    gap_s: Seconds

    def seconds(self, iteration_s: Seconds) -> Seconds:
        """Return the seconds of the path on replicas with these times of an iteration."""
        return self.iterations * iteration_s + self.gap_s


class Call(NamedTuple):
    """Sizes of an inference: predicted until the inference ends, afterwards true."""

    compute_tokens: float
    kv_token_time: KvTokenTime
    iterations: int


def call_of(inference: Inference, output_tokens: Tokens) -> Call:
    """Return the sizes of an inference that produces this output over all its sequences."""
    return Call(
        inference.cost(weighted_tokens, output_tokens),
        inference.cost(kv_token_time, output_tokens),
        -(-output_tokens // inference.choices),
    )


@dataclass(slots=True)
class _SubmittedStage:
    """Submitted inferences of one stage. A change is O(1), except of the longest inference."""

    ended: ExpectedStage = UNKNOWN_STAGE
    """Sums over the inferences of the stage that have ended and produced output."""
    running: dict[RequestId, Call] = field(default_factory=dict)
    """Inferences of the stage that have not ended."""
    compute_tokens: float = 0
    kv_token_time: KvTokenTime = 0
    """Service of the running inferences in token·iterations; exact, because all terms are whole
    numbers.
    """
    iterations: int = 0
    """Length of the longest running inference, in iterations."""

    def begin(self, request_id: RequestId, call: Call) -> None:
        self.remove(request_id)
        self.running[request_id] = call
        self.compute_tokens += call.compute_tokens
        self.kv_token_time += call.kv_token_time
        self.iterations = max(self.iterations, call.iterations)

    def remove(self, request_id: RequestId) -> None:
        """Remove an inference that has not ended; an unknown one is ignored."""
        call = self.running.pop(request_id, None)
        if call is None:
            return
        self.compute_tokens -= call.compute_tokens
        self.kv_token_time -= call.kv_token_time
        if call.iterations == self.iterations:
            self.iterations = max([one.iterations for one in self.running.values()], default=0)

    def end(self, call: Call) -> None:
        ended = self.ended
        self.ended = ExpectedStage(
            ended.inferences + 1,
            ended.compute_tokens + call.compute_tokens,
            ended.kv_token_time + call.kv_token_time,
            max(ended.output_tokens, call.iterations),
            ended.gap_s,
        )

    def sums(self) -> ExpectedStage:
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


class KnownStages:
    """Stages of one application: expected stages, and stages with submitted inferences.

    `all` and `path` are cached until a change; a change of a stage that has begun is O(1) for
    `all`, and O(stages) for `path`.
    """

    __slots__ = ("_all", "_expected", "_path", "submitted")

    def __init__(
        self, expected: tuple[ExpectedStage, ...], ended: Iterable[ExpectedStage] = ()
    ) -> None:
        self._expected = expected
        self.submitted = [_SubmittedStage(stage) for stage in ended]
        self._all: list[ExpectedStage] | None = None
        self._path: CriticalPath | None = None

    @property
    def has_calls(self) -> bool:
        return any(stage.running or stage.ended.inferences for stage in self.submitted)

    def running(self) -> Iterator[RequestId]:
        for stage in self.submitted:
            yield from stage.running

    def expect(self, expected: tuple[ExpectedStage, ...]) -> None:
        if expected != self._expected:
            self._expected = expected
            self._all = self._path = None

    def expect_no_more(self) -> None:
        """Drop expected stages that have no submitted inferences."""
        self.expect(self._expected[: len(self.submitted)])

    def begin(self, stage: int, request_id: RequestId, call: Call) -> None:
        """Add an inference to its stage, or replace it in the stage."""
        self._extend_to(stage)
        self.submitted[stage].begin(request_id, call)
        self._update_stage(stage)

    def end(self, stage: int, request_id: RequestId, call: Call | None) -> None:
        """Record that an inference has ended, with its true sizes.

        None if it produced no output.
        """
        self._extend_to(stage)
        self.submitted[stage].remove(request_id)
        if call is not None:
            self.submitted[stage].end(call)
        self._update_stage(stage)

    def all(self) -> Sequence[ExpectedStage]:
        """Return every stage, as submitted if the stage has begun, otherwise as expected."""
        if self._all is None:
            count = max(len(self._expected), len(self.submitted))
            self._all = [self._known_stage(number) for number in range(count)]
        return self._all

    def path(self) -> CriticalPath:
        """Return the longest path from the running inferences until the application ends."""
        if self._path is None:
            present = len(self.submitted) - 1
            longest: float = max([stage.iterations for stage in self.submitted], default=0)
            if present >= 0 and self._missing_calls(present) > 0:
                longest = max(longest, self._expected[present].output_tokens)
            to_come = self._expected[present + 1 :]
            gaps = self._expected[max(0, present) : -1]
            self._path = CriticalPath(
                longest + sum(stage.output_tokens for stage in to_come),
                sum(stage.gap_s for stage in gaps),
            )
        return self._path

    def _extend_to(self, stage: int) -> None:
        while len(self.submitted) <= stage:
            self.submitted.append(_SubmittedStage())
            self._all = None

    def _update_stage(self, stage: int) -> None:
        self._path = None
        if self._all is not None:
            self._all[stage] = self._known_stage(stage)

    def _known_stage(self, number: int) -> ExpectedStage:
        expected = self._expected[number] if number < len(self._expected) else UNKNOWN_STAGE
        if number >= len(self.submitted):
            return expected
        stage = self.submitted[number].sums()
        if not stage.inferences:
            return expected
        if (missing := self._missing_calls(number)) > 0:
            of_all = expected.inferences
            stage = ExpectedStage(
                stage.inferences + missing,
                stage.compute_tokens + missing * expected.compute_tokens / of_all,
                stage.kv_token_time + missing * expected.kv_token_time / of_all,
                max(stage.output_tokens, expected.output_tokens),
                0,
            )
        return stage if stage.gap_s == expected.gap_s else stage._replace(gap_s=expected.gap_s)

    def _missing_calls(self, number: int) -> float:
        """Return the number of inferences still expected in a stage; 0 after one has ended.

        Inferences of one stage are submitted one by one. Without this number the shadow would
        complete a stage with its first inference.
        """
        is_present = number == len(self.submitted) - 1 < len(self._expected)
        if not is_present or self.submitted[number].ended.inferences:
            return 0
        return self._expected[number].inferences - len(self.submitted[number].running)
