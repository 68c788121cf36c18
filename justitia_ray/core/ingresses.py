"""Ingresses: heard of, silent, lost; and which inferences each has.

An ingress that dies leaves inferences behind, which are ended when it has been silent for
`Timeouts.ingress_s`. Until then they must not cost the others anything: each that was leased would
hold its seat until the lease lapses, wait again at the head of its application, and be leased
again. So an ingress is *silent* once a lease of it has lapsed unused and nothing was heard of it
since the grant: it takes its mail as soon as there is any, and asks for more. What waits of it is
kept out of the order until it is heard of, and then waits again in the places that it had. Nothing
is ended, for it may only have stood still, and what runs of it goes on.

Kept out is not idle: an application keeps its account and its tag meanwhile. GPS serves it ahead
for `ingress_s` at most, which is settled at its end, or used when its ingress is back.
"""

from justitia_ray.core.deadlines import Lapse
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.order import Order
from justitia_ray.core.state import State
from justitia_ray.units import ApplicationId, IngressId, RequestId


class Ingresses:
    """Keeps out what nobody would send a payload for. O(k log n) for an ingress of k inferences."""

    def __init__(self, state: State, order: Order) -> None:
        self._state = state
        self._order = order
        self._inferences: dict[IngressId, dict[RequestId, Inference]] = {}
        """Those that have not ended, in the order of their submission."""
        self._silent: set[IngressId] = set()
        self.kept_out = 0
        """How many inferences are kept out."""

    def of(self, ingress_id: IngressId) -> list[Inference]:
        """Return the inferences of an ingress, in the order of their submission."""
        return list(self._inferences.get(ingress_id, {}).values())

    def is_silent(self, ingress_id: IngressId) -> bool:
        """Return whether what waits of an ingress is to be kept out of the order."""
        return ingress_id in self._silent

    def submitted(self, inference: Inference) -> None:
        """There is one more."""
        of_it = self._inferences.setdefault(inference.ingress_id, {})
        of_it[inference.request_id] = inference

    def ended(self, inference: Inference) -> None:
        """There is one less."""
        of_it = self._inferences[inference.ingress_id]
        del of_it[inference.request_id]
        if not of_it:
            del self._inferences[inference.ingress_id]

    def hear(self, ingress_id: IngressId) -> None:
        """It called: what was kept out of it waits again."""
        state = self._state
        if ingress_id not in state.ingresses:
            state.deadlines.set(state.now + state.timeouts.ingress_s, Lapse.INGRESS, ingress_id)
        state.ingresses[ingress_id] = state.now
        if ingress_id in self._silent:
            self._silent.discard(ingress_id)
            self._let_in(ingress_id)

    def left_unused(self, inference: Inference) -> None:
        """The lease that an inference holds lapsed: take its ingress for silent if it was.

        Of a lease that an earlier scheduler granted it was not told here, and owes no answer.
        """
        assert inference.lease_id is not None
        lease = self._state.leases[inference.lease_id]
        heard_at = self._state.ingresses[inference.ingress_id]
        is_own = lease.lease_id.startswith(self._state.lease_prefix)
        if is_own and heard_at < lease.granted_at and not self.is_silent(inference.ingress_id):
            self._silent.add(inference.ingress_id)
            for other in self.of(inference.ingress_id):
                application = self._state.applications[other.application_id]
                if other in application.waiting:
                    self._order.leave(application, other)
                    self.keep_out(application, other)

    def keep_out(self, application: Application, inference: Inference) -> None:
        """An inference of a silent ingress, which is not in the queue, waits to be let in."""
        application.kept_out[inference.request_id] = inference
        self.kept_out += 1
        self._order.kept_out(inference)

    def take_out(self, application: Application, inference: Inference) -> bool:
        """Keep an inference out no longer; return whether it was."""
        was_kept_out = application.kept_out.pop(inference.request_id, None) is not None
        self.kept_out -= was_kept_out
        return was_kept_out

    def lapsed(self, ingress_id: IngressId) -> list[Inference]:
        """Return what is to be ended of an ingress: all if it is lost, else nothing."""
        due = self._state.ingresses[ingress_id] + self._state.timeouts.ingress_s
        if due > self._state.now:
            self._state.deadlines.set(due, Lapse.INGRESS, ingress_id)
            return []
        del self._state.ingresses[ingress_id]
        self._silent.discard(ingress_id)
        return self.of(ingress_id)

    def _let_in(self, ingress_id: IngressId) -> None:
        back: dict[ApplicationId, list[Inference]] = {}
        for inference in self.of(ingress_id):
            application = self._state.applications[inference.application_id]
            if self.take_out(application, inference):
                back.setdefault(inference.application_id, []).append(inference)
        for application_id, inferences in back.items():
            self._order.let_in(self._state.applications[application_id], inferences)
