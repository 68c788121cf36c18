"""Openings of household games, and how somebody who knows the house plays one."""

import random
from collections.abc import Iterator

from justitia_ray.workloads.household import Household

_ROOMS = (
    ("bed", "desk", "desk", "drawer", "drawer", "drawer", "shelf", "shelf", "safe", "garbagecan"),
    ("cabinet", "cabinet", "countertop", "diningtable", "drawer", "fridge", "microwave", "shelf"),
    ("cabinet", "countertop", "garbagecan", "handtowelholder", "shelf", "sinkbasin", "toilet"),
)
_LEAST_RECEPTACLES = 5
_TASKS = (
    ("look at {thing} under the desklamp", ("bowl", "box", "laptop", "pillow"), ("",)),
    ("put some {thing} on {place}", ("peppershaker", "mug", "plate"), ("shelf", "diningtable")),
    ("clean some {thing} and put it in {place}", ("soapbar", "pan", "ladle"), ("cabinet", "shelf")),
    ("heat some {thing} and put it in {place}", ("egg", "potato", "cup"), ("garbagecan", "fridge")),
    ("cool some {thing} and put it in {place}", ("tomato", "lettuce", "pot"), ("diningtable",)),
    (
        "find two {thing} and put them in {place}",
        ("creditcard", "pen", "watch"),
        ("safe", "drawer"),
    ),
)
_TOOL = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}


def opening(seed: int) -> str:
    """Return the opening text of a game; the same seed gives the same."""
    rng = random.Random(f"opening/{seed}")
    room = rng.choice(_ROOMS)
    kinds = rng.sample(room, rng.randrange(_LEAST_RECEPTACLES, len(room) + 1))
    names = [f"{kind} {kinds[: i + 1].count(kind)}" for i, kind in enumerate(kinds)]
    task, things, places = rng.choice(_TASKS)
    wanted = task.format(thing=rng.choice(things), place=rng.choice(places))
    seen = ", ".join(f"a {name}" for name in names)
    return (
        f"You are in the middle of a room. Looking quickly around you, you see {seen}.\n\n"
        f"Your task is to: {wanted}."
    )


def played(text: str) -> str:
    """Return a whole game as it is shown to a model: opening, thoughts, actions, observations."""
    game = Household(text)
    turns = [f"> {command}\n{game.act(command)}" for command in _solution(game)]
    return "\n".join([text, *turns])


def _solution(game: Household) -> Iterator[str]:
    """Yield the commands that reach a game's goal, each to be carried out before the next."""
    goal = game.goal
    yield (
        f"think: To reach the goal I need a {goal.kind}. I look for one place by place, and then do"
        " with it what the task says."
    )
    for number in range(1, goal.count + 1):
        yield from _fetch(game, f"{goal.kind} {number}")
        if goal.lamp:
            [place] = game.where(goal.lamp)
            yield f"think: Now that I have the {goal.kind}, I need the {goal.lamp}."
            yield f"go to {place}"
            yield f"use {goal.lamp} 1"
            return
        if goal.treatment:
            tool = _first(game, _TOOL[goal.treatment])
            yield f"think: Next I have to {goal.treatment} the {goal.kind} {number} with {tool}."
            yield f"go to {tool}"
            yield f"{goal.treatment} {goal.kind} {number} with {tool}"
        place = _first(game, goal.target)
        yield f"think: Now I put the {goal.kind} {number} where the task wants it, in {place}."
        yield from _enter(game, place)
        yield f"put {goal.kind} {number} in/on {place}"


def _fetch(game: Household, item: str) -> Iterator[str]:
    """Search the places in their order until the object is found, and take it."""
    for name, receptacle in game.receptacles.items():
        yield from _enter(game, name)
        if item in receptacle.objects:
            yield f"take {item} from {name}"
            return


def _enter(game: Household, name: str) -> Iterator[str]:
    yield f"go to {name}"
    if not game.receptacles[name].is_open:
        yield f"open {name}"


def _first(game: Household, kind: str) -> str:
    return next(name for name in game.receptacles if name.rpartition(" ")[0] == kind)
