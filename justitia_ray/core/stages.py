"""Stages of an application: where an inference stands in it, and what each stage took.

Nobody says which inferences wait for which. What is seen are submissions and ends, so: the first
inferences are stage 0, and one that is submitted after an inference of the present stage has
finished opens the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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


UNKNOWN_STAGE = ExpectedStage(0, 0, 0, 0, 0)
"""Stands for a stage of which nothing is known, before one of which something is."""


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


class StageSums:
    """Sums of each stage of an application so far, over inferences that have ended."""

    __slots__ = ("_is_whole", "_sums", "position")

    def __init__(self) -> None:
        self.position = StagePosition()
        self._sums: list[list[Any]] = []
        """The fields of `StageServed`, which a tuple would have to be made anew for each end."""
        self._is_whole = True

    def miss_some(self) -> None:
        """Note that some of the application may have been seen by an earlier scheduler only."""
        self._is_whole = False

    def add_ended(self, inference: Inference) -> None:
        """Count an inference that has ended, if it produced anything."""
        sums = self._sums
        while len(sums) <= inference.stage:
            sums.append([0, 0, 0, 0, 0])
        if inference.output_tokens:
            row = sums[inference.stage]
            row[0] += 1
            row[1] += inference.choices
            row[2] += inference.prompt_tokens
            row[3] += inference.output_tokens
            row[4] += inference.attained

    def served(self) -> tuple[StageServed, ...]:
        """Return the sums, first stage first; none if something was missed."""
        return tuple(StageServed(*row) for row in self._sums) if self._is_whole else ()
