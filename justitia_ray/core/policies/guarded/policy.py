"""Justitia with two options that are not in the paper, which let applications overtake others.

The order `sgps` puts the shortest applications first wherever GPS's guarantee to others allows it.
The guard puts applications first that VTC would have finished by now (`passing`). With fairness
between tenants both options act inside each tenant's share, and change no other tenant's key.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Delivery, Policy, PolicyContext
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.passing import (
    GpsPromises,
    Guard,
    PassingOrder,
    PassingTreeOrder,
    TenantOrder,
)
from justitia_ray.core.policies.guarded.rules import first_may_overtake
from justitia_ray.core.policies.justitia import JustitiaPolicy, rank_preserving_integer
from justitia_ray.core.policies.options import Option, number, one_of
from justitia_ray.core.policies.tree_order import TreeOrder
from justitia_ray.core.queue import LazyHeap
from justitia_ray.core.records import RecordReader
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime

_RANKS = 1 << 63
"""Number of different priorities in the engine. An urgent application's priority less this number
comes before all others.
"""


class GuardedPolicy(JustitiaPolicy, Policy):
    """Policy that orders applications by virtual finish time, and lets some overtake."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("order", "sgps", one_of("finish", "sgps")),
        Option("guard_iterations", 300.0, number(least=0)),
    )
    CLOCKS: ClassVar[tuple[str, ...]] = ("served",)
    GOES_ON_FROM: ClassVar[tuple[str, ...]] = ("justitia",)
    INVARIANTS = (first_may_overtake,)

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        own = context.options.own
        self._shortest = own["order"] == "sgps"
        self._guards = bool(own["guard_iterations"])
        self.lets_pass = self.moves_with_service = self._shortest or self._guards
        self.keeps_place_in_flight = self._guards
        self._tenants: TenantShare | None = self._tree if self.lets_pass else None
        """The accounts, if applications may overtake inside a tenant; otherwise None."""
        self._foretold: ForetoldVtc | None = None
        """Model of the policy VTC for all applications, from which urgency follows."""
        if self._guards and self._tenants is None:
            self._foretold = ForetoldVtc(context.kv_in_flight)
        self._foretold_in: dict[ClientId, ForetoldVtc] = {}
        """Models of the policy VTC for the applications of each tenant, from which urgency follows.
        """
        self._order: PassingOrder | None = None
        self._order_in: dict[ClientId, TenantOrder] = {}

    @property
    def guard_budget(self) -> KvTokenTime:
        """Return B, the service that an urgent application may take from applications before it.

        It is the service that all replicas deliver in `guard_iterations` iterations, as measured
        while inferences wait.
        """
        iterations: float = self.options.own["guard_iterations"]
        return iterations * self.context.kv_per_iteration()

    def tenant_guard_budget(self, tenant: ClientId) -> KvTokenTime:
        """Return the part of the guard's budget that belongs to a tenant, by weight."""
        assert self._tenants is not None
        return self._tenants.nodes.part_of(tenant, self.guard_budget)

    def order(self) -> LazyHeap:
        """Return the order of clients by tag F, with overtaking if an option requests it."""
        self._order_in.clear()
        if not self.lets_pass or self._tenants is not None:
            return super().order()
        guard = None
        if self._foretold is not None and self._guards:
            guard = Guard(
                self._foretold,
                lambda: self.guard_budget,
                self.context.now,
                self.context.application,
            )
        self._order = PassingOrder(
            GpsPromises(self.fair_share),
            self.context.application,
            shortest=self._shortest,
            guard=guard,
        )
        return self._order

    def overtaking_slack(self, application: Application) -> KvTokenTime | None:
        """Return the slack with which an urgent application overtook, or None.

        None: the guard did not put it first. A negative value is the slack that the applications
        before it may lack.
        """
        order = self._order
        if self._tenants is not None:
            order = self._order_in.get(application.leaf)
        return None if order is None else order.overtaking_slack(application.application_id)

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the tag F as an integer priority, so that the engine keeps the scheduler's order.

        An application that the guard put first comes before all others, by VTC's deadline: by F it
        would be among the last, and the first to be preempted if memory overflows. An application
        that overtakes inside a tenant has the rank of the application that it overtakes.
        """
        name = application.application_id
        if self._foretold is not None and self.overtaking_slack(application) is not None:
            deadline = self._foretold.deadline(name, self.context.now()) or 0
            return rank_preserving_integer(max(0, deadline)) - _RANKS
        if self._guards and (order := self._order_in.get(application.leaf)) is not None:
            name = order.least() or name
        return self._rank_of_tag(application, self.fair_share.tag(name))

    # --- events for the guard

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        shadow = self._foretold
        if self._tenants is not None and self._guards:
            shadow = self._get_or_create_vtc_model(application.leaf)
        if shadow is not None:
            shadow.submitted(application, inference, self.context.now())
        return ()

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        if (shadow := self._find_vtc_model(application)) is not None:
            shadow.dispatched(inference, self.context.now())
        return ()

    def adopted(self, application: Application, inference: Inference) -> None:
        self.submitted(application, inference)
        if (shadow := self._find_vtc_model(application)) is not None:
            shadow.adopted(inference, self.context.now())

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        if self._foretold is not None:
            self._foretold.served(deliveries, self.context.now())
        elif self._foretold_in:
            for tenant, own in self._group_by_tenant(deliveries).items():
                if tenant in self._foretold_in:
                    self._foretold_in[tenant].served(own, self.context.now())
        return ()

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        if (shadow := self._find_vtc_model(application)) is not None:
            shadow.ended(application, inference, self.context.now())
        if (order := self._order_in.get(application.leaf)) is not None:
            order.inference_ended(application.application_id, inference.request_id)
        return ()

    def application_ended(self, application: Application) -> None:
        """Pass an ended application to the VTC model, and drop a tenant without applications."""
        if (shadow := self._find_vtc_model(application)) is not None:
            shadow.application_ended(application, self.context.now())
        if self._tenants is None:
            return
        if (order := self._order_in.get(application.leaf)) is not None:
            order.application_ended(application.application_id)
        tenant = self._tenants.nodes.leaves.get(application.leaf)
        if tenant is None or tenant.live <= {application.application_id}:
            self._foretold_in.pop(application.leaf, None)
            self._order_in.pop(application.leaf, None)
            self._tenants.unwatch_tenant(application.leaf)

    def state(self) -> dict[str, Any]:
        """Return the state of the model of VTC, or of each tenant's model.

        {} without the guard.
        """
        if self._foretold is not None:
            return self._foretold.state()
        if self._tenants is None or not self._guards:
            return {}
        return {"tenants": {name: shadow.state() for name, shadow in self._foretold_in.items()}}

    def application_state(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return an application's state in the model of VTC, and its overtaking inferences."""
        application = self.context.application(application_id)
        shadow = self._find_vtc_model(application)
        guarded = None if shadow is None else shadow.application_state(application_id)
        if self._tenants is None:
            return guarded
        order = self._order_in.get(application.leaf)
        booked = [] if order is None else order.booked(application_id)
        if guarded is None and not booked:
            return None
        return {"guarded": guarded, "booked": booked}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the model of VTC, if there is one, for tenants with live applications."""
        if not state:
            return
        if self._foretold is not None:
            self._foretold.restore(state)
        elif self._tenants is not None and self._guards:
            kept = RecordReader(state, ("tenants",), None).mapping("tenants")
            for name, shadow in kept.items():
                tenant = self._tenants.nodes.leaves.get(name)
                if tenant is not None and tenant.live:
                    self._get_or_create_vtc_model(name).restore(shadow)

    def restore_application(self, application: Application, state: Mapping[str, Any]) -> None:
        """Restore the result of `application_state`."""
        if self._tenants is None:
            if self._foretold is not None:
                self._foretold.restore_application(application, state)
            return
        reader = RecordReader(state, ("guarded", "booked"))
        if reader.value("guarded") is not None and self._guards:
            shadow = self._get_or_create_vtc_model(application.leaf)
            shadow.restore_application(application, reader.mapping("guarded"))
        if booked := reader.items("booked"):
            order = self._tenant_order(application.leaf)
            order.restore_booked(application.application_id, map(str, booked))

    def _find_vtc_model(self, application: Application) -> ForetoldVtc | None:
        """Return the model of VTC that may contain an application, or None."""
        if self._tenants is None:
            return self._foretold
        return self._foretold_in.get(application.leaf)

    def _tree_order(self, tree: TenantShare, client: ClientId) -> TreeOrder:
        kind = TreeOrder if self._tenants is None else PassingTreeOrder
        return kind(tree, client, self.context.application, self._leaf_order)

    def _leaf_order(self, tenant: ClientId) -> LazyHeap:
        return LazyHeap() if self._tenants is None else self._tenant_order(tenant)

    def _tenant_order(self, tenant: ClientId) -> TenantOrder:
        """Return the order of a tenant, kept while any of its applications is live."""
        assert self._tenants is not None
        if tenant not in self._order_in:
            guard = None
            if self._guards:
                guard = Guard(
                    self._get_or_create_vtc_model(tenant),
                    lambda: self.tenant_guard_budget(tenant),
                    self.context.now,
                    self.context.application,
                )
            self._order_in[tenant] = TenantOrder(
                self._tenants,
                tenant,
                self.context.application,
                shortest=self._shortest,
                guard=guard,
                cost=self.options.cost_function,
            )
        return self._order_in[tenant]

    def _get_or_create_vtc_model(self, tenant: ClientId) -> ForetoldVtc:
        if tenant not in self._foretold_in:
            self._foretold_in[tenant] = ForetoldVtc(lambda: self._kv_in_flight_of(tenant))
        return self._foretold_in[tenant]

    def _kv_in_flight_of(self, name: ClientId) -> KvTokenTime | None:
        """Return a tenant's part of the tokens on full replicas now; None if nothing is owed."""
        assert self._tenants is not None
        tenant = self._tenants.nodes.leaves.get(name)
        part = None if tenant is None else self._tenants.nodes.fair_fraction(tenant)
        return None if part is None else part * self.context.kv_in_flight()

    def _group_by_tenant(self, deliveries: Sequence[Delivery]) -> dict[ClientId, list[Delivery]]:
        found: dict[ClientId, list[Delivery]] = {}
        for delivery in deliveries:
            tenant = self.context.application(delivery.application_id).leaf
            found.setdefault(tenant, []).append(delivery)
        return found
