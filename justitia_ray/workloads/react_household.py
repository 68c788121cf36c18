"""ALFWI: reaching a goal in a household (ReAct on ALFWorld, arXiv:2210.03629).

Turn by turn the model writes one line, a thought or a command; the household answers what is seen.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Protocol

from justitia_ray.workloads.alfworld_game import installed_games
from justitia_ray.workloads.household import Household
from justitia_ray.workloads.household_games import opening, played
from justitia_ray.workloads.lengths import Lengths
from justitia_ray.workloads.steps import Chats, Result, Steps, Workload
from justitia_ray.workloads.transcript import Transcript

INSTRUCTION = """\
You act in a household to fulfil a task. Each turn write one line: either a thought, as "think:
...", or one command, as in the games below. Stop when the task is fulfilled."""

MAX_TURNS = 50
"""As in the paper; the longest recorded run had 43."""

_SHOTS = 2
_EXAMPLE_CHARS = range(1_500, 2_300)
"""Of one example game; two of them make the recorded templates of 3,199 to 4,403 characters."""


class Game(Protocol):
    """A household to act in."""

    @property
    def is_done(self) -> bool:
        """Whether the goal is reached."""

    def act(self, command: str) -> str:
        """Carry out a command and return what is seen of it."""


async def run(app: Chats, text: str, lengths: Lengths) -> Result:
    """Play the game that an opening text describes; see `Workload`.

    It is ALFWorld's own where its package is and a game that begins so (`alfworld_game`), otherwise
    one in a household of ours. Where lengths are planned, answers decide nothing and no game runs.

    Raises:
        RequestError: If the text names no receptacle or no task, and is to be played by a real
            model.
    """
    if lengths.steered:
        return await _play(app, text, lengths, None, _seen_now)
    games = installed_games()
    game = None if games is None else await asyncio.to_thread(games.find, text)
    if game is None:
        return await _play(app, text, lengths, Household(text), _seen_now)
    return await _play(app, text, lengths, game, _seen_in_thread)


def workload(start: Callable[[str], Game]) -> Workload:
    """Return the agent in another household, e.g. `AlfworldGames(directory).start`.

    Args:
        start: Begins the game that an opening text describes. It may take its time, and so may its
            games: they are called in threads.
    """

    async def run_there(app: Chats, text: str, lengths: Lengths) -> Result:
        game = None if lengths.steered else await asyncio.to_thread(start, text)
        return await _play(app, text, lengths, game, _seen_in_thread)

    return run_there


async def _play(
    app: Chats,
    text: str,
    lengths: Lengths,
    game: Game | None,
    act: Callable[[Game | None, str], Awaitable[str]],
) -> Result:
    steps = Steps(app, lengths)
    transcript = Transcript(INSTRUCTION, text, examples_for(text))
    turns = lengths.rounds("turn") if lengths.steered else MAX_TURNS
    for number in range(1, turns + 1):
        answer = await steps.turn("turn", number, transcript, stop=("\n",))
        if number < turns:
            seen = await steps.run_tool(f"turn_{number + 1}", functools.partial(act, game, answer))
            transcript.add(seen)
        if game is not None and game.is_done:
            return steps.result(f"done in {number} turns")
    return steps.result(f"not done in {turns} turns")


async def _seen_in_thread(game: Game | None, command: str) -> str:
    return await asyncio.to_thread(_seen, game, command)


async def _seen_now(game: Game | None, command: str) -> str:
    return _seen(game, command)


def _seen(game: Game | None, command: str) -> str:
    return "" if game is None else game.act(command.strip().removeprefix(">").strip())


def examples_for(text: str) -> tuple[str, ...]:
    """Return two games of the same kind of task, played to their ends."""
    verb = _verb(text)
    return _examples()[verb] if verb in _examples() else next(iter(_examples().values()))


@functools.cache
def _examples() -> dict[str, tuple[str, ...]]:
    """Return by kind of task the first games of a fit length."""
    found: dict[str, list[str]] = {}
    for seed in range(2_000):
        text = opening(seed)
        games = found.setdefault(_verb(text), [])
        if len(games) < _SHOTS and len(game := played(text)) in _EXAMPLE_CHARS:
            games.append(game)
    return {verb: tuple(games) for verb, games in sorted(found.items())}


def _verb(text: str) -> str:
    return text.rpartition("ask is to:")[2].split()[0].lower() if "ask is to:" in text else ""
