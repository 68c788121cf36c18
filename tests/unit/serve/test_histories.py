"""Histories of the protocol: the real parts keep every rule, and each rule finds a broken part."""

import gc
import warnings
from dataclasses import replace

import pytest

from justitia_ray.serve.histories.history import play
from justitia_ray.serve.histories.plan import Fault, FaultKind, draw_plan
from justitia_ray.serve.histories.search import play_seeds
from justitia_ray.serve.histories.shrink import shrink
from justitia_ray.serve.histories.virtual_loop import NothingLeftToDo, VirtualLoop, run_virtually

from .broken_parts import BROKEN

_SEEDS = (0, 25)


def test_parts_keep_every_rule_whatever_goes_wrong() -> None:
    """Calls lost and repeated, processes that die and come back: nothing is lost or doubled."""
    tally = play_seeds(_SEEDS)

    assert [] == tally.findings
    assert 25 == tally.histories
    assert 10 <= len([kind for kind in tally.struck if "in vain" not in kind])


def test_history_is_the_same_each_time() -> None:
    """A seed that fails in a search of hours has to fail when somebody looks at it."""
    first, second = (play(draw_plan(7), told=True) for _ in range(2))

    assert first.story == second.story
    assert (first.steps, first.grants) == (second.steps, second.grants)


@pytest.mark.parametrize("mistake", BROKEN)
def test_broken_part_is_found(mistake: str) -> None:
    """A rule that no mistake can break shows nothing."""
    broken = BROKEN[mistake]
    history = play(draw_plan(broken.seed), broken.parts)

    assert broken.check == history.failures[0].check
    assert not play(draw_plan(broken.seed)).failures


def test_failing_history_is_made_smaller() -> None:
    """People read it; what has nothing to do with the failure is in their way."""
    broken = BROKEN["tags are put back wrong"]
    plan = draw_plan(broken.seed)
    smaller = shrink(plan, broken.parts)

    assert broken.check == smaller.failures[0].check
    assert 1 == len(smaller.plan.faults)
    assert len(smaller.plan.applications) <= len(plan.applications)


def test_history_that_fails_leaves_no_coroutine_behind() -> None:
    """It ends at once, with processes that stand still: a warning would hide why it failed."""
    plan = replace(
        draw_plan(3),
        faults=(
            Fault(FaultKind.INGRESS_STALL, at_s=0.5, for_s=40.0),
            Fault(FaultKind.SCHEDULER_CRASH, at_s=3.5, for_s=0.1),
        ),
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        history = play(plan, BROKEN["tags are put back wrong"].parts)
        gc.collect()

    assert ["tags_survive_restarts"] == [failure.check for failure in history.failures[:1]]
    assert [] == [str(warning.message) for warning in warned]


def test_endless_wait_is_noticed() -> None:
    """A history in which everybody waits for somebody else would never end."""

    async def wait() -> None:
        await VirtualLoop.create_future(loop)

    loop = VirtualLoop()
    with pytest.raises(NothingLeftToDo, match="nothing will ever happen"):
        run_virtually(wait(), loop)
