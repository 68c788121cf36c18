"""The client: agents ask for inferences over HTTP or a Ray Serve handle.

`JustitiaClient` is asynchronous, `SyncClient` the same for other code. Either opens an application,
in which an agent runs as many inferences as it likes, one after the other or side by side.
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
