"""A policy and a cost function outside the package, as a user would write them.

They are named by import path: `policy: tests.user_policy:BudgetPolicy`, and in `policy_options`
`cost: tests.user_policy:decode_seconds`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from justitia_ray.core.entities import Application
from justitia_ray.core.policies.base import Delivery, Policy, PolicyContext
from justitia_ray.core.policies.options import Option, number
from justitia_ray.core.queue import Key


def decode_seconds(prompt_tokens: int, output_tokens: int) -> float:
    """Return the seconds of an inference alone: 0.1 ms per prompt token, 30 ms per output token.

    A cost function takes (prompt, output) tokens, must not decrease in either, and may have any
    unit.
    """
    return 0.0001 * prompt_tokens + 0.03 * output_tokens


class BudgetPolicy(Policy):
    """Policy that serves applications within their budget first; FIFO in both groups."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (Option("budget", 10.0, number(above=0)),)
    DEFAULT_COST: ClassVar[str] = "tests.user_policy:decode_seconds"

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.spent: dict[str, float] = {}

    def key(self, client: str, application: Application) -> Key:
        """Return (budget used up, arrival sequence); a key ends in a unique number."""
        over = self.spent.get(client, 0) >= self.options.own["budget"]
        return (over, application.sequence)

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[str]:
        """Charge reported tokens, and return the clients whose keys may have changed."""
        for delivery in deliveries:
            charge = delivery.cost(self.options.cost_function)
            client = delivery.application_id
            self.spent[client] = self.spent.get(client, 0) + charge
        return [delivery.application_id for delivery in deliveries]

    def application_ended(self, application: Application) -> None:
        """Drop the application's state, which would otherwise grow without limit."""
        self.spent.pop(application.application_id, None)

    def state(self) -> dict[str, Any]:
        """Return the state that a new scheduler needs."""
        return {"spent": dict(self.spent)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state; damaged state must raise."""
        self.spent = {client: float(spent) for client, spent in state["spent"].items()}
