"""Client with which agents run inferences over HTTP or a Ray Serve handle.

`JustitiaClient` is asynchronous; `SyncClient` is for code without asyncio. Both open applications,
in which an agent runs any number of inferences, sequentially or concurrently.
"""

from justitia_ray.client.calls import Completion
from justitia_ray.client.client import Application, JustitiaClient, Messages, fan_out
from justitia_ray.client.sync import SyncApplication, SyncClient
from justitia_ray.client.transport import (
    HandleTransport,
    HttpTransport,
    Response,
    ServiceUnreachable,
    StreamedResponse,
    Transport,
)

__all__ = [
    "Application",
    "Completion",
    "HandleTransport",
    "HttpTransport",
    "JustitiaClient",
    "Messages",
    "Response",
    "ServiceUnreachable",
    "StreamedResponse",
    "SyncApplication",
    "SyncClient",
    "Transport",
    "fan_out",
]
