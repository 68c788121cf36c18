"""The operator's time limit of an HTTP call, which no caller's header can change.

Serve's own proxy and HAProxy let any caller replace Serve's `http_options.request_timeout_s` by the
header `x-request-timeout-seconds` (0: no limit), before the ingress receives the call.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from justitia_ray.errors import DeadlineMissed
from justitia_ray.serve.asgi import Message
from justitia_ray.serve.ingress.door import TRUSTED
from justitia_ray.units import Seconds

_EARLIER = 0.05
_EARLIER_MOST_S: Seconds = 0.5
"""Seconds by which the ingress ends a call before Ray Serve's timeout, after which a client gets no
readable answer.
"""


@asynccontextmanager
async def within_time(scope: Message, limit_s: Seconds | None) -> AsyncIterator[None]:
    """Cancel the `with` block when the call has taken its maximum time.

    Args:
        scope: The call's ASGI scope; a call over a Serve handle has no limit.
        limit_s: Serve's `http_options.request_timeout_s`; None: there is no limit.

    Raises:
        DeadlineMissed: If the block was cancelled.
    """
    if limit_s is None or scope.get(TRUSTED):
        yield
        return
    timer = asyncio.timeout(limit_s - min(_EARLIER * limit_s, _EARLIER_MOST_S))
    try:
        async with timer:
            yield
    except TimeoutError:
        if not timer.expired():
            raise
        raise DeadlineMissed(
            f"the call has taken as long as a call may: {limit_s:g} s (http_options"
            ".request_timeout_s of Serve)",
            None,
        ) from None
