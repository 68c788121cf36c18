"""Policies and cost functions from outside the package, and the page that says how to write them.

The example of the page is `tests/user_policy.py`.
"""

import re
from pathlib import Path

import pytest

import justitia_ray
from justitia_ray.core import events as ev
from justitia_ray.core.policies import POLICIES
from justitia_ray.core.policies.options import COMMON
from justitia_ray.cost import COSTS, find_cost
from justitia_ray.errors import ConfigError
from tests.core_driver import CoreDriver
from tests.unit.core.policy_driver import PolicyDriver
from tests.user_policy import decode_seconds

POLICY = "tests.user_policy:BudgetPolicy"
COST = "tests.user_policy:decode_seconds"
PAGE = (Path(justitia_ray.__file__).parent / "core" / "policies" / "README.md").read_text()
_POINTS = ("Source", "Unit of fairness", "Charges", "Guarantees", "Departs from the source")
OWN_OPTIONS = sorted({option.name for policy in POLICIES.values() for option in policy.OPTIONS})


def test_policy_is_found_by_its_import_path() -> None:
    """Nobody should have to change this package to try an order of their own."""
    driver = PolicyDriver(POLICY, {"budget": 0.5})
    driver.arrive("a", "a1", "a2")
    driver.arrive("b", "b1", "b2")

    assert ["a1"] == driver.step()
    assert ["a2"] == driver.step(make={"a1": 10}, finish=["a1"])
    assert ["b1"] == driver.step(make={"a2": 7}, finish=["a2"])
    driver.submit("a3")
    assert ["b2"] == driver.step(make={"b1": 1}, finish=["b1"])
    assert ["a3"] == driver.step(make={"b2": 1}, finish=["b2"])


def test_policy_of_a_user_outlives_the_scheduler() -> None:
    """`state` and `restore` are called for it as for any other."""
    driver = PolicyDriver(POLICY, {"budget": 0.5})
    driver.arrive("a", "a1", "a2")
    driver.arrive("b", "b1")
    driver.step()
    driver.step(make={"a1": 17})
    driver.restart()

    assert driver.core.order.policy.state() == {"spent": {"a": pytest.approx(17 * 0.03)}}
    assert ["b1"] == driver.step(finish=["a1"])


def test_policy_of_a_user_forgets_applications() -> None:
    """The example must be a good one."""
    driver = PolicyDriver(POLICY)
    driver.arrive("a", "a1")
    driver.step()
    driver.step(make={"a1": 1})
    driver.handle(ev.ApplicationCancelled("a"))

    assert {"spent": {}} == driver.state()


def test_running_scheduler_changes_to_a_policy_of_a_user() -> None:
    """A change of the configuration file names it as the first start does."""
    driver = PolicyDriver("fcfs")
    driver.arrive("b")
    driver.arrive("a", "a1")
    driver.submit("b1", "b")
    driver.handle(ev.PolicyChanged(POLICY, (("budget", 1),)))

    assert ["b1", "a1"] == driver.drain()


def test_policy_of_a_user_has_options_of_its_own_and_the_common_ones() -> None:
    """They are checked as those of any other policy, with an error that names what there is."""
    options = PolicyDriver(POLICY, {"backfill": 3}).core.order.options

    assert (3, COST, 10.0) == (options.backfill, options.cost, options.own["budget"])
    with pytest.raises(ConfigError, match=r"policy_options.budget: 0 must be finite and above 0"):
        PolicyDriver(POLICY, {"budget": 0})
    with pytest.raises(ConfigError, match=r"'limit' is not one of .*kv_share_cap, budget"):
        PolicyDriver(POLICY, {"limit": 1})


def test_cost_function_is_found_by_its_import_path() -> None:
    """Each policy that charges takes it: here 40 tokens · 0.03 s put a in level 1 of 1 s."""
    assert find_cost(COST) is decode_seconds
    driver = PolicyDriver("mlfq", {"cost": COST, "quantum": 1})
    driver.arrive("a", "a1", "a2")
    driver.arrive("b", "b1")

    assert ["a1"] == driver.step()
    assert ["b1"] == driver.step(make={"a1": 40}, finish=["a1"])


def test_accounts_of_justitia_are_kept_in_a_cost_of_a_user() -> None:
    """V then moves in its unit, here seconds: 10 tokens of one application are 0.3 s."""
    driver = PolicyDriver("justitia", {"cost": COST})
    driver.handle(ev.ApplicationArrived("a", "class", "t", 1, 100, "i0", predicted_cost=3.0))
    driver.submit("a1")
    driver.step()
    driver.step(make={"a1": 10})

    assert 0.3 == pytest.approx(driver.core.order.fair_share.clock.virtual_time)
    assert 3.0 == pytest.approx(driver.core.tag("a"))


@pytest.mark.parametrize("path", ["tests.user_policy:nothing", "tests.nowhere:f", "decode_seconds"])
def test_cost_function_that_is_not_there_is_refused(path: str) -> None:
    """At the start, with the key of the configuration, and not when the first token comes."""
    with pytest.raises(ConfigError, match=r"policy_options.cost: .* nor the import path"):
        PolicyDriver("mlfq", {"cost": path})


@pytest.mark.parametrize(
    "name", [*POLICIES, *(option.name for option in COMMON), *OWN_OPTIONS, *COSTS]
)
def test_page_names_everything_there_is_to_choose(name: str) -> None:
    """A policy, option or cost that nobody can find is not there."""
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("policy", POLICIES)
def test_page_says_the_same_things_of_every_policy(policy: str) -> None:
    """Source, unit, charges, guarantee and departures, or policies cannot be compared."""
    sections = re.split(r"^### ", PAGE, flags=re.MULTILINE)
    (section,) = (text for text in sections if f"`{policy}`" in text.splitlines()[0])

    for point in _POINTS:
        assert re.search(rf"^- \*\*{point}\*\*: \S.{{4}}", section, re.MULTILINE), point


def test_example_on_the_page_is_the_one_that_is_tested() -> None:
    """Code in a page rots unless it runs."""
    source = (Path(__file__).parents[2] / "user_policy.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    assert len(blocks) == 2
    for block in blocks:
        assert block in source


def test_example_keeps_the_rules_of_the_core(core: CoreDriver) -> None:
    """Its keys differ and its queue agrees with them: `check` runs after every event."""
    core.handle(ev.PolicyChanged(POLICY))
    for name in "abc":
        core.open(name)
        core.submit(f"{name}1", name)
    policy = core.core.order.policy

    assert 3 == len({policy.key(name, core.application(name)) for name in "abc"})
