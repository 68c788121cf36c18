"""Carries a scheduler's actions to the ingresses and replicas that they are for."""

import asyncio
from collections.abc import Iterable, Mapping

from justitia_ray.core.actions import Abort, Action, EndApplication, ForgetApplication, Grant
from justitia_ray.core.state import State
from justitia_ray.protocol.messages import IngressMessage, ReplicaMessage
from justitia_ray.serve.line import Line
from justitia_ray.units import IngressId, ReplicaId, Seconds

_NO_HURRY_S: Seconds = 0.25


class MailRoom:
    """One line to each ingress and to each replica, as long as the core knows them."""

    def __init__(self) -> None:
        self._ingresses: dict[IngressId, Line] = {}
        self._forgotten: set[IngressId] = set()
        """Given up for their silence; should one call after all, it has to be told."""
        self._replicas: dict[ReplicaId, Line] = {}
        self._rung: dict[int, Line] = {}
        self._last_dropped = 0
        """Highest number of a message in a line that was dropped."""

    def of_ingress(self, ingress_id: IngressId) -> Line:
        """Return the line to an ingress."""
        return self._ingresses.setdefault(ingress_id, Line(self._last_dropped))

    def of_replica(self, replica_id: ReplicaId) -> Line:
        """Return the line to a replica."""
        return self._replicas.setdefault(replica_id, Line(self._last_dropped))

    def is_forgotten(self, ingress_id: IngressId) -> bool:
        """Return whether an ingress was given up, with all it had outstanding."""
        return ingress_id in self._forgotten

    def lines_to_ingresses(self) -> Mapping[IngressId, Line]:
        """Return the lines to ingresses, for reading."""
        return self._ingresses

    def lines_to_replicas(self) -> Mapping[ReplicaId, Line]:
        """Return the lines to replicas, for reading."""
        return self._replicas

    def ring_all(self) -> None:
        """Let every waiting call return."""
        for line in (*self._ingresses.values(), *self._replicas.values()):
            line.ring()

    def deliver(self, actions: Iterable[Action], state: State, quiet: Line | None) -> None:
        """Put what was decided into the lines, and wake who waits at them.

        Args:
            actions: What the core wants done, in order.
            state: Of the core: who is known to it.
            quiet: A line that its caller reads at once, so that nobody has to be woken.
        """
        for action in actions:
            if isinstance(action, Grant):
                self._post_to_ingress(action.ingress_id, action, state)
                self._post_to_replica(action.replica_id, action)
            elif isinstance(action, Abort):
                self._post_to_replica(action.replica_id, action)
            else:
                self._post_to_ingress(action.ingress_id, action, state)
        for line in self._rung.values():
            if line is not quiet:
                line.ring()
        self._rung.clear()
        self._drop_lost(state)

    def _post_to_ingress(
        self, ingress_id: IngressId, message: IngressMessage, state: State
    ) -> None:
        if ingress_id in state.ingresses:
            line = self.of_ingress(ingress_id)
            line.put(message)
            if isinstance(message, EndApplication | ForgetApplication):
                # Nobody waits for it: many of them may share one answer.
                asyncio.get_running_loop().call_later(_NO_HURRY_S, line.ring)
            else:
                self._rung[id(line)] = line

    def _post_to_replica(self, replica_id: ReplicaId, message: ReplicaMessage) -> None:
        line = self._replicas.get(replica_id)
        if line is not None:
            line.put(message)
            self._rung[id(line)] = line

    def _drop_lost(self, state: State) -> None:
        """Forget the mail of those that the core has given up."""
        if len(self._ingresses) > len(state.ingresses):
            self._forgotten |= self._ingresses.keys() - state.ingresses.keys()
        for lines, known in (
            (self._ingresses, state.ingresses.keys()),
            (self._replicas, state.replicas.keys()),
        ):
            if len(lines) > len(known):
                for name in [name for name in lines if name not in known]:
                    line = lines.pop(name)
                    self._last_dropped = max(self._last_dropped, line.last)
                    line.ring()
