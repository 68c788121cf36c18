"""Stages of an application: the stage of each inference, and sums over each stage.

No caller declares which inferences depend on which. Stages are inferred from submissions and ends:
the first inferences are stage 0, and an inference submitted after one of the current stage has
finished starts the next stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from justitia_ray.core.records import Fields, RecordReader, read_fields
from justitia_ray.units import KvTokenTime, Seconds, Tokens

if TYPE_CHECKING:
    from justitia_ray.core.entities import Inference

MAXIMUM_STAGES = 64
"""Maximum number of stages of an application; later stages count as the last one. Recorded agent
loops take up to 43 turns.
"""


class StageServed(NamedTuple):
    """Number and sizes of the inferences of one stage of an application.

    A tuple, because the predictor receives hundreds of them.

    Inferences without output (cancelled while they waited, for instance) are left out.
    """

    inferences: int
    sequences: int
    """Number of sequences (prompts times choices) of the stage's inferences."""
    prompt_tokens: Tokens
    """Prompt tokens of all sequences of the stage."""
    output_tokens: Tokens
    """Output tokens of all sequences of the stage."""
    kv_token_time: KvTokenTime
    longest_output_tokens: Tokens | None = None
    """Output tokens of the stage's longest sequence, if all sequences of an inference are equally
    long. The stage takes at least this number of iterations. None: unknown, as in records of
    release 0.2.0.
    """
    gap_s: Seconds | None = None
    """Seconds from the stage's last ended inference to the first submission of the next stage, at
    least 0; 0 after the last stage. None: unknown.
    """


class ExpectedStage(NamedTuple):
    """Expected number and sizes of the inferences of one stage, and the tool gap after it.

    A tuple, because each opening and each first inference of a stage may carry dozens.
    """

    inferences: float
    """Expected number of inferences of the stage, perhaps a learned mean. 0: the stage is unknown.
    """
    compute_tokens: float
    """Cost in tokens that VTC charges for the stage: Σ (p + 2d) over its inferences."""
    kv_token_time: KvTokenTime
    """Service of the stage in token·iterations: Σ h(p, d) over its inferences."""
    output_tokens: float
    """Output tokens of the stage's longest sequence. The stage takes at least this number of
    iterations.
    """
    gap_s: Seconds
    """Seconds from the stage's last ended inference to the first submission of the next stage; 0
    after the last stage.
    """

    @property
    def mean_output_tokens(self) -> float:
        """Return the output length at which an inference costs the mean of the stage.

        Two pairs of p and d have these means of p + 2d and h(p, d). The one with the larger d is
        returned, unless this d exceeds the longest sequence.
        """
        if not self.inferences:
            return self.output_tokens
        linear = self.compute_tokens / self.inferences + 0.5
        root = math.sqrt(max(0, linear * linear - 6 * self.kv_token_time / self.inferences))
        length = round((linear + root) / 3)
        if length > self.output_tokens:
            length = round((linear - root) / 3)
        return min(self.output_tokens, max(1, length))


UNKNOWN_STAGE = ExpectedStage(0, 0, 0, 0, 0)
"""Placeholder for an unknown stage that precedes a known stage."""


_EXPECTED_FIELDS: Fields = dict.fromkeys(ExpectedStage._fields, RecordReader.not_negative)


def read_stages(reader: RecordReader, name: str) -> tuple[ExpectedStage, ...]:
    """Read a list of stages from a record, each a list of its values.

    Raises:
        ValueError: If the field has another form; names the stage and the value.
    """
    stages = []
    for number, row in enumerate(reader.items(name)):
        values = row if isinstance(row, list) else ()
        fields = dict(zip(ExpectedStage._fields, values, strict=False))
        where = f"{name}[{number}]"
        stages.append(ExpectedStage(**read_fields(fields, _EXPECTED_FIELDS, where=where)))
    return tuple(stages)


def replace_expected(
    expected: tuple[ExpectedStage, ...], stage: int, now_expected: tuple[ExpectedStage, ...]
) -> tuple[ExpectedStage, ...]:
    """Replace the expected stages of an application from `stage` on, and return all of them.

    Args:
        expected: Stages expected before, from the first.
        stage: Current stage of the application.
        now_expected: Stages expected now, from the current stage on.
    """
    before = expected[:stage]
    unknown = (UNKNOWN_STAGE,) * (stage - len(before))
    return before + unknown + now_expected


class StagePosition:
    """Current stage of an application, inferred by an observer that may not see all inferences."""

    __slots__ = ("_inferences", "_is_passed", "_stage")

    def __init__(self) -> None:
        self._stage = 0
        self._inferences = 0
        """Number of inferences submitted at this stage so far."""
        self._is_passed = False
        """Whether an inference of the current stage has finished."""

    def next(self) -> tuple[int, int]:
        """Return the stage of the next submission, and how many inferences it then has."""
        stage = min(self._stage + self._is_passed, MAXIMUM_STAGES - 1)
        return stage, 1 if stage > self._stage else self._inferences + 1

    def submit(self, at_least: int = 0) -> int:
        """Count a submission, and return its stage.

        Args:
            at_least: Lower bound of its stage, from a sender that may have seen more of the
                application.
        """
        stage = min(max(self._stage + self._is_passed, at_least), MAXIMUM_STAGES - 1)
        if stage > self._stage:
            self._stage, self._inferences, self._is_passed = stage, 0, False
        self._inferences += 1
        return stage

    def finish(self, stage: int) -> None:
        if stage == self._stage:
            self._is_passed = True


@dataclass(slots=True)
class _StageCounts:
    """The fields of `StageServed`, in a form that can be updated."""

    inferences: int = 0
    sequences: int = 0
    prompt_tokens: Tokens = 0
    output_tokens: Tokens = 0
    kv_token_time: KvTokenTime = 0
    longest_output_tokens: Tokens = 0
    first_submitted_at: Seconds | None = None
    """Time of the stage's first submission; None: this scheduler did not see it."""
    last_ended_at: Seconds | None = None
    """Time at which the stage's last inference with output ended; None: there was none."""

    def seconds_until_stage(self, following: _StageCounts) -> Seconds | None:
        """Return the seconds from the end of this stage to the start of the next.

        0 if they overlap.
        """
        if self.last_ended_at is None or following.first_submitted_at is None:
            return None
        return max(0.0, following.first_submitted_at - self.last_ended_at)

    def served(self, gap_s: Seconds | None) -> StageServed:
        """Return the sums as a tuple, with the tool gap after the stage."""
        return StageServed(
            self.inferences,
            self.sequences,
            self.prompt_tokens,
            self.output_tokens,
            self.kv_token_time,
            self.longest_output_tokens,
            gap_s,
        )


class StageSums:
    """Number and sizes of the ended inferences of each stage of an application."""

    __slots__ = ("_is_whole", "_position", "_sums")

    def __init__(self) -> None:
        self._position = StagePosition()
        self._sums: list[_StageCounts] = []
        self._is_whole = True

    def mark_incomplete(self) -> None:
        """Mark the sums as incomplete, because an earlier scheduler may have seen some stages."""
        self._is_whole = False

    def submit(self, at_least: int, now: Seconds) -> int:
        """Count a submission, and return its stage.

        Args:
            at_least: Lower bound of its stage, from a sender that may have seen more of the
                application.
            now: Time of the submission.
        """
        stage = self._position.submit(at_least)
        sums = self._sums_of_stage(stage)
        if sums.first_submitted_at is None:
            sums.first_submitted_at = now
        return stage

    def add_ended_inference(self, inference: Inference, now: Seconds, *, is_finished: bool) -> None:
        """Count an ended inference, if it produced output.

        Args:
            inference: The inference.
            now: Time at which it ended.
            is_finished: Whether it finished: later submissions are then of a later stage.
        """
        if output_tokens := inference.output_tokens:
            sums = self._sums_of_stage(inference.stage)
            sums.inferences += 1
            sums.sequences += inference.choices
            sums.prompt_tokens += inference.prompt_tokens
            sums.output_tokens += output_tokens
            sums.kv_token_time += inference.attained
            longest = -(-output_tokens // inference.choices)
            sums.longest_output_tokens = max(sums.longest_output_tokens, longest)
            sums.last_ended_at = now
        if is_finished:
            self._position.finish(inference.stage)

    def served(self) -> tuple[StageServed, ...]:
        """Return the sums of each stage, in order; empty if they are incomplete."""
        sums = self._sums
        if not self._is_whole or not sums:
            return ()
        gaps = map(_StageCounts.seconds_until_stage, sums, sums[1:])
        return tuple(map(_StageCounts.served, sums, [*gaps, 0.0]))

    def _sums_of_stage(self, stage: int) -> _StageCounts:
        while len(self._sums) <= stage:
            self._sums.append(_StageCounts())
        return self._sums[stage]
