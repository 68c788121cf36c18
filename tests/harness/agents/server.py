"""A server that answers as the model of each run's script, and records every exchange."""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from aiohttp import web

from tests.harness.agents.chat_form import chat_chunks, chat_completion
from tests.harness.agents.exchange import Document, Exchange
from tests.harness.agents.messages_form import message_events, whole_message
from tests.harness.agents.responses_form import response_events, whole_response
from tests.harness.agents.script import Turn
from tests.harness.local_app import serving

_NewId = Callable[[str], str]
_Forms = dict[
    str,
    tuple[
        Callable[[Turn, Document, _NewId], Document],
        Callable[[Turn, Document, _NewId], list[bytes]],
    ],
]
_FORMS: _Forms = {
    "/v1/chat/completions": (chat_completion, chat_chunks),
    "/v1/responses": (whole_response, response_events),
    "/v1/messages": (whole_message, message_events),
}


@dataclass(slots=True)
class _Branch:
    """The answers that are still to come in one branch of a run."""

    client: str
    turns: deque[Turn]
    random: Random
    """Draws ids: they are fresh, and yet the same for the same seed."""

    def new_id(self, prefix: str) -> str:
        return f"{prefix}{self.random.getrandbits(128):032x}"


class ScriptedServer:
    """Answers each branch of a run with its turns, one after the other.

    Which run a call belongs to is told by the address that its client has for the API: nothing in
    the headers or the body is other than it would be.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._branches: dict[tuple[int, int], _Branch] = {}
        self._order = itertools.count()
        self._exchanges: list[Exchange] = []
        self.address = ""
        """Such as `http://127.0.0.1:4711`, while it serves."""

    def url(self, run: int, branch: int) -> str:
        """Return the address of the API for one branch of a run, without `/v1`."""
        return f"{self.address}/run/{run}/{branch}"

    def plan(self, client: str, run: int, branch: int, turns: Sequence[Turn]) -> None:
        """Let the next answers in a branch be these turns."""
        ids = Random(f"{self._seed}/{run}/{branch}")
        self._branches.setdefault((run, branch), _Branch(client, deque(), ids)).turns.extend(turns)

    def exchanges(self) -> list[Exchange]:
        """Return what was answered in full, in the order of arrival."""
        return sorted(self._exchanges, key=lambda exchange: exchange.asked_at)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve on a free port of this machine."""
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/run/{run:[0-9]+}/{branch:[0-9]+}{path:/.*}", self._answer)
        async with serving(app) as self.address:
            yield

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked_at = next(self._order)
        run, number = int(request.match_info["run"]), int(request.match_info["branch"])
        path, body = request.match_info["path"], await request.read()
        branch = self._branches[run, number]
        asked = json.loads(body)
        as_whole, as_events = _FORMS[path]
        turn = branch.turns.popleft()
        streamed = bool(asked.get("stream"))
        if streamed:
            answer: web.StreamResponse = web.StreamResponse()
            answer.content_type = "text/event-stream"
            events = as_events(turn, asked, branch.new_id)
            await answer.prepare(request)
            for event in events[:-1]:
                await answer.write(event)
                await asyncio.sleep(0)
            answered_at = next(self._order)
            await answer.write(events[-1])
            said = b"".join(events)
        else:
            await asyncio.sleep(0)
            said = json.dumps(as_whole(turn, asked, branch.new_id), ensure_ascii=False).encode()
            answered_at = next(self._order)
            answer = web.Response(body=said, content_type="application/json")
        self._exchanges.append(
            Exchange(
                client=branch.client,
                run=run,
                branch=number,
                path=path + (f"?{request.query_string}" if request.query_string else ""),
                headers=tuple(request.headers.items()),
                request=body,
                response=said,
                streamed=streamed,
                asked_at=asked_at,
                answered_at=answered_at,
            )
        )
        return answer
