"""ALFWorld's own games, where its package is: played by its planner, on its domain and grammar.

`pip install 'justitia-ray[alfworld]'` builds that planner; its games are not part of the package,
so that one is made here: a mug in a drawer that belongs on the desk.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError, RequestError
from justitia_ray.workloads import alfworld_game, react_household
from justitia_ray.workloads.alfworld_game import AlfworldGames, installed_games
from tests.unit.workloads.scripted import Scripted, in_turn, run_freely

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
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory as `alfworld-download` makes it, with one game."""
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


def test_game_is_the_one_that_begins_so_and_ends_at_its_goal(directory: Path) -> None:
    """In the words of the papers' prompts, which are not quite those of the package."""
    game = AlfworldGames(directory).start(OPENING)

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


def test_games_at_once_are_games_apart(directory: Path) -> None:
    """A load plays many of them in one process, and each has its own state."""
    games = AlfworldGames(directory)
    one, other = games.start(OPENING), games.start(OPENING)

    for command in COMMANDS[:-1]:
        one.act(command)
        other.act("go to desk 1")
    one.act(COMMANDS[-1])
    assert (one.is_done, other.is_done) == (True, False)
    assert other.act("go to drawer 1") == "You arrive at drawer 1. The drawer 1 is closed."


@pytest.fixture
def installed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Say where the games are, as ALFWorld does."""
    monkeypatch.setenv(alfworld_game.DATA_VARIABLE, str(directory))
    installed_games.cache_clear()
    yield
    installed_games.cache_clear()


@pytest.mark.usefixtures("installed")
async def test_agent_plays_it_where_it_is_installed() -> None:
    """In our own household the mug would be elsewhere, and the words be others."""
    app = Scripted({react_household.INSTRUCTION: in_turn(*COMMANDS)})

    result = await run_freely("ALFWI", app, OPENING)

    assert result.answer == f"done in {len(COMMANDS)} turns"
    assert app.prompts[-1].endswith("You arrive at desk 1. On the desk 1, you see nothing.")


@pytest.mark.usefixtures("installed")
async def test_agent_plays_ours_where_no_game_of_alfworld_begins_so() -> None:
    """Openings that were made up have no other."""
    app = Scripted({react_household.INSTRUCTION: "go to shelf 1"})

    result = await run_freely("ALFWI", app, OPENING.replace("desk", "shelf"))

    assert result.answer == "not done in 50 turns"
    assert "You arrive at shelf 1." in app.prompts[-1]


def test_openings_of_no_game_are_refused(directory: Path) -> None:
    """Where ALFWorld's games were asked for, another game would be a wrong result."""
    games = AlfworldGames(directory)

    for text in (OPENING.replace("drawer 1", "safe 1"), "Put it there."):
        with pytest.raises(RequestError, match="must be that of one of ALFWorld's games, got"):
            games.start(text)


def test_nobody_has_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where games are is said by ALFWorld's own variable; without it there are none."""
    monkeypatch.delenv(alfworld_game.DATA_VARIABLE, raising=False)
    installed_games.cache_clear()

    assert installed_games() is None


def test_directory_without_games_is_refused(tmp_path: Path) -> None:
    """So is a file that is none: before anything is played."""
    with pytest.raises(ConfigError, match="ALFWORLD_DATA must name a directory of ALFWorld's"):
        AlfworldGames(tmp_path)
    (tmp_path / "game.tw-pddl").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"game\.tw-pddl: not a game of ALFWorld"):
        AlfworldGames(tmp_path)
