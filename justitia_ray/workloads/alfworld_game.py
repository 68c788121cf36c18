"""ALFWorld's own games (Shridhar et al., arXiv:2010.03768), where its package and its data are.

`pip install 'justitia-ray[alfworld]'` installs the package, which builds a planner in C++ for some
minutes; `alfworld-download` brings the games into `$ALFWORLD_DATA`. With both there, the agent of
ALFWI plays them; without, games of our own household.
"""

import functools
import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError, RequestError, shown_short
from justitia_ray.workloads.household import as_command, receptacles_in

DATA_VARIABLE = "ALFWORLD_DATA"
_GAME_FILE = "game.tw-pddl"
_FIELDS = ("pddl_domain", "grammar", "pddl_problem")
_TASK = re.compile(r"Your task is to: ?(.+?)\.?(?=\n|\"|$)")
_PUT = re.compile(r"put (.+?) (?:in/on|in|on) (.+)")
"""As the papers' prompts and ours have it; since its version 0.4 the package says `move … to …`."""


class AlfworldGame:
    """One game.

    Args:
        file: Its `game.tw-pddl`.

    Attributes:
        opening: The first observation, with the receptacles, and the task.
        is_done: Whether the goal is reached.
    """

    def __init__(self, file: Path) -> None:
        # They take seconds, and are there on few machines.
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs import PddlEnv

        self._environment: Any = AlfredDemangler(PddlEnv())
        self._environment.load(_content(file))
        feedback = str(self._environment.reset().feedback)
        self.opening = feedback[max(0, feedback.find("You are ")) :].strip()
        self.is_done = False

    def act(self, command: str) -> str:
        """Carry out a command and return what is seen of it.

        Thoughts are answered as in the papers' prompts, and are no commands of the game.
        """
        said = as_command(command)
        if said.startswith("think:"):
            return "OK."
        state, _, is_done = self._environment.step(_PUT.sub(r"move \1 to \2", said))
        self.is_done = bool(is_done)
        return str(state.feedback).strip()


class AlfworldGames:
    """The games below a directory, by the texts that they begin with.

    Args:
        directory: Searched for files `game.tw-pddl`.

    Raises:
        ConfigError: If there is no such file, or one of them is not a game.
    """

    def __init__(self, directory: Path) -> None:
        self._by_task: dict[str, list[Path]] = {}
        for file in sorted(directory.rglob(_GAME_FILE)):
            self._by_task.setdefault(_task_of(_content(file)["grammar"]), []).append(file)
        if not self._by_task:
            raise ConfigError(
                f"{DATA_VARIABLE} must name a directory of ALFWorld's games ({_GAME_FILE}), as"
                f" alfworld-download makes it, has none: {directory}"
            )

    def start(self, text: str) -> AlfworldGame:
        """Begin the game that an opening text describes.

        Raises:
            RequestError: If none begins so.
        """
        game = self.find(text)
        if game is None:
            raise RequestError(
                f"the opening must be that of one of ALFWorld's games, got {shown_short(text)}"
            )
        return game

    def find(self, text: str) -> AlfworldGame | None:
        """Begin the game that an opening text describes; None if none begins so."""
        wanted = _begins_with(text)
        games = map(AlfworldGame, self._by_task.get(_task_of(text), []))
        return next((game for game in games if _begins_with(game.opening) == wanted), None)


@functools.cache
def installed_games() -> AlfworldGames | None:
    """Return ALFWorld's games; None if the package is not installed, or nobody says where they are.

    Raises:
        ConfigError: If there are none where `$ALFWORLD_DATA` says.
    """
    directory = os.environ.get(DATA_VARIABLE)
    if not directory or find_spec("alfworld") is None:
        return None
    return AlfworldGames(Path(directory))


def _begins_with(opening: str) -> tuple[str, list[str]]:
    """Return what tells games apart: the task, and the receptacles in any order."""
    return _task_of(opening), sorted(receptacles_in(opening))


def _task_of(text: str) -> str:
    found = _TASK.search(text)
    return "" if found is None else found.group(1).strip()


def _content(file: Path) -> dict[str, Any]:
    """Return domain, grammar and problem of a game."""
    try:
        found = json.loads(file.read_bytes())
        return {name: str(found[name]) for name in _FIELDS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: not a game of ALFWorld: {error!r}") from error
