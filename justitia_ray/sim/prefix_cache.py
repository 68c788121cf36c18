"""Prefixes of prompts that one modelled replica may still hold: of agents whose prompts grow."""

from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.sequence import Sequence
from justitia_ray.units import ApplicationId, Tokens


class PrefixCache:
    """The last context of each application, least recently used out first.

    An inference that follows another of its application begins with that one's context, if its
    prompt is at least as long: so do the turns of an agent. What is kept lies in memory that
    nothing else wants, and goes when something does.
    """

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self._contexts: dict[ApplicationId, Tokens] = {}
        self._tokens: Tokens = 0

    def keep(self, sequence: Sequence) -> None:
        """Keep the context of an inference that has finished."""
        if self._profile.prefix_caching:
            self._drop(sequence.application_id)
            context = sequence.prompt_tokens + sequence.made
            self._contexts[sequence.application_id] = context
            self._tokens += context

    def use(self, sequence: Sequence, free_tokens: Tokens) -> None:
        """Take from the prompt of an inference what is held of it.

        Args:
            sequence: It is about to run, after another of its application.
            free_tokens: KV that nothing wants but this inference.
        """
        self._shrink(free_tokens)
        held = self._drop(sequence.application_id)
        if held <= sequence.prompt_tokens:
            whole_blocks = held - held % self._profile.block_size
            # vLLM computes at least one token, to have something to go on from.
            cached = min(whole_blocks, sequence.prompt_tokens - 1)
            sequence.prefill_tokens = sequence.prompt_tokens - cached
        self._shrink(free_tokens - sequence.prompt_tokens)

    def _shrink(self, tokens: Tokens) -> None:
        while self._tokens > tokens and self._contexts:
            self._drop(next(iter(self._contexts)))

    def _drop(self, application_id: ApplicationId) -> Tokens:
        tokens = self._contexts.pop(application_id, 0)
        self._tokens -= tokens
        return tokens
