"""The text household: effects of commands, completion of tasks, and the agent that plays it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError, RequestError
from justitia_ray.lab.workloads import react_household
from justitia_ray.lab.workloads.household import (
    DATA_VARIABLE,
    NOTHING,
    AlfworldGames,
    Goal,
    Household,
    goal_of,
    installed_games,
    solution,
    transcript_of,
)
from justitia_ray.sim.suites.inputs import household_game
from tests.unit.lab.workloads.scripted import ScriptedModel, answers_in_turn, run_freely
from tests.unit.sim.data_directory import REAL, needs_real_data

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
def test_household_tasks_are_parsed(task: str, goal: Goal) -> None:
    """The tasks are in the words of all six kinds of ALFWorld's tasks."""
    assert goal == goal_of(f"{ROOM}Your task is to: {task}")


def test_text_without_a_household_task_is_refused() -> None:
    """The message quotes the text."""
    with pytest.raises(RequestError, match=r"task must be to put, .*, got 'dance'"):
        Household(f"{ROOM}Your task is to: dance")
    with pytest.raises(RequestError, match="must name receptacles"):
        Household("Your task is to: put some egg on desk.")


def test_household_task_requires_its_steps_in_the_given_order() -> None:
    """An egg that was put down before it was heated is no hot egg."""
    game = Household(HEAT)
    [place] = game.receptacles_with("egg")

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


def test_closed_receptacle_hides_contents_and_accepts_no_object() -> None:
    """The agent must have a reason to open receptacles."""
    game = Household(HEAT)

    assert "You arrive at drawer 1. The drawer 1 is closed." == game.act("go to drawer 1")
    assert game.act("open drawer 1").startswith("You open the drawer 1. On the drawer 1, you see")
    assert NOTHING == game.act("open drawer 1")


@pytest.mark.parametrize("command", ["dance", "", "go to moon 1", "use lamp 1", "take a from b"])
def test_invalid_command_has_no_effect(command: str) -> None:
    """A model may write any text."""
    assert NOTHING == Household(HEAT).act(command)


@pytest.mark.parametrize("seed", range(60))
def test_every_generated_game_can_be_won(seed: int) -> None:
    """The same seed is the same game, and a perfect player reaches its goal."""
    assert household_game(seed) == household_game(seed)
    game = Household(household_game(seed))
    for command in solution(game):
        assert NOTHING != game.act(command)

    assert game.is_done
    assert transcript_of(household_game(seed)) == transcript_of(household_game(seed))


@needs_real_data
def test_every_game_of_alfworld_can_be_started_and_won() -> None:
    """All 134 openings of ALFWorld's evaluation are supported."""
    for line in (REAL / "apps" / "ALFWI.jsonl").read_text().splitlines():
        game = Household(json.loads(line)["input"])
        for command in solution(game):
            game.act(command)
        assert game.is_done, line


async def test_alfwi_agent_plays_until_the_task_is_done() -> None:
    """Each observation of the game is in the next prompt."""
    commands = [line[2:] for line in transcript_of(HEAT).splitlines() if line.startswith("> ")]
    app = ScriptedModel({react_household.INSTRUCTION: answers_in_turn(*commands)})

    result = await run_freely("ALFWI", app, HEAT)

    assert f"done in {len(commands)} turns" == result.answer
    assert [f"turn_{i}" for i in range(1, len(commands) + 1)] == list(result.fan_outs)
    assert app.prompts[1].endswith("OK.")
    assert all(["\n"] == asked["stop"] for asked in app.asked)
    assert app.prompts[1].startswith(app.prompts[0])


async def test_alfwi_agent_gives_up_after_fifty_turns() -> None:
    app = ScriptedModel({react_household.INSTRUCTION: "go to desk 1"})

    result = await run_freely("ALFWI", app, HEAT, max_prompt_words=200)

    assert ("not done in 50 turns", 50) == (result.answer, len(app.prompts))
    assert 200 >= max(len(prompt.split()) for prompt in app.prompts)
    assert HEAT in app.prompts[-1]
    assert "You arrive at desk 1." in app.prompts[-1][-100:]


OPENING = (
    "You are in the middle of a room. Looking quickly around you, you see a drawer 1, and a desk 1."
    "\n\nYour task is to: put a mug in desk."
)
COMMANDS = (
    "think: A mug may be in the drawer.",
    "go to drawer 1",
    "open drawer 1",
    "take mug 1 from drawer 1",
    "go to desk 1",
    "put mug 1 in/on desk 1",
)
PROBLEM = """
(define (problem mug_on_desk)
 (:domain alfred)
 (:objects
  agent1 - agent
  Desk_bar_1 Drawer_bar_1 - receptacle
  Mug_bar_1 - object
  loc_bar_0 loc_bar_1 loc_bar_2 - location
  DeskType DrawerType - rtype
  MugType - otype
 )
 (:init
  (= (total-cost) 0)
  (atLocation agent1 loc_bar_0)
  (receptacleAtLocation Desk_bar_1 loc_bar_1)
  (receptacleAtLocation Drawer_bar_1 loc_bar_2)
  (receptacleType Desk_bar_1 DeskType)
  (receptacleType Drawer_bar_1 DrawerType)
  (canContain DeskType MugType)
  (canContain DrawerType MugType)
  (openable Drawer_bar_1)
  (objectType Mug_bar_1 MugType)
  (pickupable Mug_bar_1)
  (inReceptacle Mug_bar_1 Drawer_bar_1)
  (objectAtLocation Mug_bar_1 loc_bar_2)
 )
 (:goal
  (exists (?r - receptacle)
   (exists (?o - object)
    (and (inReceptacle ?o ?r) (objectType ?o MugType) (receptacleType ?r DeskType))))
 )
 (:metric minimize (total-cost))
)
"""


@pytest.fixture(scope="module")
def game_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory in the format of `alfworld-download`, with one game."""
    package = pytest.importorskip("alfworld.info", reason="no alfworld is installed")
    found = tmp_path_factory.mktemp("alfworld")
    trial = found / "json_2.1.1" / "valid_unseen" / "pick_and_place_simple-Mug" / "trial_1"
    trial.mkdir(parents=True)
    grammar = Path(package.ALFRED_TWL2_PATH).read_text(encoding="utf-8")
    game = {
        "pddl_domain": Path(package.ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        "grammar": grammar.replace("UNKNOWN GOAL", "put a mug in desk"),
        "pddl_problem": PROBLEM,
    }
    (trial / "game.tw-pddl").write_text(json.dumps(game), encoding="utf-8")
    return found


def test_alfworld_game_is_found_by_its_opening_and_ends_at_its_goal(game_dir: Path) -> None:
    """Openings in the papers' prompts differ in wording from those of the ALFWorld package."""
    game = AlfworldGames(game_dir).start(OPENING)

    seen = [game.act(command) for command in COMMANDS[:-1]]
    assert seen[0] == "OK."
    assert seen[1:3] == [
        "You arrive at drawer 1. The drawer 1 is closed.",
        "You open the drawer 1. The drawer 1 is open. In it, you see a mug 1.",
    ]
    assert game.act("fly to the moon") == "Nothing happens."
    assert not game.is_done
    assert game.act(COMMANDS[-1]) == "You move the mug 1 to the desk 1."
    assert game.is_done


def test_simultaneous_games_are_independent(game_dir: Path) -> None:
    """A load plays many of them in one process, and each has its own state."""
    games = AlfworldGames(game_dir)
    one, other = games.start(OPENING), games.start(OPENING)

    for command in COMMANDS[:-1]:
        one.act(command)
        other.act("go to desk 1")
    one.act(COMMANDS[-1])
    assert (one.is_done, other.is_done) == (True, False)
    assert other.act("go to drawer 1") == "You arrive at drawer 1. The drawer 1 is closed."


@pytest.fixture
def installed(game_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the directory of the games in ALFWorld's variable."""
    monkeypatch.setenv(DATA_VARIABLE, str(game_dir))
    installed_games.cache_clear()
    yield
    installed_games.cache_clear()


@pytest.mark.usefixtures("installed")
async def test_agent_plays_alfworld_where_it_is_installed() -> None:
    app = ScriptedModel({react_household.INSTRUCTION: answers_in_turn(*COMMANDS)})

    result = await run_freely("ALFWI", app, OPENING)

    assert result.answer == f"done in {len(COMMANDS)} turns"
    assert app.prompts[-1].endswith("You arrive at desk 1. On the desk 1, you see nothing.")


@pytest.mark.usefixtures("installed")
async def test_agent_plays_a_generated_game_without_a_matching_alfworld_game() -> None:
    """Generated openings have no ALFWorld game."""
    app = ScriptedModel({react_household.INSTRUCTION: "go to shelf 1"})

    result = await run_freely("ALFWI", app, OPENING.replace("desk", "shelf"))

    assert result.answer == "not done in 50 turns"
    assert "You arrive at shelf 1." in app.prompts[-1]


def test_opening_text_without_a_matching_game_is_refused(game_dir: Path) -> None:
    """Where ALFWorld's games were requested, another game would be a wrong result."""
    games = AlfworldGames(game_dir)

    for text in (OPENING.replace("drawer 1", "safe 1"), "Put it there."):
        with pytest.raises(RequestError, match="must be that of one of ALFWorld's games, got"):
            games.start(text)


def test_alfworld_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    installed_games.cache_clear()

    assert installed_games() is None


def test_directory_without_games_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ALFWORLD_DATA must name a directory of ALFWorld's"):
        AlfworldGames(tmp_path)
    (tmp_path / "game.tw-pddl").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"game\.tw-pddl: not a game of ALFWorld"):
        AlfworldGames(tmp_path)
