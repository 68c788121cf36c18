"""What the ingress does with a request: application, size, place in the queue, lease, answer."""

import json
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from justitia_ray.config import AppConfig, SchedulingConfig
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.errors import (
    EngineError,
    NoReplicaAnswers,
    NotServed,
    RequestError,
    shown_short,
)
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.stages import CHARGE_FACTOR, still_needed
from justitia_ray.protocol.endpoints import check_model, parse_body, prompt_text
from justitia_ray.protocol.inference_body import InferenceBody, output_bound
from justitia_ray.protocol.json_body import read_object
from justitia_ray.protocol.openai_body import CHAT, COMPLETIONS
from justitia_ray.serve.answer_headers import served_by
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.estimates import Estimates
from justitia_ray.serve.open_inputs import SeenInput
from justitia_ray.serve.outstanding import Ticket
from justitia_ray.serve.replica_calls import LEASE_UNUSABLE, Answer, ReplicaCalls, StreamItem
from justitia_ray.serve.stream_attempts import StreamAttempts, give_back
from justitia_ray.serve.token_counter import PromptSize, TokenCounter
from justitia_ray.units import ApplicationId, KvTokenTime, Tokens, VirtualTime

APPLICATION_HEADER = "x-justitia-application"
CLASS_HEADER = "x-justitia-class"
TENANT_HEADER = "x-justitia-tenant"
DEFAULT_CLASS = "default"
DEFAULT_TENANT = "default"

_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_MOST_CLASS_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class Opening:
    """An application to open.

    Raises:
        RequestError: If an id, a class or a tenant has another form than is allowed.
    """

    application_class: str
    input: str
    tenant: str = DEFAULT_TENANT
    weight: float | None = None
    application_id: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("application_id", self.application_id), ("tenant", self.tenant)):
            if value is not None and not _ID.fullmatch(value):
                raise RequestError(
                    f"{name} is {shown_short(value)}: 1 to 128 of A-Z a-z 0-9 . _ : / - are"
                    " allowed",
                    name,
                )
        name = self.application_class
        if not 0 < len(name) <= _MOST_CLASS_CHARACTERS or not name.isprintable():
            raise RequestError(
                f"application_class is {shown_short(name)}: 1 to {_MOST_CLASS_CHARACTERS}"
                " printable characters are allowed",
                "application_class",
            )


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
    ) -> None:
        """Take the parts.

        Args:
            config: Of the model that is served here.
            dispatcher: To its queue.
            calls: To its replicas.
            estimates: Of its predictor.
            counter: Of its prompt tokens.
            opened_elsewhere: Returns what an application was opened with at another model.
        """
        self._opened_elsewhere = opened_elsewhere or _nowhere
        self._config = config
        self._dispatcher = dispatcher
        self._calls = calls
        self._estimates = estimates
        self._counter = counter
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
        self.scheduling = SchedulingConfig()

    async def open_application(self, opening: Opening) -> tuple[ApplicationArrived, VirtualTime]:
        """Open an application; opening one that is open returns its tag.

        Raises:
            TooManyApplications: If there is no room for it.
        """
        arrival, seen = await self._predicted(opening)
        tag = await self._dispatcher.open_application(arrival)
        self._estimates.remember(arrival.application_id, seen)
        return arrival, tag

    async def unary(self, path: str, headers: Mapping[str, str], body: InferenceBody) -> Answer:
        """Run one inference and return its whole answer.

        Raises:
            JustitiaError: If it cannot run; `protocol.status` has the answer to it.
        """
        ticket = await self._submit(headers, body)
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
        ticket = await self._submit(headers, body)
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

    # --- inside

    async def _submit(self, headers: Mapping[str, str], body: InferenceBody) -> Ticket:
        """Let an inference wait; one that names no application is all of its own."""
        size = await self._counter.size(body)
        most = output_bound(body, size.longest_tokens, self.max_model_len)
        choices = size.prompts * body.n
        application_id = headers.get(APPLICATION_HEADER)
        opening = None
        known = None if application_id is None else self._dispatcher.opened_here(application_id)
        if known is None:
            opening = known = await self._opening(headers, body, size, most)
        stage, inferences = self._dispatcher.next_stage(known.application_id)
        each, remaining = self._foresee(
            known.application_class, size, body, most, (stage, inferences)
        )
        item = InferenceSubmitted(
            request_id=uuid.uuid4().hex,
            application_id=known.application_id,
            inference_id=uuid.uuid4().hex,
            ingress_id=self._dispatcher.ingress_id,
            prompt_tokens=size.total_tokens * body.n,
            predicted_output_tokens=each * choices,
            max_output_tokens=most * choices,
            choices=choices,
            stage=stage,
            remaining_kv_token_time=remaining,
        )
        is_last = APPLICATION_HEADER not in headers
        return self._dispatcher.submit(item, opening, is_last=is_last)

    def _foresee(
        self,
        application_class: str,
        size: PromptSize,
        body: InferenceBody,
        most: Tokens,
        place: tuple[int, int],
    ) -> tuple[Tokens, KvTokenTime]:
        """Return how long an inference will be, and what its application is charged from here on.

        Of a class of which nothing is known, room is kept for all that may come, and the
        application is expected to need what is usual.
        """
        stage, inferences = place
        prompt_tokens = size.total_tokens // size.prompts
        sequences = inferences * size.prompts * body.n
        expected = self._estimates.expect(application_class, stage, prompt_tokens, most, inferences)
        if body.forced_length:
            usual = length = most
        elif expected is not None:
            usual = length = expected.output_tokens
        else:
            table = self._estimates.from_table
            length = table(application_class, size.total_tokens, most).output_tokens
            usual = min(most, table(application_class, size.total_tokens, None).output_tokens)
        needed = still_needed(expected, usual, prompt_tokens, sequences)
        return length, CHARGE_FACTOR * needed

    async def _opening(
        self, headers: Mapping[str, str], body: InferenceBody, size: PromptSize, most: Tokens
    ) -> ApplicationArrived:
        """Return the application that an inference opens; the predictor is asked for a class."""
        application_id = headers.get(APPLICATION_HEADER)
        known = None if application_id is None else self._opened_elsewhere(application_id)
        if known is not None:
            arrival, seen = await self._predicted(known)
            self._remember(arrival, seen)
            return arrival
        named_class = headers.get(CLASS_HEADER)
        application_class = named_class or DEFAULT_CLASS
        tenant = headers.get(TENANT_HEADER) or DEFAULT_TENANT
        opening = Opening(application_class, "", tenant, None, application_id)
        if named_class is None:
            return self._arrival(
                opening, self._estimates.from_table(application_class, size.total_tokens, most)
            )
        seen = await self._estimates.look_at(prompt_text(body))
        estimate = await self._estimates.ask(application_class, size.total_tokens, most, seen)
        arrival = self._arrival(opening, estimate)
        self._remember(arrival, seen)
        return arrival

    async def _predicted(self, opening: Opening) -> tuple[ApplicationArrived, SeenInput]:
        """Return an application as its input lets expect it, and what was seen of that."""
        input_tokens = await self._counter.text_tokens(opening.input)
        seen = await self._estimates.look_at(opening.input)
        estimate = await self._estimates.ask(opening.application_class, input_tokens, None, seen)
        return self._arrival(opening, estimate), seen

    def _remember(self, arrival: ApplicationArrived, seen: SeenInput) -> None:
        if self._dispatcher.opened_here(arrival.application_id) is None:  # by another one meanwhile
            self._estimates.remember(arrival.application_id, seen)

    def _arrival(self, opening: Opening, estimate: Estimate) -> ApplicationArrived:
        application_id = opening.application_id
        if application_id is None:
            application_id = f"app-{uuid.uuid4().hex}"
        weight = opening.weight
        if weight is None:
            weight = self.scheduling.tenant_weights.get(opening.tenant, 1.0)
        return ApplicationArrived(
            application_id,
            opening.application_class,
            opening.tenant,
            weight,
            estimate.kv_token_time,
            self._dispatcher.ingress_id,
            charge_kv_token_time=CHARGE_FACTOR * estimate.kv_token_time,
        )


def _nowhere(application_id: ApplicationId) -> None:
    return None
