"""What the ingress does with a request: a place in the queue, a lease, the answer to it."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from justitia_ray.config import AppConfig
from justitia_ray.core.events import ApplicationArrived
from justitia_ray.errors import EngineError, NoReplicaAnswers, NotServed
from justitia_ray.observability.ingress_metrics import IngressMetrics
from justitia_ray.protocol.endpoints import check_model, parse_body
from justitia_ray.protocol.inference_body import InferenceBody
from justitia_ray.protocol.json_body import read_object
from justitia_ray.protocol.openai_body import CHAT, COMPLETIONS
from justitia_ray.serve.answer_headers import served_by
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.estimates import Estimates
from justitia_ray.serve.opening import Opening
from justitia_ray.serve.replica_calls import LEASE_UNUSABLE, Answer, ReplicaCalls, StreamItem
from justitia_ray.serve.stream_attempts import StreamAttempts, give_back
from justitia_ray.serve.submitter import Submitter
from justitia_ray.serve.token_counter import TokenCounter
from justitia_ray.units import ApplicationId, VirtualTime


class Gateway:
    """Turns requests into inferences of applications, and their answers into responses."""

    def __init__(
        self,
        config: AppConfig,
        dispatcher: Dispatcher,
        calls: ReplicaCalls,
        estimates: Estimates,
        counter: TokenCounter,
        opened_elsewhere: Callable[[ApplicationId], Opening | None] | None = None,
        metrics: IngressMetrics | None = None,
    ) -> None:
        """Take the parts.

        Args:
            config: Of the model that is served here.
            dispatcher: To its queue.
            calls: To its replicas.
            estimates: Of its predictor.
            counter: Of its prompt tokens.
            opened_elsewhere: Returns what an application was opened with at another model.
            metrics: What is told of estimates; None: nothing is.
        """
        self._config = config
        self._dispatcher = dispatcher
        self._calls = calls
        self._streams = StreamAttempts(dispatcher, calls, config.ingress)
        self._paths: frozenset[str] | None = None
        """What the engine answers, once it was asked; the same as long as this process lives."""
        declared = config.engine.vllm_args.get("max_model_len")
        self.max_model_len = (
            config.engine.fake.max_model_len
            if config.engine.kind == "fake"
            else int(declared)
            if declared is not None
            else None
        )
        self.submitter = Submitter(
            dispatcher, estimates, counter, self.max_model_len, opened_elsewhere, metrics
        )

    async def open_application(self, opening: Opening) -> tuple[ApplicationArrived, VirtualTime]:
        """Open an application; opening one that is open returns its tag.

        Raises:
            TooManyApplications: If there is no room for it.
        """
        return await self.submitter.open_application(opening)

    async def unary(self, path: str, headers: Mapping[str, str], body: InferenceBody) -> Answer:
        """Run one inference and return its whole answer.

        Raises:
            JustitiaError: If it cannot run; `protocol.status` has the answer to it.
        """
        ticket = await self.submitter.submit(headers, body)
        payload = json.dumps(body.fields).encode()
        try:
            for _ in range(self._config.ingress.attempts):
                grant = await self._dispatcher.next_grant(ticket)
                try:
                    answer = await self._calls.unary(grant, self._dispatcher.epoch, path, payload)
                except LEASE_UNUSABLE as error:
                    await give_back(self._dispatcher, ticket, grant, error)
                else:
                    self._dispatcher.end(ticket)
                    status, head, whole = answer
                    return status, served_by(head, grant), whole
            raise EngineError(f"gave up after {self._config.ingress.attempts} attempts")
        finally:
            self._dispatcher.cancel(ticket)  # nothing, if it has ended

    async def stream(
        self, path: str, headers: Mapping[str, str], body: InferenceBody
    ) -> AsyncGenerator[StreamItem]:
        """Run one inference: yield (status, headers), then chunks.

        A stream that is cut goes on elsewhere, where it was cut. One that cannot be continued, or
        was cut too often, ends with an error event that says so.

        Raises:
            JustitiaError: If it cannot run, before anything was yielded.
        """
        ticket = await self.submitter.submit(headers, body)
        payload = json.dumps(body.fields).encode()
        async with aclosing(self._streams.run(ticket, path, payload)) as items:
            async for item in items:
                yield item

    async def answer(
        self, path: str, headers: Mapping[str, str], body: InferenceBody
    ) -> AsyncGenerator[StreamItem]:
        """Run one inference, unary or streamed as its body asks: (status, headers), then bytes.

        Raises:
            JustitiaError: If it cannot run, before anything was yielded.
        """
        if body.stream:
            async with aclosing(self.stream(path, headers, body)) as items:
                async for item in items:
                    yield item
            return
        status, head, whole = await self.unary(path, headers, body)
        yield status, head
        yield whole

    def parse(self, path: str, body: bytes) -> InferenceBody:
        """Read a request's body; see `parse_body`."""
        return parse_body(path, body, self._config.model.names, self.max_model_len)

    async def check_served(self, path: str) -> None:
        """Refuse what the model has no answer to before it waits for its turn.

        For chats and completions, which are nearly all calls and which hardly a model is without,
        the replicas are not asked; what they have said counts. Nor is anything refused while no
        replica is there to ask: it waits for one like all else.

        Raises:
            NotServed: If the engine says so.
        """
        if self._paths is None:
            if path in (CHAT, COMPLETIONS):
                return
            try:
                self._paths = await self._calls.paths()
            except NoReplicaAnswers:
                return
        if path not in self._paths:
            raise NotServed(f"the model {self._config.model.name!r} has no {path}")

    async def aside(self, path: str, body: bytes) -> Answer:
        """Return the answer to a call that takes no part in the queue.

        Raises:
            RequestError: If the body is no JSON object, or asks for another model.
            NotServed: If the model has no answer to it.
            NoReplicaAnswers: If no replica answers.
        """
        fields = read_object(body)
        check_model(fields, self._config.model.names)
        await self.check_served(path)
        return await self._calls.aside(path, json.dumps(fields).encode())
