"""Stub policy whose keys a test sets."""

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies import Policy, PolicyContext, PolicyOptions
from justitia_ray.core.queue import Key, Queue
from justitia_ray.units import ClientId, Seconds


def stub_context(options: PolicyOptions | None = None, *applications: Application) -> PolicyContext:
    """Return a context for a policy without a scheduler, at time 0."""
    by_id = {application.application_id: application for application in applications}
    options = options if options is not None else PolicyOptions()
    return PolicyContext(
        ServedShare(), options, by_id.__getitem__, lambda: 0.0, Queue(), lambda: 0, lambda: 0
    )


class StubPolicy(Policy):
    """Policy in the order of submission; tests may reverse it or hold clients back."""

    holds_back = True

    def __init__(self, *, by_tenant: bool = False) -> None:
        super().__init__(stub_context())
        self.by_tenant = by_tenant
        self.reverse = False
        self.eligible: dict[ClientId, Seconds] = {}
        self.gone: list[ClientId] = []
        self.asked = 0
        """Number of `key` calls."""

    def client(self, application: Application) -> ClientId:
        return application.tenant if self.by_tenant else application.application_id

    def key(self, client: ClientId, application: Application) -> Key:
        """Return the submission order of the application's first inference, negated if reversed."""
        self.asked += 1
        submitted_at, sequence = application.waiting.first.order
        return (-submitted_at, -sequence) if self.reverse else (submitted_at, sequence)

    def eligible_at(self, client: ClientId) -> Seconds:
        return self.eligible.get(client, 0.0)

    def left(self, client: ClientId) -> None:
        self.gone.append(client)


def create_inference(name: str, sequence: int, submitted_at: float = 0.0) -> Inference:
    """Return an inference of the application that has the first letter of its name."""
    return Inference(name, name[0], name, "i0", 1, 1, 1, 1, submitted_at, sequence)


def create_application(name: str, *sequences: int, tenant: str = "tenant") -> Application:
    """Return an application with waiting inferences of these sequence numbers."""
    made = Application(name, "class", tenant, 1, 1, "i0", 0.0, ord(name))
    for sequence in sequences:
        enqueue_inference(made, create_inference(f"{name}{sequence}", sequence))
    return made


def enqueue_inference(made: Application, waiting: Inference) -> None:
    made.waiting.add_inference(waiting, waiting.order)
