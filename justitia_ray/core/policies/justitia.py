"""Justitia: applications in the order of their completion under GPS (v1, Sec. IV-C, Alg. 1).

Two options are not in the paper: the order `sgps`, shortest first wherever GPS's promise to others
allows it, and the guard, which lets those go first that VTC would have done by now (`passing`).
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from justitia_ray.core.clock.foretold import ForetoldVtc
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Delivery, Policy, PolicyContext
from justitia_ray.core.policies.options import Option, PolicyOptions, number, one_of
from justitia_ray.core.policies.passing import Guard, PassingOrder
from justitia_ray.core.queue import Key, LazyHeap
from justitia_ray.errors import ConfigError
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime

_RANKS = 1 << 63
"""Numbers of `rank_preserving_integer`; less these, they come before all others."""


class JustitiaPolicy(Policy):
    """Smallest (F, arrival sequence) first; the first application is given all it can use."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("order", "finish", one_of("finish", "sgps")),
        Option("guard_iterations", 0.0, number(least=0)),
    )
    ACCOUNTS_IN_COST: ClassVar[bool] = True

    @classmethod
    def check(cls, options: PolicyOptions) -> None:
        """Refuse what has no slack: another clock, or tenants between applications and GPS."""
        asked = [f"order: {options.own['order']!r}"] if options.own["order"] == "sgps" else []
        if options.own["guard_iterations"]:
            asked.append(f"guard_iterations: {options.own['guard_iterations']:g}")
        for option in asked:
            for name, needed in (("clock", "served"), ("fairness", "application")):
                if getattr(options, name) != needed:
                    raise ConfigError(f"policy_options.{option} needs {name}: {needed}")

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._foretold: ForetoldVtc | None = None
        if context.options.own["guard_iterations"]:
            self._foretold = ForetoldVtc()
        self._order: PassingOrder | None = None

    @property
    def lets_pass(self) -> bool:
        """Whether it is not F alone that says who is first."""
        return bool(self.options.own["order"] == "sgps" or self.options.own["guard_iterations"])

    @property
    def moves_with_service(self) -> bool:
        """Whether service may let another pass."""
        return self.lets_pass

    @property
    def guard_budget(self) -> KvTokenTime:
        """B: service that the guard may take from those before the urgent, token·iterations."""
        iterations: float = self.options.own["guard_iterations"]
        return iterations * self.context.kv_tokens()

    def order(self) -> LazyHeap:
        """Return the order by F, or the one in which some pass where they may."""
        if not self.lets_pass:
            return super().order()
        guard = None
        if self._foretold is not None and self.options.own["guard_iterations"]:
            guard = Guard(self._foretold, lambda: self.guard_budget, self.context.now)
        self._order = PassingOrder(
            self.fair_share,
            self.context.application,
            shortest=self.options.own["order"] == "sgps",
            guard=guard,
        )
        return self._order

    def wanted_slack(self, application: Application) -> KvTokenTime | None:
        """Return the slack that the guard asked for, if by it this application was first just now.

        What is below 0 those before it may lack.
        """
        return None if self._order is None else self._order.wanted_slack(application.application_id)

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
        """Return F as an integer of the same rank, so that the engine's own order is ours.

        Whom the guard let pass comes before all others, by VTC's deadline. By F it would be among
        the last, and the first to be stopped where memory overflows.
        """
        name = application.application_id
        if self._foretold is not None and self.wanted_slack(application) is not None:
            deadline = self._foretold.deadline(name, self.context.now()) or 0
            return rank_preserving_integer(max(0, deadline)) - _RANKS
        return rank_preserving_integer(self.fair_share.tag(name))

    @property
    def keeps_place_in_flight(self) -> bool:
        """Whether what runs stays where it was granted: with the guard, which knows no other."""
        return self._foretold is not None

    # --- what the guard has to know

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Tell the guard of an inference."""
        if self._foretold is not None:
            self._foretold.submitted(application, inference, self.context.now())
        return ()

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Tell the guard of a lease."""
        if self._foretold is not None:
            self._foretold.dispatched(inference, self.context.now())
        return ()

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        """Tell the guard of service."""
        if self._foretold is not None:
            self._foretold.served(deliveries, self.context.now())
        return ()

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Tell the guard of true sizes."""
        if self._foretold is not None:
            self._foretold.ended(application, inference, self.context.now())
        return ()

    def application_ended(self, application: Application) -> None:
        """Tell the guard of an end."""
        if self._foretold is not None:
            self._foretold.application_ended(application, self.context.now())

    def state(self) -> dict[str, Any]:
        """Return level and pace of the guard's shadow; {} without a guard."""
        return {} if self._foretold is None else self._foretold.state()

    def application_state(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return where an application stands in the guard's shadow."""
        return None if self._foretold is None else self._foretold.application_state(application_id)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the guard's shadow, if there was one and is one."""
        if self._foretold is not None and state:
            self._foretold.restore(state)

    def restore_application(self, application: Application, state: Mapping[str, Any]) -> None:
        """Restore where an application stood in the guard's shadow."""
        if self._foretold is not None:
            self._foretold.restore_application(application, state)


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
