"""`ingress`: the HTTP side."""

from typing import Annotated

from pydantic import Field

from justitia_ray.config.section import Positive, Section


class IngressSection(Section):
    """The HTTP side."""

    max_outstanding: Annotated[int, Field(gt=0)] = 20_000
    """Inferences that one ingress process submits and has not ended; more are refused with 429."""
    max_body_bytes: Annotated[int, Field(gt=0)] = 16 * 2**20
    keepalive_s: Positive = 15.0
    """A waiting stream gets an SSE comment so often, so that proxies keep it."""
    submit_interval_s: Annotated[float, Field(ge=0)] = 0.0
    """Submissions are joined over this time, and while a batch is on its way in any case."""
    retry_linger_s: Annotated[float, Field(ge=0)] = 10.0
    """A request with an `Idempotency-Key` goes on for so long after its connection is gone."""
    retry_kept_s: Annotated[float, Field(ge=0)] = 60.0
    """Its answer can be read again for so long."""
    retry_kept_bytes: Annotated[int, Field(gt=0)] = 64 * 2**20
    """Memory of all these answers; beyond it the oldest go before their time."""
    attempts: Annotated[int, Field(gt=0)] = 20
    """Leases that one call may use up before its caller gets an error."""
