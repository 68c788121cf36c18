"""Policies that serve first the client that has attained the least service: MLFQ and PLAS."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import PolicyContext
from justitia_ray.core.policies.client_policy import ClientPolicy, MeteredPolicy, number_table
from justitia_ray.core.policies.options import UNIT, Option, number
from justitia_ray.core.queue import Key
from justitia_ray.core.records import RecordReader
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, RequestId


class MlfqPolicy(MeteredPolicy):
    """Multi-level feedback queue: a client falls one level each time its service doubles.

    Source: FastServe, arXiv:2305.05920, Sec. 4.1. Quanta double from level to level: q0, 2·q0,
    4·q0, …, so a client that has attained a is in level floor(log2(1 + a/q0)).

    Differences from the source: clients are demoted, not single inferences; an inference is not
    preempted, and a requeued one returns to the position of its submission, not to the tail; a long
    prompt is charged instead of starting below level 0; and no client is promoted, so a client with
    much service may starve.
    """

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        UNIT,
        # The default is about the cost of an inference of 256 tokens in and out (VTC, Sec. 5.2).
        Option("quantum", 100_000, number(least=1e-6)),
    )

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._quantum: float = self.options.own["quantum"]
        self._attained: dict[ClientId, KvTokenTime] = {}

    def level(self, client: ClientId) -> int:
        """Return floor(log2(1 + attained/q0)), computed without rounding errors."""
        return (int(self._attained.get(client, 0) // self._quantum) + 1).bit_length() - 1

    def key(self, client: ClientId, application: Application) -> Key:
        return (self.level(client), *application.waiting.first.order)

    def forget_client(self, client: ClientId) -> None:
        self._attained.pop(client, None)

    def counted(self) -> dict[str, Any]:
        return super().counted() | {"attained": dict(self._attained)}

    def take_over(self, counted: Mapping[str, Any]) -> None:
        self._attained = number_table(RecordReader(counted, ("attained",), None), "attained")
        super().take_over(counted)

    def charge(self, application: Application, amount: KvTokenTime) -> None:
        client = self.client(application)
        self._attained[client] = self._attained.get(client, 0) + amount


class PlasPolicy(ClientPolicy):
    """PLAS (Autellix): the client whose finished inferences received least service is first.

    Source: PLAS; Autellix, arXiv:2502.13965, Sec. 4.2. The priority of a call is the service that
    the finished calls of its program had received when it was submitted. It never changes, so calls
    submitted together stay together whichever calls finish meanwhile. Differences from the source:
    service is counted in the policy's cost and not in time; priorities are not grouped into levels;
    no call is preempted; calls that wait long are not promoted, so a program with much service may
    starve. With equal service the client that arrived first is first.
    """

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._first_seen: dict[ClientId, int] = {}
        self._finished: dict[ClientId, KvTokenTime] = {}
        """Service that each client has received from its finished inferences."""
        self._fixed: dict[ApplicationId, dict[RequestId, KvTokenTime]] = {}

    def key(self, client: ClientId, application: Application) -> Key:
        return (self._service_at_submission(application.waiting.first), self._first_seen[client])

    def application_key(self, application: Application) -> Key:
        return (self._service_at_submission(application.waiting.first), application.sequence)

    def inference_key(self, inference: Inference) -> Key:
        return (self._service_at_submission(inference), *inference.order)

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Fix the priority of a new inference; an inference that is requeued keeps its priority."""
        client = self.client(application)
        self._first_seen.setdefault(client, application.sequence)
        fixed = self._fixed.setdefault(application.application_id, {})
        fixed.setdefault(inference.request_id, self._finished.get(client, 0))
        return ()

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Add the cost of a finished inference to its client's service."""
        self._fixed.get(application.application_id, {}).pop(inference.request_id, None)
        if inference.output_tokens:
            client = self.client(application)
            received = inference.cost(self.options.cost_function, inference.output_tokens)
            self._finished[client] = self._finished.get(client, 0) + received
        return ()

    def forget_client(self, client: ClientId) -> None:
        self._first_seen.pop(client, None)
        self._finished.pop(client, None)

    def forget_application(self, application_id: ApplicationId) -> None:
        self._fixed.pop(application_id, None)

    def counted(self) -> dict[str, Any]:
        return {
            "first_seen": dict(self._first_seen),
            "finished": dict(self._finished),
            "fixed": {name: dict(fixed) for name, fixed in self._fixed.items()},
        }

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Restore the state from the record that `counted` returns.

        Raises:
            ValueError: If the record has another form than `counted` returns.
        """
        reader = RecordReader(counted, ("first_seen", "finished", "fixed"), None)
        self._first_seen = reader.table("first_seen", RecordReader.integer)
        self._finished = number_table(reader, "finished")
        self._fixed = reader.table("fixed", number_table)

    def _service_at_submission(self, inference: Inference) -> KvTokenTime:
        return self._fixed[inference.application_id][inference.request_id]
