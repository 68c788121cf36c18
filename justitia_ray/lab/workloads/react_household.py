"""ALFWI: reaching a goal in a household (ReAct on ALFWorld, arXiv:2210.03629).

In each turn the model writes one line, a thought or a command; the household answers with an
observation.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Protocol

from justitia_ray.lab.workloads.household import Household, installed_games, transcript_of
from justitia_ray.lab.workloads.steps import AgentResult, Chats, Steps, Transcript, Workload
from justitia_ray.sim.suites.inputs import household_game
from justitia_ray.sim.suites.load_plan import Lengths

INSTRUCTION = """\
You act in a household to fulfil a task. Each turn write one line: either a thought, as "think:
...", or one command, as in the games below. Stop when the task is fulfilled."""

MAX_TURNS = 50
"""Maximum number of turns in the paper; the longest recorded run had 43."""

_SHOTS = 2
_EXAMPLE_CHARS = range(1_500, 2_300)
"""Length of an example game in characters, which gives prompts of the recorded length."""


class Game(Protocol):
    """Interface of a household game."""

    @property
    def is_done(self) -> bool:
        """Whether the goal of the game is reached."""

    def act(self, command: str) -> str: ...


def workload(start: Callable[[str], Game]) -> Workload:
    """Return the agent for games from `start`, for example `AlfworldGames(directory).start`.

    If lengths are planned, the answers have no effect and no game runs.

    Args:
        start: Starts the game that an opening text describes. It is called in a thread, as are its
            games' methods, so both may block.
    """

    async def run_there(app: Chats, text: str, lengths: Lengths) -> AgentResult:
        game = None if lengths.steered else await asyncio.to_thread(start, text)
        steps = Steps(app, lengths)
        transcript = Transcript(INSTRUCTION, text, examples_for(text))
        turns = lengths.rounds("turn") if lengths.steered else MAX_TURNS
        for number in range(1, turns + 1):
            answer = await steps.turn("turn", number, transcript, stop=("\n",))
            if number < turns:
                act = functools.partial(asyncio.to_thread, _observe, game, answer)
                transcript.add(await steps.run_tool(f"turn_{number + 1}", act))
            if game is not None and game.is_done:
                return steps.result(f"done in {number} turns")
        return steps.result(f"not done in {turns} turns")

    return run_there


def start_game(text: str) -> Game:
    """Start the ALFWorld game with an opening text, or this project's own game without ALFWorld.

    Raises:
        RequestError: If the text names no receptacle or no task.
    """
    games = installed_games()
    found = None if games is None else games.find_game(text)
    return found or Household(text)


run = workload(start_game)
"""Agent that plays the household game of an opening text."""


def _observe(game: Game | None, command: str) -> str:
    return "" if game is None else game.act(command.strip().removeprefix(">").strip())


def examples_for(text: str) -> tuple[str, ...]:
    """Return two example games, as text, for the kind of task in an opening text."""
    verb = _task_verb(text)
    return (
        _examples_by_kind()[verb]
        if verb in _examples_by_kind()
        else next(iter(_examples_by_kind().values()))
    )


@functools.cache
def _examples_by_kind() -> dict[str, tuple[str, ...]]:
    """Return the first games of a suitable length, by kind of task."""
    found: dict[str, list[str]] = {}
    for seed in range(2_000):
        text = household_game(seed)
        games = found.setdefault(_task_verb(text), [])
        if len(games) < _SHOTS and len(game := transcript_of(text)) in _EXAMPLE_CHARS:
            games.append(game)
    return {verb: tuple(games) for verb, games in sorted(found.items())}


def _task_verb(text: str) -> str:
    return text.rpartition("ask is to:")[2].split()[0].lower() if "ask is to:" in text else ""
