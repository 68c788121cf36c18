"""From a request to a place in the queue: its application, its size, what is expected of it."""

import uuid
from collections.abc import Callable, Mapping

from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.observability.ingress_metrics import IngressMetrics
from justitia_ray.predictor.estimate import Estimate, Source
from justitia_ray.predictor.stages import CHARGE_FACTOR, still_needed
from justitia_ray.protocol.endpoints import prompt_text
from justitia_ray.protocol.headers import APPLICATION_HEADER, CLASS_HEADER, TENANT_HEADER
from justitia_ray.protocol.inference_body import InferenceBody, output_bound
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.estimates import Estimates
from justitia_ray.serve.open_inputs import SeenInput
from justitia_ray.serve.opening import DEFAULT_CLASS, DEFAULT_TENANT, Opening
from justitia_ray.serve.outstanding import Ticket
from justitia_ray.serve.token_counter import PromptSize, TokenCounter
from justitia_ray.units import ApplicationId, KvTokenTime, Tokens, VirtualTime


class Submitter:
    """Opens applications and lets their inferences wait, with what the predictor expects."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        estimates: Estimates,
        counter: TokenCounter,
        max_model_len: Tokens | None,
        opened_elsewhere: Callable[[ApplicationId], Opening | None] | None,
        metrics: IngressMetrics | None,
    ) -> None:
        """Take the parts; see `Gateway`."""
        self.tenant_weights: Mapping[str, float] = {}
        """Weight of a tenant's applications that ask for none; 1 otherwise."""
        self._dispatcher = dispatcher
        self._estimates = estimates
        self._metrics = metrics
        self._counter = counter
        self._max_model_len = max_model_len
        self._opened_elsewhere = opened_elsewhere or _nowhere

    async def open_application(self, opening: Opening) -> tuple[ApplicationArrived, VirtualTime]:
        """Open an application; opening one that is open returns its tag.

        Raises:
            TooManyApplications: If there is no room for it.
        """
        arrival, seen, source = await self._predicted(opening)
        tag = await self._dispatcher.open_application(arrival)
        self._estimates.remember(arrival.application_id, seen)
        if self._metrics is not None:
            self._metrics.estimated(arrival.application_id, source)
            self._metrics.opened(arrival.application_id)
        return arrival, tag

    async def submit(self, headers: Mapping[str, str], body: InferenceBody) -> Ticket:
        """Let an inference wait; one that names no application is all of its own."""
        size = await self._counter.size(body)
        most = output_bound(body, size.longest_tokens, self._max_model_len)
        choices = size.prompts * body.n
        application_id = headers.get(APPLICATION_HEADER)
        opening = source = None
        known = None if application_id is None else self._dispatcher.opened_here(application_id)
        if known is None:
            known, source = await self._opening(headers, body, size, most)
            opening = known
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
        ticket = self._dispatcher.submit(item, opening, is_last=is_last)
        if source is not None and self._metrics is not None:
            self._metrics.estimated(known.application_id, source)
        return ticket

    # --- inside

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
    ) -> tuple[ApplicationArrived, Source]:
        """Return the application that an inference opens, and what its estimate rests on.

        The predictor is asked for those that name a class.
        """
        application_id = headers.get(APPLICATION_HEADER)
        known = None if application_id is None else self._opened_elsewhere(application_id)
        if known is not None:
            arrival, seen, source = await self._predicted(known)
            self._remember(arrival, seen)
            return arrival, source
        named_class = headers.get(CLASS_HEADER)
        application_class = named_class or DEFAULT_CLASS
        tenant = headers.get(TENANT_HEADER) or DEFAULT_TENANT
        opening = Opening(application_class, "", tenant, None, application_id)
        if named_class is None:
            estimate = self._estimates.from_table(application_class, size.total_tokens, most)
            return self._arrival(opening, estimate), estimate.source
        seen = await self._estimates.look_at(prompt_text(body))
        estimate = await self._estimates.ask(application_class, size.total_tokens, most, seen)
        arrival = self._arrival(opening, estimate)
        self._remember(arrival, seen)
        return arrival, estimate.source

    async def _predicted(self, opening: Opening) -> tuple[ApplicationArrived, SeenInput, Source]:
        """Return an application as its input lets expect it, what was seen of that, and by what."""
        input_tokens = await self._counter.text_tokens(opening.input)
        seen = await self._estimates.look_at(opening.input)
        estimate = await self._estimates.ask(opening.application_class, input_tokens, None, seen)
        return self._arrival(opening, estimate), seen, estimate.source

    def _remember(self, arrival: ApplicationArrived, seen: SeenInput) -> None:
        if self._dispatcher.opened_here(arrival.application_id) is None:  # by another one meanwhile
            self._estimates.remember(arrival.application_id, seen)

    def _arrival(self, opening: Opening, estimate: Estimate) -> ApplicationArrived:
        application_id = opening.application_id
        if application_id is None:
            application_id = f"app-{uuid.uuid4().hex}"
        weight = opening.weight
        if weight is None:
            weight = self.tenant_weights.get(opening.tenant, 1.0)
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
