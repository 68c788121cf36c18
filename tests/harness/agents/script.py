"""The scripted model's output: turns of text, tool calls and reasoning, drawn from a seed."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

SYSTEM = (
    "You are a careful assistant.\n\nUse the tools where they help, and answer in one sentence."
)
"""System prompt of all agents; a common prompt cannot identify a conversation."""

_WORDS = (
    "amber birch copper delta ember fjord granite harbour island juniper kelp lantern meadow "
    "north orchard pebble quarry river stone timber umbra valley willow xenon yarrow zephyr "
    "Köln Málaga 東京"
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    text: str
    calls: tuple[ToolCall, ...]
    reasoning: str
    """Reasoning text of the answer; empty for an answer without reasoning."""


def look_up(words: str, count: int) -> str:
    """Search for words, and return some passages.

    Args:
        words: What to look for.
        count: How many passages.
    """
    return "\n".join(f"{number}. {words}" for number in range(1, count + 1))


def measure(place: str, depth: float) -> str:
    """Return the water temperature at a place.

    Args:
        place: Where.
        depth: In metres.
    """
    return json.dumps({"place": place, "celsius": 4 + 10 / (1 + depth)})


TOOLS = (look_up, measure)


def call_tool(name: str, arguments: str) -> str:
    """Run a tool with the JSON arguments that a model wrote, and return its result."""
    tools: dict[str, Callable[..., str]] = {"look_up": look_up, "measure": measure}
    return tools[name](**json.loads(arguments))


def random_words(random: Random, count: int) -> str:
    return " ".join(random.choices(_WORDS.split(), k=count))


def random_turns(random: Random, count: int) -> list[Turn]:
    """Return random answers for an agent; all but the last one call tools.

    The turns contain what clients are known to alter: text beside tool calls or none, surrounding
    white space, non-ASCII letters, and arguments with numbers and spaces that `json.dumps` would
    format differently.
    """
    turns = [_random_calling_turn(random) for _ in range(count - 1)]
    return [*turns, Turn(_random_text(random), (), _random_reasoning(random))]


def _random_calling_turn(random: Random) -> Turn:
    calls = tuple(_random_tool_call(random) for _ in range(random.choice((1, 1, 2))))
    text = _random_text(random) if random.random() < 0.5 else ""
    return Turn(text, calls, _random_reasoning(random))


def _random_text(random: Random) -> str:
    before = random.choice(("", "", "\n\n", " "))
    after = random.choice(("", "", "\n", " "))
    return f"{before}{random_words(random, random.randint(3, 9)).capitalize()}.{after}"


def _random_reasoning(random: Random) -> str:
    return f"Let me see: {random_words(random, 4)}.\n" if random.random() < 0.3 else ""


def _random_tool_call(random: Random) -> ToolCall:
    compact = random.random() < 0.5
    words = json.dumps(random_words(random, 2), ensure_ascii=random.random() < 0.5)
    space = "" if compact else " "
    if random.random() < 0.5:
        count = random.randint(1, 3)
        return ToolCall("look_up", f'{{"words":{space}{words},{space}"count":{space}{count}}}')
    depth = random.choice(("2", "2.0", "1e1", "0.50"))
    return ToolCall("measure", f'{{"depth":{space}{depth},{space}"place":{space}{words}}}')
