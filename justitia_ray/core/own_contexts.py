"""Last contexts of an application on any replica, and the prompt tokens to compute beyond them.

An application that has computed a context once is expected to compute only the tokens that its next
prompt adds. Tokens that it has to compute beyond that are a *miss*. Its tag pays for misses that it
may have caused itself; see "The cost of prefill" in README.md.
"""

from dataclasses import dataclass
from typing import Self

from justitia_ray.core.contexts import longest_fitting_context
from justitia_ray.units import Tokens

_MOST = 8
"""Number of contexts stored for an application: enough for an agent, its sub-agents, and calls for
titles.
"""


@dataclass(slots=True, eq=False)
class OwnContext:
    """A prompt of an application with its answer, which a later prompt may begin with."""

    prompt_tokens: Tokens
    tokens: Tokens
    """Tokens of the prompt and, once the answer is complete, of the answer."""
    begun_before: Tokens
    """Prompt tokens that the application had begun when the context was last continued."""


class OwnContexts:
    """Contexts with which an application's next prompt may begin, whichever replica has them."""

    __slots__ = ("_contexts", "begun", "forgivable")

    def __init__(self) -> None:
        self._contexts: list[OwnContext] = []
        """Contexts of the application, the least recently continued first."""
        self.begun: Tokens = 0
        """Prompt tokens of all inferences of the application that have begun. The application
        cannot have evicted more tokens itself.
        """
        self.forgivable: Tokens = 0
        """Prompt tokens paid by the application's tag, for which a refund is due if other
        applications evict its contexts.
        """

    def continued_by(self, prompt_tokens: Tokens) -> OwnContext | None:
        """Return the application's longest context that a prompt may begin with, or None."""
        return longest_fitting_context(self._contexts, prompt_tokens)

    def begin(self, prompt_tokens: Tokens) -> OwnContext:
        """Record that a prompt of the application was computed; return the prompt's context."""
        continued = self.continued_by(prompt_tokens)
        if continued is not None:
            self._contexts.remove(continued)
        elif len(self._contexts) == _MOST:
            del self._contexts[0]
        self.begun += prompt_tokens
        context = OwnContext(prompt_tokens, prompt_tokens, self.begun)
        self._contexts.append(context)
        return context

    def record(self) -> list[list[Tokens]]:
        """Return the contexts as JSON, without the tokens that may be refunded."""
        return [[one.prompt_tokens, one.tokens] for one in self._contexts]

    @classmethod
    def restored(cls, record: object) -> Self:
        """Restore the contexts from the result of `record`.

        Raises:
            ValueError: If the record has another form.
        """
        own = cls()
        for pair in record if isinstance(record, list) else [record]:
            if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_length, pair)):
                raise ValueError(f"own_contexts: pairs of lengths are allowed, not {pair!r}")
            own._contexts.append(OwnContext(pair[0], pair[1], 0))
        del own._contexts[:-_MOST]
        return own


def _is_length(value: object) -> bool:
    return type(value) is int and value >= 0
