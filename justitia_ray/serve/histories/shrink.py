"""A failing history with all left out that it does not need to fail."""

from collections.abc import Iterator
from dataclasses import replace

from justitia_ray.serve.histories.history import History, play
from justitia_ray.serve.histories.parts import Parts
from justitia_ray.serve.histories.plan import Plan


def shrink(plan: Plan, parts: Parts | None = None) -> History:
    """Leave out faults and applications, one after the other, while the same rule is broken.

    What is left out changes the fate of every later message, so a smaller plan may fail otherwise
    or not at all, and what is left need not be the least.

    Args:
        plan: A plan that fails.
        parts: What it is made of; the real parts if None.
    """
    smallest = play(plan, parts)
    if not smallest.failures:
        return smallest
    check = smallest.failures[0].check
    found = True
    while found:
        found = False
        for smaller in _smaller(smallest.plan):
            history = play(smaller, parts)
            if history.failures and history.failures[0].check == check:
                smallest, found = history, True
                break
    return smallest


def _smaller(plan: Plan) -> Iterator[Plan]:
    for k in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:k] + plan.faults[k + 1 :])
    if len(plan.applications) > 1:
        for k in range(len(plan.applications)):
            yield replace(plan, applications=plan.applications[:k] + plan.applications[k + 1 :])
