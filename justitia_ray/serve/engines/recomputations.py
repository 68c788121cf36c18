"""Tokens that vLLM computes again after preemptions, by sequence.

vLLM counts the preemptions of each sequence. With each step it reports the total tokens of the
sequences that it admitted again, and how many of these tokens were still in its prefix cache. It
does not report tokens by sequence, so each sequence is assigned the mean share of its step.
"""

from justitia_ray.units import Tokens


class Recomputations:
    """Divides the tokens that an engine recomputed among the preempted sequences."""

    def __init__(self) -> None:
        self._tokens: Tokens = 0
        """Tokens of readmitted sequences that are not yet divided among the sequences."""
        self._missed: Tokens = 0
        """Number of tokens in `_tokens` that were not in the prefix cache."""
        self._share = 1.0
        """Share of readmitted sequences' tokens that the prefix cache missed last; 1 without a
        cache.
        """

    def note_step(self, tokens: Tokens, found: Tokens) -> None:
        """Note the preempted sequences that were admitted again in an engine step.

        Args:
            tokens: Tokens of the sequences' prompts and answers.
            found: Number of these tokens that were in the prefix cache.
        """
        self._tokens += tokens
        self._missed += tokens - found
        if self._tokens:
            self._share = self._missed / self._tokens

    def take(self, held: Tokens) -> Tokens:
        """Return the recomputed tokens of a preempted sequence that holds `held` tokens now."""
        missed = round(held * self._share)
        if self._tokens:
            missed = min(missed, self._missed)
            self._tokens = max(0, self._tokens - held)
            self._missed = min(self._missed - missed, self._tokens)
        return missed


class RecomputedTokens:
    """Tokens of one sequence that the engine computed again after preempting it."""

    __slots__ = ("_preemptions", "tokens")

    def __init__(self) -> None:
        self._preemptions = 0
        self.tokens: Tokens = 0

    def note(self, preemptions: int, held: Tokens, of_all: Recomputations) -> None:
        """Update the count with the sequence's preemptions and the tokens that it holds now."""
        while self._preemptions < preemptions:
            self._preemptions += 1
            self.tokens += of_all.take(held)
