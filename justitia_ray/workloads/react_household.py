"""ALFWI: reaching a goal in a household (ReAct on ALFWorld, arXiv:2210.03629).

Turn by turn the model writes one line, a thought or a command; the household answers what is seen.
"""

import functools
from collections.abc import Callable
from typing import Protocol

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
    """Play the game that an opening text describes, in a household of our own; see `Workload`.

    Raises:
        RequestError: If the text names no receptacle or no task, and is to be played by a real
            model.
    """
    return await _play(app, text, lengths, Household)


def workload(start: Callable[[str], Game]) -> Workload:
    """Return the agent in another household, e.g. `alfworld_game.start`.

    Args:
        start: Begins the game that an opening text describes.
    """

    async def run_there(app: Chats, text: str, lengths: Lengths) -> Result:
        return await _play(app, text, lengths, start)

    return run_there


async def _play(app: Chats, text: str, lengths: Lengths, start: Callable[[str], Game]) -> Result:
    steps = Steps(app, lengths)
    game = None if lengths.steered else start(text)
    transcript = Transcript(INSTRUCTION, text, examples_for(text))
    turns = lengths.rounds("turn") if lengths.steered else MAX_TURNS
    for number in range(1, turns + 1):
        answer = await steps.turn("turn", number, transcript, stop=("\n",))
        if number < turns:
            seen = await steps.run_tool(f"turn_{number + 1}", functools.partial(_act, game, answer))
            transcript.add(seen)
        if game is not None and game.is_done:
            return steps.result(f"done in {number} turns")
    return steps.result(f"not done in {turns} turns")


async def _act(game: Game | None, command: str) -> str:
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
