"""Stages of an application: where an inference stands in it, and what each stage took.

Nobody says which inferences wait for which. What is seen are submissions and ends, so: the first
inferences are stage 0, and one that is submitted after an inference of the present stage has
finished opens the next.
"""

from typing import Any, NamedTuple

from justitia_ray.units import KvTokenTime, Tokens

MAXIMUM_STAGES = 64
"""What comes later counts as the last of them. The recorded agent loops take up to 43 turns."""


class StageServed(NamedTuple):
    """What one stage of an application took; a tuple, as it goes to the predictor by the hundred.

    Inferences that produced nothing (cancelled while they waited, say) are left out.
    """

    inferences: int
    sequences: int
    """Prompts times n over those inferences: what lengths are counted by."""
    prompt_tokens: Tokens
    """Of all sequences."""
    output_tokens: Tokens
    """Of all sequences."""
    kv_token_time: KvTokenTime


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
        """Take in a submission; return its stage.

        Args:
            at_least: The stage it is known to be of, to somebody else who may have seen more.
        """
        stage = min(max(self._stage + self._is_passed, at_least), MAXIMUM_STAGES - 1)
        if stage > self._stage:
            self._stage, self._inferences, self._is_passed = stage, 0, False
        self._inferences += 1
        return stage

    def finish(self, stage: int) -> None:
        """Take in that an inference of a stage has finished."""
        if stage == self._stage:
            self._is_passed = True


class StageSums:
    """What each stage of an application has taken so far, by inferences that have ended."""

    __slots__ = ("_is_whole", "_sums", "position")

    def __init__(self) -> None:
        self.position = StagePosition()
        self._sums: list[list[Any]] = []
        """The fields of `StageServed`, which a tuple would have to be made anew for each end."""
        self._is_whole = True

    def miss(self) -> None:
        """Take in that some of the application may have been seen by an earlier scheduler only."""
        self._is_whole = False

    def add(
        self,
        stage: int,
        sequences: int,
        prompt_tokens: Tokens,
        output_tokens: Tokens,
        cost: KvTokenTime,
    ) -> None:
        """Count an inference that has ended, if it produced anything."""
        sums = self._sums
        while len(sums) <= stage:
            sums.append([0, 0, 0, 0, 0])
        if output_tokens:
            row = sums[stage]
            row[0] += 1
            row[1] += sequences
            row[2] += prompt_tokens
            row[3] += output_tokens
            row[4] += cost

    def served(self) -> tuple[StageServed, ...]:
        """Return the sums, first stage first; none if something was missed."""
        return tuple(StageServed(*row) for row in self._sums) if self._is_whole else ()
