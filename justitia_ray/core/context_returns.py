"""Counts of applications that return while their context counts, and of those that lost it.

The working set keeps memory for a context through the gap of its application. If the context is
not in the replica's cache when the application returns, that memory was kept for nothing, and the
replica computes the context again. Many losses show that contexts are evicted faster than their
applications return: the cache thrashes.

A return is counted at the application's next return, or at its end: from the prompt tokens
of its inferences in between, and those of them that were cached.
"""

from justitia_ray.core.entities import Application
from justitia_ray.core.state import Counters
from justitia_ray.units import ApplicationId, Tokens

_FOUND = 0.5
"""Cached fraction of a returning application's prompts from which on its context counts as found.
"""


class ContextReturns:
    """Counts returning applications that found their context in the prefix cache, or missed it.

    Attributes:
        open: Prompt tokens and cached tokens of each returned application before its return.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.open: dict[ApplicationId, tuple[Tokens, Tokens]] = {}

    def begin(self, application: Application) -> None:
        """Record that an application submits again while memory is still kept for its context."""
        before = application.prompt_tokens, application.cached_tokens
        self.open[application.application_id] = before

    def end(self, application: Application) -> None:
        """Count whether an application that came back found its context in the prefix cache.

        Called at its next return, or when the application ends.
        """
        prompt, cached = self.open.pop(application.application_id)
        prompt = application.prompt_tokens - prompt
        if not prompt:
            return
        if application.cached_tokens - cached < _FOUND * prompt:
            self._counters.contexts_missed += 1
        else:
            self._counters.contexts_found += 1
