"""HTTP server that answers each run of an agent from its script and records every exchange."""

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
from tests.harness.agents.messages_form import streamed_message_events, unary_message
from tests.harness.agents.responses_form import streamed_response_events, unary_response
from tests.harness.agents.script import Turn
from tests.harness.local_app import serve_locally

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
    "/v1/responses": (unary_response, streamed_response_events),
    "/v1/messages": (unary_message, streamed_message_events),
}


@dataclass(slots=True)
class _PlannedBranch:
    client: str
    turns: deque[Turn]
    random: Random
    """Seeded source of ids."""

    def new_random_id(self, prefix: str) -> str:
        return f"{prefix}{self.random.getrandbits(128):032x}"


class ScriptedServer:
    """HTTP server that gives each conversation its planned answers, in order.

    The run is identified by the API address given to its client, so headers and bodies stay as they
    are in production.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._branches: dict[tuple[int, int], _PlannedBranch] = {}
        self._order = itertools.count()
        self._exchanges: list[Exchange] = []
        self.address = ""
        """Base URL while the server runs, e.g. `http://127.0.0.1:4711`."""

    def branch_url(self, run: int, branch: int) -> str:
        """Return the API address for one branch of a conversation, without `/v1`."""
        return f"{self.address}/run/{run}/{branch}"

    def plan_turns(self, client: str, run: int, branch: int, turns: Sequence[Turn]) -> None:
        """Append answers to the plan of a conversation's branch."""
        ids = Random(f"{self._seed}/{run}/{branch}")
        self._branches.setdefault((run, branch), _PlannedBranch(client, deque(), ids)).turns.extend(
            turns
        )

    def answered_exchanges(self) -> list[Exchange]:
        """Return the completely answered calls in the order of arrival."""
        return sorted(self._exchanges, key=lambda exchange: exchange.asked_at)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/run/{run:[0-9]+}/{branch:[0-9]+}{path:/.*}", self._answer_call)
        async with serve_locally(app) as self.address:
            yield

    async def _answer_call(self, request: web.Request) -> web.StreamResponse:
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
            events = as_events(turn, asked, branch.new_random_id)
            await answer.prepare(request)
            for event in events[:-1]:
                await answer.write(event)
                await asyncio.sleep(0)
            answered_at = next(self._order)
            await answer.write(events[-1])
            said = b"".join(events)
        else:
            await asyncio.sleep(0)
            said = json.dumps(
                as_whole(turn, asked, branch.new_random_id), ensure_ascii=False
            ).encode()
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
