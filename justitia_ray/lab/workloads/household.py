"""Text households: a small game of our own, modelled on ALFWorld's, and ALFWorld's own games.

Our opening text names the receptacles and the task; the places of the objects are drawn from that
text alone, so equal openings give equal games.

ALFWorld's games (Shridhar et al., arXiv:2010.03768) are played where its package and data are
installed. `pip install 'justitia-ray[alfworld]'` installs the package, which compiles a planner in
C++ for some minutes; `alfworld-download` downloads the games into `$ALFWORLD_DATA`.
"""

import functools
import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError, RequestError, shown_short

_OPENABLE = ("cabinet", "drawer", "fridge", "microwave", "safe")
_CLUTTER = ("book", "candle", "cloth", "fork", "keychain", "newspaper", "pencil", "vase")
_TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_TREATMENT_OF = {"clean": "clean", "hot": "heat", "cool": "cool"}

_RECEPTACLE = re.compile(r"\ban? ([a-z]+ \d+)")
_TASK = re.compile(r"your task is to:\s*(.+?)\s*\.?\s*$", re.IGNORECASE | re.DOTALL)
_LOOK = re.compile(r"(?:look at|examine) (?:the |an? )?(\w+) (?:under|with) the (\w+)")
_PUT_TREATED = re.compile(r"(clean|heat|cool) some (\w+) and put it in (?:the )?(\w+)")
_PUT_STATED = re.compile(r"put (?:an? )?(clean|hot|cool) (\w+) in (?:the )?(\w+)")
_PUT = re.compile(
    r"(?:put|find) (some|an?|two) (\w+) (?:and put (?:it|them) )?(?:in|on) (?:the )?(\w+)"
)

_COMMANDS = (
    (re.compile(r"go to (\w+ \d+)"), "_go_to_receptacle"),
    (re.compile(r"open (\w+ \d+)"), "_open"),
    (re.compile(r"take (\w+ \d+) from (\w+ \d+)"), "_take"),
    (re.compile(r"(?:put|move) (\w+ \d+) (?:in/on|in|on|to) (\w+ \d+)"), "_put"),
    (re.compile(r"(clean|heat|cool) (\w+ \d+) with (\w+ \d+)"), "_treat_object"),
    (re.compile(r"use (\w+ \d+)"), "_use_lamp"),
)
NOTHING = "Nothing happens."


@dataclass(frozen=True, slots=True)
class Goal:
    """Goal of a game: objects, perhaps heated, cooled or cleaned, in a kind of receptacle.

    In goals with a lamp: look at an object of the kind in the lamp's light.
    """

    kind: str
    target: str = ""
    count: int = 1
    treatment: str = ""
    """Treatment of the objects: `clean`, `heat`, `cool`, or "" for none."""
    lamp: str = ""


@dataclass
class _Receptacle:
    is_open: bool
    objects: list[str] = field(default_factory=list)


class Household:
    """Text game in a simulated household.

    Args:
        opening: The first observation, with the receptacles, and the task.

    Raises:
        RequestError: If `opening` names no receptacle, or no task of a known kind.
    """

    def __init__(self, opening: str) -> None:
        self.goal = goal_of(opening)
        names: dict[str, None] = dict.fromkeys(receptacles_in(opening))
        if not names:
            raise RequestError("the opening must name receptacles, as in 'a desk 1', has none")
        self.is_done = False
        self.held: str | None = None
        self.place: str | None = None
        self._treated: dict[str, str] = {}
        needed = {self.goal.target, _TOOLS.get(self.goal.treatment, "")} - {""}
        for kind in sorted(needed - {name.split()[0] for name in names}):
            names[f"{kind} 1"] = None
        self.receptacles: dict[str, _Receptacle] = {
            name: _Receptacle(name.split()[0] not in _OPENABLE) for name in sorted(names)
        }
        self._place_objects(random.Random(f"household/{opening}"))

    def act(self, command: str) -> str:
        """Carry out a game command and return the observation; unknown commands have no effect."""
        said = as_command(command)
        if said.startswith("think:"):
            return "OK."
        if said in ("look", "inventory", "examine"):
            return f"You are carrying: {self.held or 'nothing'}. {self._describe_view()}"
        for form, verb in _COMMANDS:
            if found := form.fullmatch(said):
                seen: str = getattr(self, verb)(*found.groups())
                self._check_goal()
                return seen
        return NOTHING

    def receptacles_with(self, kind: str) -> list[str]:
        """Return the receptacles that contain an object of a kind; the player cannot see this."""
        return [
            name
            for name, receptacle in self.receptacles.items()
            if any(_is_of_kind(item, kind) for item in receptacle.objects)
        ]

    def _place_objects(self, rng: random.Random) -> None:
        elsewhere = [name for name in self.receptacles if not _is_of_kind(name, self.goal.target)]
        for number in range(1, self.goal.count + 1):
            name = rng.choice(elsewhere or list(self.receptacles))
            self.receptacles[name].objects.append(f"{self.goal.kind} {number}")
        if self.goal.lamp:
            in_sight = [r for r in self.receptacles.values() if r.is_open]
            place = rng.choice(in_sight or list(self.receptacles.values()))
            place.objects.append(f"{self.goal.lamp} 1")
        for number, receptacle in enumerate(self.receptacles.values(), 1):
            for kind in rng.sample(_CLUTTER, rng.randrange(3)):
                if kind != self.goal.kind:
                    receptacle.objects.append(f"{kind} {number}")

    def _describe_view(self) -> str:
        if self.place is None:
            return "You are in the middle of a room."
        receptacle = self.receptacles[self.place]
        if not receptacle.is_open:
            return f"The {self.place} is closed."
        things = ", ".join(f"a {item}" for item in receptacle.objects) or "nothing"
        return f"On the {self.place}, you see {things}."

    def _go_to_receptacle(self, name: str) -> str:
        if name not in self.receptacles:
            return NOTHING
        self.place = name
        return f"You arrive at {name}. {self._describe_view()}"

    def _open(self, name: str) -> str:
        if name != self.place or self.receptacles[name].is_open:
            return NOTHING
        self.receptacles[name].is_open = True
        return f"You open the {name}. {self._describe_view()}"

    def _take(self, item: str, name: str) -> str:
        if self.held or name != self.place or not self.receptacles[name].is_open:
            return NOTHING
        if item not in self.receptacles[name].objects:
            return NOTHING
        self.receptacles[name].objects.remove(item)
        self.held = item
        return f"You pick up the {item} from the {name}."

    def _put(self, item: str, name: str) -> str:
        if item != self.held or name != self.place or not self.receptacles[name].is_open:
            return NOTHING
        self.receptacles[name].objects.append(item)
        self.held = None
        return f"You put the {item} in/on the {name}."

    def _treat_object(self, treatment: str, item: str, name: str) -> str:
        if item != self.held or name != self.place or not _is_of_kind(name, _TOOLS[treatment]):
            return NOTHING
        self._treated[item] = treatment
        return f"You {treatment} the {item} using the {name}."

    def _use_lamp(self, item: str) -> str:
        if self.place is None or item not in self.receptacles[self.place].objects:
            return NOTHING
        if self.goal.lamp and _is_of_kind(item, self.goal.lamp):
            self.is_done |= self.held is not None and _is_of_kind(self.held, self.goal.kind)
        return f"You turn on the {item}."

    def _check_goal(self) -> None:
        if self.goal.lamp:
            return
        there = [
            item
            for name, receptacle in self.receptacles.items()
            if _is_of_kind(name, self.goal.target)
            for item in receptacle.objects
            if _is_of_kind(item, self.goal.kind)
            and self.goal.treatment in ("", self._treated.get(item))
        ]
        self.is_done |= len(there) >= self.goal.count


def receptacles_in(opening: str) -> list[str]:
    """Return the receptacles that the opening text of a game names."""
    return _RECEPTACLE.findall(opening.partition("Your task")[0])


def as_command(answer: str) -> str:
    """Return a model's answer as a game command: lower case, single spaces."""
    return " ".join(answer.lower().strip(" .>").split())


def goal_of(opening: str) -> Goal:
    """Return the goal that the opening text of a game states.

    Raises:
        RequestError: If the task is of an unknown kind.
    """
    found = _TASK.search(opening)
    task = " ".join(found[1].lower().split()) if found else ""
    if look := _LOOK.fullmatch(task):
        return Goal(look[1], lamp=look[2])
    if treated := _PUT_TREATED.fullmatch(task):
        return Goal(treated[2], treated[3], treatment=treated[1])
    if stated := _PUT_STATED.fullmatch(task):
        return Goal(stated[2], stated[3], treatment=_TREATMENT_OF[stated[1]])
    if put := _PUT.fullmatch(task):
        return Goal(put[2], put[3], count=2 if put[1] == "two" else 1)
    raise RequestError(
        "the task must be to put, clean, heat, cool or look at something, as ALFWorld's tasks are,"
        f" got {task!r:.80}"
    )


def _is_of_kind(name: str, kind: str) -> bool:
    return name.rpartition(" ")[0] == kind


def transcript_of(text: str) -> str:
    """Return a whole game as text for a model: opening, thoughts, actions, observations."""
    game = Household(text)
    turns = [f"> {command}\n{game.act(command)}" for command in solution(game)]
    return "\n".join([text, *turns])


def solution(game: Household) -> Iterator[str]:
    """Yield the commands that reach a game's goal, each to be carried out before the next."""
    goal = game.goal
    yield (
        f"think: To reach the goal I need a {goal.kind}. I look for one place by place, and then do"
        " with it what the task says."
    )
    for number in range(1, goal.count + 1):
        yield from _fetch_object(game, f"{goal.kind} {number}")
        if goal.lamp:
            [place] = game.receptacles_with(goal.lamp)
            yield f"think: Now that I have the {goal.kind}, I need the {goal.lamp}."
            yield f"go to {place}"
            yield f"use {goal.lamp} 1"
            return
        if goal.treatment:
            tool = _first_of_kind(game, _TOOLS[goal.treatment])
            yield f"think: Next I have to {goal.treatment} the {goal.kind} {number} with {tool}."
            yield f"go to {tool}"
            yield f"{goal.treatment} {goal.kind} {number} with {tool}"
        place = _first_of_kind(game, goal.target)
        yield f"think: Now I put the {goal.kind} {number} where the task wants it, in {place}."
        yield from _enter(game, place)
        yield f"put {goal.kind} {number} in/on {place}"


def _fetch_object(game: Household, item: str) -> Iterator[str]:
    """Search the receptacles in order for an object, and take it."""
    for name, receptacle in game.receptacles.items():
        yield from _enter(game, name)
        if item in receptacle.objects:
            yield f"take {item} from {name}"
            return


def _enter(game: Household, name: str) -> Iterator[str]:
    yield f"go to {name}"
    if not game.receptacles[name].is_open:
        yield f"open {name}"


def _first_of_kind(game: Household, kind: str) -> str:
    return next(name for name in game.receptacles if _is_of_kind(name, kind))


DATA_VARIABLE = "ALFWORLD_DATA"
_GAME_FILE = "game.tw-pddl"
_FIELDS = ("pddl_domain", "grammar", "pddl_problem")
_ALFWORLD_TASK = re.compile(r"Your task is to: ?(.+?)\.?(?=\n|\"|$)")
_PUT_COMMAND = re.compile(r"put (.+?) (?:in/on|in|on) (.+)")
"""Put command of the papers' prompts; the ALFWorld package expects `move … to …` since 0.4."""


class AlfworldGame:
    """Game of the ALFWorld package.

    Args:
        file: File `game.tw-pddl` of the game.

    Attributes:
        opening: The first observation, with the receptacles, and the task.
        is_done: Whether the goal is reached.
    """

    def __init__(self, file: Path) -> None:
        # ALFWorld's packages take seconds to import.
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs import PddlEnv

        self._environment: Any = AlfredDemangler(PddlEnv())
        self._environment.load(_read_game(file))
        feedback = str(self._environment.reset().feedback)
        self.opening = feedback[max(0, feedback.find("You are ")) :].strip()
        self.is_done = False

    def act(self, command: str) -> str:
        """Carry out a command; a thought is answered with "OK.", as in the papers' prompts."""
        said = as_command(command)
        if said.startswith("think:"):
            return "OK."
        state, _, is_done = self._environment.step(_PUT_COMMAND.sub(r"move \1 to \2", said))
        self.is_done = bool(is_done)
        return str(state.feedback).strip()


class AlfworldGames:
    """ALFWorld's games in a directory, found by their opening text.

    Args:
        directory: Searched for files `game.tw-pddl`.

    Raises:
        ConfigError: If there is no such file, or one of them is not a game.
    """

    def __init__(self, directory: Path) -> None:
        self._by_task: dict[str, list[Path]] = {}
        for file in sorted(directory.rglob(_GAME_FILE)):
            self._by_task.setdefault(_alfworld_task(_read_game(file)["grammar"]), []).append(file)
        if not self._by_task:
            raise ConfigError(
                f"{DATA_VARIABLE} must name a directory of ALFWorld's games ({_GAME_FILE}), as"
                f" alfworld-download makes it, has none: {directory}"
            )

    def start(self, text: str) -> AlfworldGame:
        """Start the game with an opening text.

        Raises:
            RequestError: If no game has this opening.
        """
        game = self.find_game(text)
        if game is None:
            raise RequestError(
                f"the opening must be that of one of ALFWorld's games, got {shown_short(text)}"
            )
        return game

    def find_game(self, text: str) -> AlfworldGame | None:
        """Start the game with an opening text; return None if there is none."""
        wanted = _game_identity(text)
        games = map(AlfworldGame, self._by_task.get(_alfworld_task(text), []))
        return next((game for game in games if _game_identity(game.opening) == wanted), None)


@functools.cache
def installed_games() -> AlfworldGames | None:
    """Return ALFWorld's games; None without the package or without `$ALFWORLD_DATA`.

    Raises:
        ConfigError: If the directory `$ALFWORLD_DATA` has no games.
    """
    directory = os.environ.get(DATA_VARIABLE)
    if not directory or find_spec("alfworld") is None:
        return None
    return AlfworldGames(Path(directory))


def _game_identity(opening: str) -> tuple[str, list[str]]:
    """Return the task and the sorted receptacles, which identify a game."""
    return _alfworld_task(opening), sorted(receptacles_in(opening))


def _alfworld_task(text: str) -> str:
    found = _ALFWORLD_TASK.search(text)
    return "" if found is None else found.group(1).strip()


def _read_game(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
        return {name: str(found[name]) for name in _FIELDS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: not a game of ALFWorld: {error!r}") from error
