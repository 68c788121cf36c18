"""The prefill of an application: its price, what was charged for it, and what was paid."""

from dataclasses import dataclass
from typing import Self

from justitia_ray.core.own_contexts import OwnContexts
from justitia_ray.core.prefill_costs import cost_record, read_cost
from justitia_ray.core.records import Fields, Record, RecordReader, read_fields
from justitia_ray.cost import PrefillCost
from justitia_ray.units import KvTokenTime

_FIELDS: Fields = {
    "prefill_token_time": RecordReader.not_negative,
    "predicted_prefill": RecordReader.not_negative,
    "charged_prefill": RecordReader.not_negative,
    "pending_prefill": RecordReader.not_negative,
    "unfinished_prefill": RecordReader.not_negative,
    "unfinished_forgiven": RecordReader.not_negative,
}
"""Amounts in an application's record; an amount of 0 is omitted."""


@dataclass(slots=True, eq=False)
class PrefillAccount:
    """Prefill of one application, in token·iterations. "Before" means by an earlier scheduler."""

    cost: PrefillCost
    """Cost of computing the application's prompts, fixed when the application arrived."""
    predicted: KvTokenTime = 0
    """Prefill expected when the application arrived; its charge contains at least this prefill."""
    charged: KvTokenTime = 0
    """Part of the application's charge that is for prefill."""
    paid: KvTokenTime = 0
    """Service received for computing prompts, as far as the tag pays for it."""
    pending: KvTokenTime = 0
    """Prefill expected for submitted prompts that are not computed yet."""
    pending_before: KvTokenTime = 0
    """Part of `pending` that was charged before, and that is not charged again."""
    unfinished: KvTokenTime = 0
    """Prefill of unfinished inferences that the tag has paid for."""
    paid_before: KvTokenTime = 0
    """Part of `unfinished` that was counted before, and that is not counted again."""
    forgiven: KvTokenTime = 0
    """Prefill of unfinished inferences that the tag does not pay for."""
    forgiven_before: KvTokenTime = 0
    """Part of `forgiven` that was counted before, and that is not counted again."""
    contexts: OwnContexts | None = None
    """The last contexts of the application; None: none was computed."""

    def record(self) -> Record:
        """Return the fields of an application's record that describe its prefill."""
        amounts: Record = {
            "prefill_token_time": self.paid,
            "predicted_prefill": self.predicted,
            "charged_prefill": self.charged,
            "pending_prefill": self.pending,
            "unfinished_prefill": self.unfinished,
            "unfinished_forgiven": self.forgiven,
            "own_contexts": self.contexts.record() if self.contexts else None,
        }
        kept = {name: value for name, value in amounts.items() if value}
        return {**kept, "prefill_cost": cost_record(self.cost)}

    @classmethod
    def restored(cls, record: Record) -> Self | None:
        """Return the account in an application's record; None if prompts cost it nothing.

        Raises:
            ValueError: If a field is damaged.
        """
        if "prefill_cost" not in record:
            return None
        given = {name: read for name, read in _FIELDS.items() if name in record}
        amounts = dict.fromkeys(_FIELDS, 0) | read_fields(record, given)
        own = record.get("own_contexts")
        return cls(
            read_cost(record["prefill_cost"]),
            predicted=amounts["predicted_prefill"],
            charged=amounts["charged_prefill"],
            paid=amounts["prefill_token_time"],
            pending=amounts["pending_prefill"],
            pending_before=amounts["pending_prefill"],
            unfinished=amounts["unfinished_prefill"],
            paid_before=amounts["unfinished_prefill"],
            forgiven=amounts["unfinished_forgiven"],
            forgiven_before=amounts["unfinished_forgiven"],
            contexts=None if own is None else OwnContexts.restored(own),
        )
