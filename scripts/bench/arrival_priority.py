"""Middleware of vLLM's own server: calls get the place of their session by arrival as priority.

For callers that cannot send a priority of each session, such as aiperf.
"""

import json
from typing import Any

from justitia_ray.serve.asgi import AsgiApp, Message, Receive, Send
from scripts.bench.agents_player import SESSION_HEADER

PRIORITY_HEADER, BY_ARRIVAL = "X-Session-Priority", "by-arrival"
"""Request header and value that ask for a priority by arrival; other calls pass unchanged."""
PARENT_HEADER = "X-Dynamo-Parent-Session-ID"
"""Header by which aiperf names the parent session of a sub-agent's session."""


class ArrivalPriority:
    """ASGI middleware that gives calls of earlier sessions a higher priority.

    A sub-agent has the priority of the agent that called it.
    """

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._places: dict[str, int] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a call to the server, with a priority if it asks for one."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope.get("headers", ())
        }
        if headers.get(PRIORITY_HEADER.lower()) != BY_ARRIVAL:
            await self._app(scope, receive, send)
            return
        body = await _read_body(receive)
        fields: dict[str, Any] = json.loads(body) if body else {}
        session = headers[SESSION_HEADER.lower()]
        fields["priority"] = self._arrival_index(
            session, headers.get(PARENT_HEADER.lower(), session)
        )
        messages: list[Message] = [
            {"type": "http.request", "body": json.dumps(fields).encode(), "more_body": False}
        ]

        async def receive_changed_body() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, receive_changed_body, send)

    def _arrival_index(self, session: str, parent: str) -> int:
        place = self._places.get(session)
        if place is None:
            place = self._places.setdefault(parent, len(self._places))
            self._places[session] = place
        return place


async def _read_body(receive: Receive) -> bytes:
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    return body + bytes(message.get("body", b""))
