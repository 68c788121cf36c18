"""A small household in text, after ALFWorld's: receptacles, objects, and a goal to reach.

The opening text names the receptacles and the task; which objects are where is drawn from that text
alone, so that one opening is always the same game.
"""

import random
import re
from dataclasses import dataclass, field

from justitia_ray.errors import RequestError

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
    (re.compile(r"go to (\w+ \d+)"), "_go"),
    (re.compile(r"open (\w+ \d+)"), "_open"),
    (re.compile(r"take (\w+ \d+) from (\w+ \d+)"), "_take"),
    (re.compile(r"(?:put|move) (\w+ \d+) (?:in/on|in|on|to) (\w+ \d+)"), "_put"),
    (re.compile(r"(clean|heat|cool) (\w+ \d+) with (\w+ \d+)"), "_treat"),
    (re.compile(r"use (\w+ \d+)"), "_use"),
)
NOTHING = "Nothing happens."


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be reached: so many objects of a kind, perhaps treated, in a kind of receptacle.

    Or, with a lamp, an object of the kind looked at in its light.
    """

    kind: str
    target: str = ""
    count: int = 1
    treatment: str = ""
    """`clean`, `heat`, `cool`, or nothing."""
    lamp: str = ""


@dataclass
class _Receptacle:
    is_open: bool
    objects: list[str] = field(default_factory=list)


class Household:
    """One game.

    Args:
        opening: The first observation, with the receptacles, and the task.

    Raises:
        RequestError: If it names no receptacle, or no task of a known kind.
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
        self._fill(random.Random(f"household/{opening}"))

    def act(self, command: str) -> str:
        """Carry out a command and return what is seen of it; one that is none does nothing."""
        said = as_command(command)
        if said.startswith("think:"):
            return "OK."
        if said in ("look", "inventory", "examine"):
            return f"You are carrying: {self.held or 'nothing'}. {self._seen()}"
        for form, verb in _COMMANDS:
            if found := form.fullmatch(said):
                seen: str = getattr(self, verb)(*found.groups())
                self._check()
                return seen
        return NOTHING

    def where(self, kind: str) -> list[str]:
        """Return the receptacles that hold an object of a kind, for who may know."""
        return [
            name
            for name, receptacle in self.receptacles.items()
            if any(_is(item, kind) for item in receptacle.objects)
        ]

    def _fill(self, rng: random.Random) -> None:
        elsewhere = [name for name in self.receptacles if not _is(name, self.goal.target)]
        for number in range(1, self.goal.count + 1):
            name = rng.choice(elsewhere or list(self.receptacles))
            self.receptacles[name].objects.append(f"{self.goal.kind} {number}")
        if self.goal.lamp:
            in_sight = [r for r in self.receptacles.values() if r.is_open]
            rng.choice(in_sight or list(self.receptacles.values())).objects.append(
                f"{self.goal.lamp} 1"
            )
        for number, receptacle in enumerate(self.receptacles.values(), 1):
            for kind in rng.sample(_CLUTTER, rng.randrange(3)):
                if kind != self.goal.kind:
                    receptacle.objects.append(f"{kind} {number}")

    def _seen(self) -> str:
        if self.place is None:
            return "You are in the middle of a room."
        receptacle = self.receptacles[self.place]
        if not receptacle.is_open:
            return f"The {self.place} is closed."
        things = ", ".join(f"a {item}" for item in receptacle.objects) or "nothing"
        return f"On the {self.place}, you see {things}."

    def _go(self, name: str) -> str:
        if name not in self.receptacles:
            return NOTHING
        self.place = name
        return f"You arrive at {name}. {self._seen()}"

    def _open(self, name: str) -> str:
        if name != self.place or self.receptacles[name].is_open:
            return NOTHING
        self.receptacles[name].is_open = True
        return f"You open the {name}. {self._seen()}"

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

    def _treat(self, treatment: str, item: str, name: str) -> str:
        if item != self.held or name != self.place or not _is(name, _TOOLS[treatment]):
            return NOTHING
        self._treated[item] = treatment
        return f"You {treatment} the {item} using the {name}."

    def _use(self, item: str) -> str:
        if self.place is None or item not in self.receptacles[self.place].objects:
            return NOTHING
        if self.goal.lamp and _is(item, self.goal.lamp):
            self.is_done |= self.held is not None and _is(self.held, self.goal.kind)
        return f"You turn on the {item}."

    def _check(self) -> None:
        if self.goal.lamp:
            return
        there = [
            item
            for name, receptacle in self.receptacles.items()
            if _is(name, self.goal.target)
            for item in receptacle.objects
            if _is(item, self.goal.kind) and self.goal.treatment in ("", self._treated.get(item))
        ]
        self.is_done |= len(there) >= self.goal.count


def receptacles_in(opening: str) -> list[str]:
    """Return the receptacles that an opening names, as it names them."""
    return _RECEPTACLE.findall(opening.partition("Your task")[0])


def as_command(answer: str) -> str:
    """Return what a model wrote as games take it."""
    return " ".join(answer.lower().strip(" .>").split())


def goal_of(opening: str) -> Goal:
    """Return the goal that an opening's task states.

    Raises:
        RequestError: If it states none of a known kind.
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


def _is(name: str, kind: str) -> bool:
    """Return whether `mug 2` is a mug."""
    return name.rpartition(" ")[0] == kind
