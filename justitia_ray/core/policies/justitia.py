"""Justitia: applications in the order of their completion under GPS (v1, Sec. IV-C, Alg. 1)."""

import struct
from typing import ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Policy
from justitia_ray.core.queue import Key
from justitia_ray.units import ClientId


class JustitiaPolicy(Policy):
    """Smallest (F, arrival sequence) first; the first application is given all it can use."""

    ACCOUNTS_IN_COST: ClassVar[bool] = True

    def client(self, application: Application) -> ClientId:
        """Return the application, or its tenant if fairness is between tenants."""
        if self.options.fairness == "tenant":
            return application.tenant
        return application.application_id

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (F, arrival sequence); between tenants F is the key of `tenant_share`."""
        return (self.fair_share.tag(application.application_id), application.sequence)

    def application_key(self, application: Application) -> Key:
        """Return the place inside its tenant; of no effect between applications."""
        tag = self.fair_share.tag_in_tenant(application.application_id)
        return (tag, application.sequence)

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return F as an integer of the same rank, so that the engine's own order is ours."""
        return rank_preserving_integer(self.fair_share.tag(application.application_id))


def rank_preserving_integer(value: float) -> int:
    """Map a non-negative float to a 63-bit integer: a < b if and only if map(a) < map(b).

    The bit pattern of a non-negative IEEE double rises with its value. Adding 0.0 takes the sign
    from -0.0, which equals 0.0 but has the highest bit set.

    Raises:
        ValueError: If the value is negative or not a number.
    """
    if not value >= 0:
        raise ValueError(f"a tag must be >= 0, got {value}")
    bits: int = struct.unpack(">q", struct.pack(">d", float(value) + 0.0))[0]
    return bits
