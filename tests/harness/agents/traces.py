"""Recording of whole conversations of all agent clients: tools, further questions, forks."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random

from agents import OpenAIChatCompletionsModel, OpenAIResponsesModel

from tests.harness.agents import on_langchain, on_pydantic_ai
from tests.harness.agents.exchange import Exchange
from tests.harness.agents.on_anthropic import MessagesConversation
from tests.harness.agents.on_langchain import LangChainConversation
from tests.harness.agents.on_llama_index import LlamaIndexConversation
from tests.harness.agents.on_openai import (
    ChatConversation,
    DumpedChatConversation,
    HelpedChatConversation,
    JoinedChatConversation,
    ResponsesConversation,
)
from tests.harness.agents.on_openai_agents import OpenAIAgentsConversation
from tests.harness.agents.on_pydantic_ai import PydanticAIConversation
from tests.harness.agents.script import random_turns, random_words
from tests.harness.agents.server import ScriptedServer
from tests.harness.agents.talk import Conversation, ModelAddress, open_http_clients

_BOTH_WAYS: dict[str, Callable[..., Conversation]] = {
    "openai_responses": ResponsesConversation,
    "anthropic": MessagesConversation,
    "langchain_chat": partial(LangChainConversation, model=on_langchain.openai_chat_model),
    "langchain_responses": partial(
        LangChainConversation, model=on_langchain.openai_responses_model
    ),
    "langchain_messages": partial(LangChainConversation, model=on_langchain.anthropic_model),
    "llama_index": LlamaIndexConversation,
    "openai_agents_chat": partial(OpenAIAgentsConversation, model=OpenAIChatCompletionsModel),
    "openai_agents_responses": partial(OpenAIAgentsConversation, model=OpenAIResponsesModel),
    "pydantic_ai_chat": partial(PydanticAIConversation, model=on_pydantic_ai.openai_chat_model),
    "pydantic_ai_responses": partial(
        PydanticAIConversation, model=on_pydantic_ai.openai_responses_model
    ),
}

CLIENTS: Mapping[str, Callable[[ModelAddress], Conversation]] = {
    "openai_chat": ChatConversation,
    "openai_chat_dumped": DumpedChatConversation,
    "openai_chat_joined_streamed": JoinedChatConversation,
    "openai_chat_helped_streamed": HelpedChatConversation,
    **{name: partial(talk, streamed=False) for name, talk in _BOTH_WAYS.items()},
    **{f"{name}_streamed": partial(talk, streamed=True) for name, talk in _BOTH_WAYS.items()},
}
"""Functions that start a conversation, by name of the client library; those named `_streamed`
stream.
"""


async def record_traces(
    seed: int,
    runs_per_client: int,
    *,
    clients: Sequence[str] = tuple(CLIENTS),
    most_turns: int = 6,
    alike: bool = False,
) -> list[Exchange]:
    """Run conversations of all client libraries concurrently, and return their HTTP calls.

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
    async with server.serving(), open_http_clients() as lines, asyncio.TaskGroup() as running:
        for run, client in enumerate(kinds):
            random = Random(f"{seed}/{client if alike else run}")
            place = ModelAddress(server.branch_url(run, 0), "key", lines)
            talk = _ConversationRun(server, client, run, random, most_turns)
            running.create_task(talk.hold_conversation(place))
    return server.answered_exchanges()


@cache
def recorded_short_traces() -> list[Exchange]:
    """Return the HTTP calls of two short conversations per client, recorded once per process."""
    return asyncio.run(record_traces(1, 2, most_turns=2))


@dataclass(frozen=True, slots=True)
class _ConversationRun:
    """Conversation that is forked after its second question."""

    server: ScriptedServer
    client: str
    number: int
    random: Random
    most_turns: int

    async def hold_conversation(self, place: ModelAddress) -> None:
        talk = CLIENTS[self.client](place)
        await self._ask_random_question(talk, branch=0, least_turns=2)
        await self._ask_random_question(talk, branch=0)
        fork = talk.forked_conversation(place.with_url(self.server.branch_url(self.number, 1)))
        await asyncio.gather(
            self._ask_random_question(talk, branch=0), self._ask_random_question(fork, branch=1)
        )

    async def _ask_random_question(
        self, talk: Conversation, *, branch: int, least_turns: int = 1
    ) -> None:
        question = random_words(self.random, 6)
        turns = random_turns(self.random, self.random.randint(least_turns, self.most_turns))
        self.server.plan_turns(self.client, self.number, branch, turns)
        await talk.ask_question(question)
