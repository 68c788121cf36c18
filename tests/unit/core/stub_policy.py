"""A policy whose keys a test sets."""

from typing import cast

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.fair_share import ServedShare
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies import Policy, PolicyContext, PolicyOptions
from justitia_ray.core.queue import Queue
from justitia_ray.units import ClientId, Seconds


class StubPolicy(Policy):
    """First submitted first, unless the test says otherwise."""

    def __init__(self, *, by_tenant: bool = False) -> None:
        context = PolicyContext(
            ServedShare(), PolicyOptions(), cast(dict[str, Application], {}).__getitem__,
            lambda: 0.0, Queue(),
        )  # fmt: skip
        super().__init__(context)
        self.by_tenant = by_tenant
        self.reverse = False
        self.eligible: dict[ClientId, Seconds] = {}
        self.gone: list[ClientId] = []

    def client(self, application: Application) -> ClientId:
        """Return the tenant or the application."""
        return application.tenant if self.by_tenant else application.application_id

    def key(self, client: ClientId, application: Application) -> Key:
        """Return the order of the first inference, or its reverse."""
        submitted_at, sequence = application.waiting.first.order
        return (-submitted_at, -sequence) if self.reverse else (submitted_at, sequence)

    def eligible_at(self, client: ClientId) -> Seconds:
        """Return what the test says."""
        return self.eligible.get(client, 0.0)

    def left(self, client: ClientId) -> None:
        """Note it."""
        self.gone.append(client)


def inference(name: str, sequence: int, submitted_at: float = 0.0) -> Inference:
    """Return an inference of the application with the first letter of its name."""
    return Inference(name, name[0], name, "i0", 1, 1, 1, 1, submitted_at, sequence)


def application(name: str, *sequences: int, tenant: str = "tenant") -> Application:
    """Return an application with waiting inferences of these sequence numbers."""
    made = Application(name, "class", tenant, 1, 1, "i0", 0.0, ord(name))
    for sequence in sequences:
        enqueue(made, inference(f"{name}{sequence}", sequence))
    return made


def enqueue(made: Application, waiting: Inference) -> None:
    """Let an inference wait."""
    made.waiting.add(waiting, waiting.order)
