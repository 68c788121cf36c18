"""Stages of an application: where an inference stands in it, and what each stage took.

Nobody says which inferences wait for which. What is seen are submissions and ends, so: the first
inferences are stage 0, and one that is submitted after an inference of the present stage has
finished opens the next.
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
"""Later stages count as the last of them. The recorded agent loops take up to 43 turns."""


class StageServed(NamedTuple):
    """Sums of one stage of an application; a tuple, as it goes to the predictor by the hundred.

    Inferences that produced nothing (cancelled while they waited, say) are left out.
    """

    inferences: int
    sequences: int
    """Prompts times n over those inferences: what lengths are counted by."""
    prompt_tokens: Tokens
    """Prompt tokens of all sequences."""
    output_tokens: Tokens
    """Output tokens of all sequences."""
    kv_token_time: KvTokenTime
    longest_output_tokens: Tokens | None = None
    """Output of the longest sequence, those of one inference being taken for equally long:
    iterations that the stage took at least. None: not known, as in what release 0.2.0 observed."""
    gap_s: Seconds | None = None
    """Time from the stage's last end to the next stage's first submission, at least 0; 0 after the
    last stage. None: not known."""


class ExpectedStage(NamedTuple):
    """Sums expected of one stage of an application, and the tool gap after it.

    A tuple, as every opening and every first inference of a stage may bring dozens.
    """

    inferences: float
    """At least 0; a mean where it was learned. 0: nothing is known of the stage."""
    compute_tokens: float
    """Σ (p + 2d) over the inferences, the cost that VTC charges, in tokens."""
    kv_token_time: KvTokenTime
    """Σ h(p, d) over the inferences, token·iterations."""
    output_tokens: float
    """Output of the longest sequence: iterations that the stage takes at least."""
    gap_s: Seconds
    """Time from the stage's last end to the next stage's first submission; 0 after the last."""

    @property
    def mean_output_tokens(self) -> float:
        """Output of an inference whose costs are the means of the stage, in whole tokens.

        p + 2d and h(p, d) have two solutions, of which the longer one counts where it is not longer
        than the longest sequence.
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
"""Stands for a stage of which nothing is known, before one of which something is."""


_EXPECTED_FIELDS: Fields = dict.fromkeys(ExpectedStage._fields, RecordReader.not_negative)


def read_stages(reader: RecordReader, name: str) -> tuple[ExpectedStage, ...]:
    """Return a field of a record that is a list of stages, each the list of its values.

    Raises:
        ValueError: If it is not; names the stage and the value.
    """
    stages = []
    for number, row in enumerate(reader.items(name)):
        values = row if isinstance(row, list) else ()
        fields = dict(zip(ExpectedStage._fields, values, strict=False))
        where = f"{name}[{number}]"
        stages.append(ExpectedStage(**read_fields(fields, _EXPECTED_FIELDS, where=where)))
    return tuple(stages)


def expected_from(
    expected: tuple[ExpectedStage, ...], stage: int, now_expected: tuple[ExpectedStage, ...]
) -> tuple[ExpectedStage, ...]:
    """Return the stages expected of an application, with those from `stage` on replaced.

    Args:
        expected: Stages expected before, from the first.
        stage: The stage that the application has reached.
        now_expected: Stages expected now, from that one on.
    """
    before = expected[:stage]
    unknown = (UNKNOWN_STAGE,) * (stage - len(before))
    return before + unknown + now_expected


class StagePosition:
    """The present stage of one application, as somebody sees it who may not see all of it."""

    __slots__ = ("_inferences", "_is_passed", "_stage")

    def __init__(self) -> None:
        self._stage = 0
        self._inferences = 0
        """Submitted at this stage so far."""
        self._is_passed = False
        """Whether an inference of the stage has finished."""

    def next(self) -> tuple[int, int]:
        """Return the stage of what is submitted next, and how many are at it then."""
        stage = min(self._stage + self._is_passed, MAXIMUM_STAGES - 1)
        return stage, 1 if stage > self._stage else self._inferences + 1

    def submit(self, at_least: int = 0) -> int:
        """Count a submission; return its stage.

        Args:
            at_least: The stage it is known to be of, to somebody else who may have seen more.
        """
        stage = min(max(self._stage + self._is_passed, at_least), MAXIMUM_STAGES - 1)
        if stage > self._stage:
            self._stage, self._inferences, self._is_passed = stage, 0, False
        self._inferences += 1
        return stage

    def finish(self, stage: int) -> None:
        """Note that an inference of a stage has finished."""
        if stage == self._stage:
            self._is_passed = True


@dataclass(slots=True)
class _Sums:
    """The fields of `StageServed`, which a tuple would have to be made anew for each end."""

    inferences: int = 0
    sequences: int = 0
    prompt_tokens: Tokens = 0
    output_tokens: Tokens = 0
    kv_token_time: KvTokenTime = 0
    longest_output_tokens: Tokens = 0
    first_submitted_at: Seconds | None = None
    """None: its inferences were submitted where this scheduler did not see it."""
    last_ended_at: Seconds | None = None
    """Last end of an inference that produced something; None: there was none."""

    def gap_to(self, following: _Sums) -> Seconds | None:
        """Return the time from the end of this stage to the start of the next; stages overlap."""
        if self.last_ended_at is None or following.first_submitted_at is None:
            return None
        return max(0.0, following.first_submitted_at - self.last_ended_at)

    def served(self, gap_s: Seconds | None) -> StageServed:
        """Return the sums, with the gap after them."""
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
    """Sums of each stage of an application so far, over inferences that have ended."""

    __slots__ = ("_is_whole", "_position", "_sums")

    def __init__(self) -> None:
        self._position = StagePosition()
        self._sums: list[_Sums] = []
        self._is_whole = True

    def miss_some(self) -> None:
        """Note that some of the application may have been seen by an earlier scheduler only."""
        self._is_whole = False

    def submit(self, at_least: int, now: Seconds) -> int:
        """Count a submission; return its stage.

        Args:
            at_least: The stage it is known to be of, to somebody else who may have seen more.
            now: The instant of the submission.
        """
        stage = self._position.submit(at_least)
        sums = self._of(stage)
        if sums.first_submitted_at is None:
            sums.first_submitted_at = now
        return stage

    def add_ended(self, inference: Inference, now: Seconds, *, is_finished: bool) -> None:
        """Count an inference that has ended, if it produced anything.

        Args:
            inference: The inference.
            now: The instant of its end.
            is_finished: Whether it ran to its end: what is submitted from now on is a later stage.
        """
        if output_tokens := inference.output_tokens:
            sums = self._of(inference.stage)
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
        """Return the sums, first stage first; none if something was missed."""
        sums = self._sums
        if not self._is_whole or not sums:
            return ()
        gaps = map(_Sums.gap_to, sums, sums[1:])
        return tuple(map(_Sums.served, sums, [*gaps, 0.0]))

    def _of(self, stage: int) -> _Sums:
        while len(self._sums) <= stage:
            self._sums.append(_Sums())
        return self._sums[stage]
