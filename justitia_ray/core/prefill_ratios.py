"""Prefill of applications relative to their KV token-time, by class, learned as they end.

An application's predicted KV token-time times the ratio of its class is its predicted prefill. The
ratio depends on the lengths of outputs and on reuse, not on the size of an application. While few
applications of a class have ended, the prefill of the expected stages counts.
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
_STAGES_WEIGHT = 8
"""Weight, in ended applications, of the prefill that the expected stages of an application give."""


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

    def expected(
        self, application_class: str, kv_token_time: KvTokenTime, of_stages: KvTokenTime = 0
    ) -> int:
        """Return the prefill expected in addition to a KV token-time; 0: unknown.

        Args:
            application_class: Class of an application that arrives.
            kv_token_time: Its charge without prefill.
            of_stages: Prefill of its expected stages; 0: unknown.
        """
        sums = self.sums.get(application_class)
        if sums is None and not of_stages:
            sums = self.sums.get(_OTHER)
        if sums is None or not sums.kv_token_time:
            return round(of_stages)
        learned = kv_token_time * (sums.prefill / sums.kv_token_time)
        if not of_stages:
            return round(learned)
        ended, weight = sums.applications, _STAGES_WEIGHT
        return round((ended * learned + weight * of_stages) / (ended + weight))

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
