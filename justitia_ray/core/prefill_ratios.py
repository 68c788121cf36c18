"""Prefill of applications relative to their KV token-time, by class, learned as they end.

An application's predicted KV token-time times the ratio of its class is its predicted prefill. The
ratio depends on the lengths of outputs and on reuse, not on the size of an application.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from justitia_ray.core.records import Record
from justitia_ray.units import KvTokenTime

_MOST_CLASSES = 256
_OTHER = "other"
_HALVED_AT = 200
"""Number of ended applications of a class after which its sums are halved, so that the ratio
follows changes of the load.
"""


@dataclass(slots=True)
class _Sums:
    applications: int = 0
    kv_token_time: KvTokenTime = 0
    prefill: KvTokenTime = 0


class PrefillRatios:
    """Ratio of prompt cost to KV token-time by class, from sums over ended applications."""

    def __init__(self) -> None:
        self.sums: dict[str, _Sums] = {}
        """Sums over the ended applications of each class."""

    def observe(
        self, application_class: str, kv_token_time: KvTokenTime, prefill: KvTokenTime
    ) -> None:
        """Learn the ratio of prompt cost to KV token-time from an ended application."""
        name = application_class
        if name not in self.sums and len(self.sums) >= _MOST_CLASSES:
            name = _OTHER
        sums = self.sums.setdefault(name, _Sums())
        if sums.applications == _HALVED_AT:
            sums.applications //= 2
            sums.kv_token_time /= 2
            sums.prefill /= 2
        sums.applications += 1
        sums.kv_token_time += kv_token_time
        sums.prefill += prefill

    def expected(self, application_class: str, kv_token_time: KvTokenTime) -> int:
        """Return the prompt cost expected beside a KV token-time; 0 for an unknown class."""
        sums = self.sums.get(application_class) or self.sums.get(_OTHER)
        if sums is None or not sums.kv_token_time:
            return 0
        return round(kv_token_time * (sums.prefill / sums.kv_token_time))

    def scale(self, factor: float) -> None:
        """Multiply all prompt costs by a factor, because their unit has changed."""
        for sums in self.sums.values():
            sums.prefill *= factor

    def record(self) -> Record:
        return {
            name: [sums.applications, sums.kv_token_time, sums.prefill]
            for name, sums in self.sums.items()
        }

    def restore(self, record: object) -> None:
        """Restore the sums from the result of `record`.

        Raises:
            ValueError: If the record has another form.
        """
        if not isinstance(record, Mapping):
            raise ValueError("prefill_ratios: an object is allowed")
        for name, values in record.items():
            if not (
                isinstance(values, list)
                and len(values) == 3
                and all(isinstance(one, int | float) and 0 <= one < 1e300 for one in values)
            ):
                raise ValueError(
                    f"prefill_ratios: {str(name)[:80]!r} is {values!r}: three sums >= 0"
                )
            self.sums[str(name)] = _Sums(int(values[0]), *values[1:])
