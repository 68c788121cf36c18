"""Cost of prefill as measured by a replica: fixed for one release of the service, and stored.

An application keeps the cost that was in force when it arrived, so that its charges, refunds and
stored amounts are in one unit.
"""

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from justitia_ray.cost import PrefillCost

if TYPE_CHECKING:
    from justitia_ray.core.state import State


class MeasuredPrefill(NamedTuple):
    """Cost of computing prompts, with the release of the service whose replica measured it."""

    cost: PrefillCost
    release: str

    def record(self) -> list[float | str]:
        return [*cost_record(self.cost), self.release]


def is_first_of_release(known: MeasuredPrefill | None, measured: MeasuredPrefill) -> bool:
    """Return whether this is the first measurement by its release of the service."""
    return known is None or known.release != measured.release


def accept_measured(state: "State", measured: MeasuredPrefill) -> None:
    """Use the first measured prompt cost of a release for applications that arrive from now on.

    A later measurement counts only if another release of the service made it. Ratios of prefill
    that classes have under the earlier cost are converted.
    """
    known = state.measured_prefill
    if not is_first_of_release(known, measured):
        return
    state.measured_prefill = measured
    if not state.measures_prefill:
        return
    if known is not None and known.cost.per_token > 0:
        state.prefill_ratios.scale(measured.cost.per_token / known.cost.per_token)
    state.prefill_cost = measured.cost


def restore_measured(state: "State", record: object) -> None:
    """Restore a measured prompt cost, and use it unless the configuration gives one.

    Raises:
        ValueError: If the record has another form.
    """
    if not isinstance(record, list) or len(record) != 3 or not isinstance(record[2], str):
        raise ValueError(f"measured_prefill: two numbers and a release are allowed, not {record!r}")
    state.measured_prefill = MeasuredPrefill(read_cost(record[:2]), record[2])
    if state.measures_prefill:
        state.prefill_cost = state.measured_prefill.cost


def cost_record(cost: PrefillCost) -> list[float]:
    """Return a cost of computing prompts as JSON."""
    return [cost.per_token, cost.per_pair]


def read_cost(record: object) -> PrefillCost:
    """Restore a cost of computing prompts from the result of `cost_record`.

    Raises:
        ValueError: If the record has another form.
    """
    if not isinstance(record, list) or len(record) != 2 or not all(map(_is_price, record)):
        raise ValueError(f"prefill_cost: two numbers >= 0 are allowed, not {record!r}")
    return PrefillCost(*record)


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value) and value >= 0
