"""One inference on a modelled replica."""

from dataclasses import dataclass

from justitia_ray.sim.results import InferenceResult
from justitia_ray.units import ApplicationId, LeaseId, RequestId, Tokens


@dataclass(slots=True, eq=False)
class Sequence:
    """What a replica knows of an inference, and how far it is."""

    request_id: RequestId
    lease_id: LeaseId
    application_id: ApplicationId
    client: str
    """On whose behalf it runs, for what an engine keeps per client."""
    prompt_tokens: Tokens
    output_tokens: Tokens
    result: InferenceResult
    prefill_tokens: Tokens
    """Tokens to compute before it gains any: its prompt, less a cached prefix."""
    made: Tokens = 0
    """Output tokens made by iteration `since`."""
    since: int = 0
    computed: bool = False
    """Nothing of that is left: it gains a token an iteration."""

    def made_by(self, iteration: int) -> Tokens:
        """Return the output tokens made by then."""
        return self.made + (iteration - self.since if self.computed else 0)

    def context_by(self, iteration: int) -> Tokens:
        """Return the KV that it holds by then, in tokens."""
        return self.prompt_tokens + self.made_by(iteration)

    @property
    def ends_with(self) -> int:
        """The iteration that makes its last token, once it is computed."""
        return self.since + self.output_tokens - self.made

    def stop(self, iteration: int) -> None:
        """Keep what it has made by then."""
        self.made, self.since = self.made_by(iteration), iteration

    def go_on(self, iteration: int) -> None:
        """Gain tokens from then on."""
        self.since, self.computed = iteration, True
