"""Recording of whole conversations of every kind of client: tools, further questions, forks."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random

from agents import OpenAIChatCompletionsModel, OpenAIResponsesModel

from tests.harness.agents import on_langchain, on_pydantic_ai
from tests.harness.agents.exchange import Exchange
from tests.harness.agents.on_anthropic import MessagesTalk
from tests.harness.agents.on_langchain import LangChainTalk
from tests.harness.agents.on_llama_index import LlamaIndexTalk
from tests.harness.agents.on_openai import (
    ChatTalk,
    DumpedChatTalk,
    HelpedChatTalk,
    JoinedChatTalk,
    ResponsesTalk,
)
from tests.harness.agents.on_openai_agents import OpenAIAgentsTalk
from tests.harness.agents.on_pydantic_ai import PydanticAITalk
from tests.harness.agents.script import write_turns, write_words
from tests.harness.agents.server import ScriptedServer
from tests.harness.agents.talk import Place, Talk, open_lines

_BOTH_WAYS: dict[str, Callable[..., Talk]] = {
    "openai_responses": ResponsesTalk,
    "anthropic": MessagesTalk,
    "langchain_chat": partial(LangChainTalk, model=on_langchain.chat_model),
    "langchain_responses": partial(LangChainTalk, model=on_langchain.responses_model),
    "langchain_messages": partial(LangChainTalk, model=on_langchain.messages_model),
    "llama_index": LlamaIndexTalk,
    "openai_agents_chat": partial(OpenAIAgentsTalk, model=OpenAIChatCompletionsModel),
    "openai_agents_responses": partial(OpenAIAgentsTalk, model=OpenAIResponsesModel),
    "pydantic_ai_chat": partial(PydanticAITalk, model=on_pydantic_ai.chat_model),
    "pydantic_ai_responses": partial(PydanticAITalk, model=on_pydantic_ai.responses_model),
}

CLIENTS: Mapping[str, Callable[[Place], Talk]] = {
    "openai_chat": ChatTalk,
    "openai_chat_dumped": DumpedChatTalk,
    "openai_chat_joined_streamed": JoinedChatTalk,
    "openai_chat_helped_streamed": HelpedChatTalk,
    **{name: partial(talk, streamed=False) for name, talk in _BOTH_WAYS.items()},
    **{f"{name}_streamed": partial(talk, streamed=True) for name, talk in _BOTH_WAYS.items()},
}
"""Constructor of a conversation by kind of client; names that end in `_streamed` stream."""


async def record_traces(
    seed: int,
    runs_per_client: int,
    *,
    clients: Sequence[str] = tuple(CLIENTS),
    most_turns: int = 6,
    alike: bool = False,
) -> list[Exchange]:
    """Run conversations of all clients concurrently and return their exchanges.

    Each run asks two questions, and then is forked: either continuation asks one more, both at the
    same time.

    Args:
        seed: Of the questions, the answers and the ids; the order of arrival is the machine's.
        runs_per_client: How many conversations each kind of client has.
        clients: Which kinds, by their names in `CLIENTS`.
        most_turns: In how many turns the model answers a question at most, at least 2; the first
            question takes two or more.
        alike: Whether all runs of a client ask the same and are answered the same, so that they
            differ in ids only.

    Returns:
        All exchanges, in the order of arrival. Their `run` is unique among all clients.
    """
    server = ScriptedServer(seed)
    kinds = [name for _ in range(runs_per_client) for name in clients]
    async with server.serving(), open_lines() as lines, asyncio.TaskGroup() as running:
        for run, client in enumerate(kinds):
            random = Random(f"{seed}/{client if alike else run}")
            place = Place(server.url(run, 0), "key", lines)
            talk = _Run(server, client, run, random, most_turns)
            running.create_task(talk.converse(place))
    return server.exchanges()


@cache
def short_traces() -> list[Exchange]:
    """Return two short runs of every client, recorded once per process."""
    return asyncio.run(record_traces(1, 2, most_turns=2))


@dataclass(frozen=True, slots=True)
class _Run:
    """Conversation with its fork."""

    server: ScriptedServer
    client: str
    number: int
    random: Random
    most_turns: int

    async def converse(self, place: Place) -> None:
        talk = CLIENTS[self.client](place)
        await self._ask(talk, branch=0, least_turns=2)
        await self._ask(talk, branch=0)
        fork = talk.forked(place.moved(self.server.url(self.number, 1)))
        await asyncio.gather(self._ask(talk, branch=0), self._ask(fork, branch=1))

    async def _ask(self, talk: Talk, *, branch: int, least_turns: int = 1) -> None:
        question = write_words(self.random, 6)
        turns = write_turns(self.random, self.random.randint(least_turns, self.most_turns))
        self.server.plan(self.client, self.number, branch, turns)
        await talk.ask(question)
