"""The prefill of an application: its price, what was charged for it, and what was paid."""

from dataclasses import dataclass
from typing import Self

from justitia_ray.core.own_contexts import OwnContexts
from justitia_ray.core.prefill_costs import cost_record, read_cost
from justitia_ray.core.records import Fields, Record, RecordReader, read_fields
from justitia_ray.cost import PrefillCost
from justitia_ray.units import KvTokenTime

_AMOUNTS = {
    "prefill_token_time": "paid",
    "predicted_prefill": "predicted",
    "charged_prefill": "charged",
    "pending_prefill": "pending",
    "unfinished_prefill": "unfinished",
    "unfinished_forgiven": "forgiven",
}
"""Attribute of each amount in an application's record; an amount of 0 is omitted."""


@dataclass(slots=True, eq=False)
class PrefillAccount:
    """Cost of computing one application's prompts, in token·iterations."""

    cost: PrefillCost
    """Cost of computing prompts, fixed when the application arrived."""
    predicted: KvTokenTime = 0
    """Prompt cost expected when the application arrived; its charge contains at least this amount.
    """
    charged: KvTokenTime = 0
    """Part of the application's charge that is for computing prompts."""
    paid: KvTokenTime = 0
    """Service received for computing prompts, as far as the application's tag pays for it."""
    pending: KvTokenTime = 0
    """Cost expected for submitted prompts that are not computed yet."""
    pending_before: KvTokenTime = 0
    """Part of `pending` that an earlier scheduler has already charged."""
    unfinished: KvTokenTime = 0
    """Prompt cost of unfinished inferences that the application's tag has paid."""
    paid_before: KvTokenTime = 0
    """Part of `unfinished` that an earlier scheduler has already counted."""
    forgiven: KvTokenTime = 0
    """Prompt cost of unfinished inferences that only the tenant pays, not the application's tag."""
    forgiven_before: KvTokenTime = 0
    """Part of `forgiven` that an earlier scheduler has already counted."""
    contexts: OwnContexts | None = None
    """The last contexts of the application; None: none was computed."""

    def record(self) -> Record:
        """Return the fields of an application's record that describe its prompt costs."""
        record: Record = {name: getattr(self, amount) for name, amount in _AMOUNTS.items()}
        record["own_contexts"] = self.contexts.record() if self.contexts else None
        kept = {name: value for name, value in record.items() if value}
        return {**kept, "prefill_cost": cost_record(self.cost)}

    @classmethod
    def restored(cls, record: Record) -> Self | None:
        """Restore the account from an application's record; None if prompts cost it nothing.

        Raises:
            ValueError: If a field is damaged.
        """
        if "prefill_cost" not in record:
            return None
        given: Fields = {name: RecordReader.not_negative for name in _AMOUNTS if name in record}
        read = read_fields(record, given)
        account = cls(
            read_cost(record["prefill_cost"]),
            **{_AMOUNTS[name]: amount for name, amount in read.items()},
        )
        account.pending_before = account.pending
        account.paid_before = account.unfinished
        account.forgiven_before = account.forgiven
        if "own_contexts" in record:
            account.contexts = OwnContexts.restored(record["own_contexts"])
        return account
