"""The household of text: what commands do, when a task is done, and the agent in it."""

import json
from pathlib import Path

import pytest

from justitia_ray.errors import RequestError
from justitia_ray.workloads import household_games, react_household
from justitia_ray.workloads.household import NOTHING, Goal, Household, goal_of
from justitia_ray.workloads.household_games import opening, played
from tests.unit.workloads.scripted import Scripted, in_turn, run_freely

REAL = Path(__file__).parents[3].parent / "shared" / "data" / "apps" / "ALFWI.jsonl"
ROOM = "You are in the middle of a room. You see a desk 1, a drawer 1, a microwave 1.\n\n"
HEAT = f"{ROOM}Your task is to: heat some egg and put it in desk."


@pytest.mark.parametrize(
    ("task", "goal"),
    [
        ("look at bowl under the desklamp.", Goal("bowl", lamp="desklamp")),
        ("examine the pillow with the desklamp", Goal("pillow", lamp="desklamp")),
        ("put some peppershaker on drawer.", Goal("peppershaker", "drawer")),
        ("put a clean lettuce in diningtable.", Goal("lettuce", "diningtable", treatment="clean")),
        ("put a hot cup in cabinet.", Goal("cup", "cabinet", treatment="heat")),
        ("cool some pan and put it in stoveburner.", Goal("pan", "stoveburner", treatment="cool")),
        ("find two soapbar and put them in cabinet.", Goal("soapbar", "cabinet", 2)),
        ("put two cd in safe", Goal("cd", "safe", 2)),
    ],
)
def test_tasks_are_understood(task: str, goal: Goal) -> None:
    """In the words of all six kinds of ALFWorld's tasks."""
    assert goal == goal_of(f"{ROOM}Your task is to: {task}")


def test_what_is_no_game_is_refused() -> None:
    """With what was found, so that a text of another kind is noticed at once."""
    with pytest.raises(RequestError, match=r"task must be to put, .*, got 'dance'"):
        Household(f"{ROOM}Your task is to: dance")
    with pytest.raises(RequestError, match="must name receptacles"):
        Household("Your task is to: put some egg on desk.")


def test_a_task_takes_its_steps_in_order() -> None:
    """An egg that was put down before it was heated is no hot egg."""
    game = Household(HEAT)
    [place] = game.where("egg")

    assert NOTHING == game.act(f"take egg 1 from {place}")
    assert game.act(f"go to {place}").startswith(f"You arrive at {place}.")
    game.act(f"open {place}")
    assert f"You pick up the egg 1 from the {place}." == game.act(f"take egg 1 from {place}")
    game.act("go to desk 1")
    assert NOTHING == game.act("heat egg 1 with microwave 1")
    assert "You put the egg 1 in/on the desk 1." == game.act("put egg 1 in/on desk 1")
    assert not game.is_done
    game.act("take egg 1 from desk 1")
    game.act("go to microwave 1")
    assert "You heat the egg 1 using the microwave 1." == game.act("heat egg 1 with microwave 1")
    game.act("go to desk 1")
    game.act("move egg 1 to desk 1")
    assert game.is_done


def test_what_is_closed_hides_and_holds_nothing() -> None:
    """Otherwise nobody would have to open anything."""
    game = Household(HEAT)

    assert "You arrive at drawer 1. The drawer 1 is closed." == game.act("go to drawer 1")
    assert game.act("open drawer 1").startswith("You open the drawer 1. On the drawer 1, you see")
    assert NOTHING == game.act("open drawer 1")


@pytest.mark.parametrize("command", ["dance", "", "go to moon 1", "use lamp 1", "take a from b"])
def test_what_is_no_command_does_nothing(command: str) -> None:
    """A model writes what it likes."""
    assert NOTHING == Household(HEAT).act(command)


def test_thoughts_and_looks_change_nothing() -> None:
    """They are answered, as in ALFWorld."""
    game = Household(HEAT)

    assert "OK." == game.act("think: where could an egg be?")
    assert "You are carrying: nothing. You are in the middle of a room." == game.act("> Look.")


@pytest.mark.parametrize("seed", range(60))
def test_every_game_of_ours_can_be_won(seed: int) -> None:
    """The same seed is the same game, and whoever knows the house reaches its goal."""
    assert opening(seed) == opening(seed)
    game = Household(opening(seed))
    for command in household_games._solution(game):
        assert NOTHING != game.act(command)

    assert game.is_done
    assert played(opening(seed)) == played(opening(seed))


@pytest.mark.skipif(not REAL.exists(), reason="openings of ALFWorld are not part of the repository")
def test_every_game_of_alfworld_can_be_begun_and_won() -> None:
    """All 134 openings of its evaluation name a task and receptacles that we know."""
    for line in REAL.read_text().splitlines():
        game = Household(json.loads(line)["input"])
        for command in household_games._solution(game):
            game.act(command)
        assert game.is_done, line


async def test_alfwi_plays_until_the_task_is_done() -> None:
    """Each observation is in the next prompt; the game ends the loop."""
    game = Household(HEAT)
    commands = list(_won(game))
    app = Scripted({react_household.INSTRUCTION: in_turn(*commands)})

    result = await run_freely("ALFWI", app, HEAT)

    assert f"done in {len(commands)} turns" == result.answer
    assert [f"turn_{i}" for i in range(1, len(commands) + 1)] == list(result.fan_outs)
    assert app.prompts[1].endswith("OK.")
    assert all(["\n"] == asked["stop"] for asked in app.asked)
    assert app.prompts[1].startswith(app.prompts[0])


async def test_alfwi_gives_up_after_fifty_turns() -> None:
    """As in the paper. The prompt keeps the newest turns and stays within its limit."""
    app = Scripted({react_household.INSTRUCTION: "go to desk 1"})

    result = await run_freely("ALFWI", app, HEAT, max_prompt_words=200)

    assert ("not done in 50 turns", 50) == (result.answer, len(app.prompts))
    assert 200 >= max(len(prompt.split()) for prompt in app.prompts)
    assert HEAT in app.prompts[-1]
    assert "You arrive at desk 1." in app.prompts[-1][-100:]


def test_examples_are_of_the_same_kind_of_task_and_of_the_measured_length() -> None:
    """Recorded two-shot templates have 3,199 to 4,403 characters."""
    for task in ("look at bowl under the desklamp", "put some egg on desk", "heat some egg and"):
        examples = react_household.examples_for(f"Your task is to: {task}")
        first, second = examples
        assert first != second
        assert all(f"Your task is to: {task.split()[0]}" in example for example in examples)
        assert 3000 <= len(first + second) <= 4600


def _won(game: Household) -> list[str]:
    commands = []
    for command in household_games._solution(game):
        commands.append(command)
        game.act(command)
    return commands
