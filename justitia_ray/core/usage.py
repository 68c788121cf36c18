"""Usage of each tenant by day. It is counted when service is booked and when inferences end.

The totals of a day only grow. They are saved together with the applications, in one step: so a new
scheduler books again exactly the service that the saved totals lack, and no service counts twice.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypeAlias

from justitia_ray.core.records import Fields, Record, RecordReader, read_fields
from justitia_ray.core.tenant_rows import TenantRows
from justitia_ray.units import ClientId, KvTokenTime, Seconds, Tokens

DAY_S = 86_400
OTHER = "other"
"""Tenant under which usage is counted when a day has the maximum number of tenants."""
_MOST_TENANTS = 10_000

Day: TypeAlias = int
"""A day in UTC, counted from 1970, by the scheduler's clock, which leaves out stalls."""


@dataclass(slots=True)
class UsageTotals:
    """Usage of one tenant on one day."""

    applications: int = 0
    """Number of applications that the tenant opened."""
    inferences: int = 0
    """Number of the tenant's inferences that had begun and ended."""
    prompt_tokens: Tokens = 0
    """Prompt tokens of the counted inferences, over all their sequences."""
    output_tokens: Tokens = 0
    kv_token_time: KvTokenTime = 0
    """Service received in token·iterations, also of unfinished inferences."""
    prefill_token_time: KvTokenTime = 0
    """Part of the service that was for computing prompts."""
    cached_prompt_tokens: Tokens = 0
    """Prompt tokens that were in an engine's prefix cache; all others were computed."""

    def record(self) -> Record:
        return asdict(self)


_FIELDS: Fields = {
    "applications": RecordReader.integer,
    "inferences": RecordReader.integer,
    "prompt_tokens": RecordReader.integer,
    "output_tokens": RecordReader.integer,
    "kv_token_time": RecordReader.not_negative,
}

_LATER_FIELDS: Fields = {
    "cached_prompt_tokens": RecordReader.integer,
    "prefill_token_time": RecordReader.not_negative,
}
"""Names of fields that records of earlier versions do not have."""


def read_totals(record: object) -> UsageTotals:
    """Return usage totals from a record.

    Raises:
        ValueError: If a field is missing or has a wrong type.
    """
    named = record.keys() if isinstance(record, Mapping) else ()
    later = {name: read for name, read in _LATER_FIELDS.items() if name in named}
    return UsageTotals(**read_fields(record, {**_FIELDS, **later}))


class UsageBook:
    """Usage totals by day and tenant."""

    def __init__(self) -> None:
        self.totals: dict[Day, dict[ClientId, UsageTotals]] = {}
        self._changed: dict[tuple[Day, ClientId], None] = {}
        self._rows: dict[Day, TenantRows] = {}
        self._taken: dict[tuple[Day, ClientId], None] = {}
        """Usage totals that are being saved, without a confirmation so far."""

    def of(self, tenant: ClientId, now: Seconds) -> UsageTotals:
        """Return the totals of today to which a tenant's usage is added."""
        day = int(now // DAY_S)
        of_day = self.totals.setdefault(day, {})
        if tenant not in of_day:
            if day not in self._rows:
                self._rows[day] = TenantRows(_MOST_TENANTS, OTHER, of_day)
            tenant = self._rows[day].name_of(tenant)
        self._changed[day, tenant] = None
        found = of_day.get(tenant)
        if found is None:
            found = of_day[tenant] = UsageTotals()
        return found

    def take_changed(self, *, everything: bool = False) -> dict[Day, dict[ClientId, Record]]:
        """Return the totals that are not known to be saved; with `everything`, all totals.

        `note_saved` confirms the save.
        """
        changed = self._taken | self._changed
        if everything:
            changed |= {(day, name): None for day, of in self.totals.items() for name in of}
        self._taken, self._changed = changed, {}
        records: dict[Day, dict[ClientId, Record]] = {}
        for day, tenant in changed:
            records.setdefault(day, {})[tenant] = self.totals[day][tenant].record()
        return records

    def note_saved(self) -> None:
        """Record that usage totals are saved, and drop days before the last two."""
        self._taken = {}
        earlier = sorted(self.totals)[:-2]
        unsaved = self.unsaved_days() if earlier else ()
        for day in earlier:
            if day not in unsaved:
                del self.totals[day]
                self._rows.pop(day, None)

    def unsaved_days(self) -> set[Day]:
        """Return the days with totals that are not known to be saved, and so not final."""
        return {day for day, _ in (*self._taken, *self._changed)}

    def restore(self, records: Mapping[Day, Mapping[ClientId, object]]) -> None:
        """Restore recorded totals into an empty book.

        Raises:
            ValueError: If a record is damaged.
        """
        for day, of_day in records.items():
            self.totals[day] = {name: read_totals(record) for name, record in of_day.items()}
