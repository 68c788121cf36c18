"""Submit an inference: find or open its application, count its tokens, predict its cost."""

import asyncio
import math
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from justitia_ray.access.identity import check_tenant
from justitia_ray.application_key import PLAIN_ID, application_key
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.core.tenants import DEFAULT_TIER, METERED, TenantTree, ancestors
from justitia_ray.errors import JustitiaError, RequestError, shown_short
from justitia_ray.observability.part_metrics import IngressMetrics
from justitia_ray.predictor.class_names import check_class_name
from justitia_ray.predictor.estimate import Estimate, Source
from justitia_ray.predictor.stages import CHARGE_FACTOR, still_needed
from justitia_ray.protocol.endpoints import prompt_text
from justitia_ray.protocol.inference_body import InferenceBody, PromptSize, output_bound
from justitia_ray.serve.ingress.estimates import Estimates, InputSummary
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.serve.ingress.token_counter import TokenCounter
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds, Tokens, VirtualTime

DEFAULT_CLASS = "default"

_MAX_CHARACTERS = 16 * 2**20
"""Maximum characters of all cached inputs of applications, some tens of MB; the oldest are dropped
first.
"""


@dataclass(frozen=True, slots=True)
class ApplicationSpec:
    """An application as its caller specifies it: class, input, tenant, weight and limits.

    Raises:
        RequestError: If an id, a class or a tenant is malformed.
    """

    application_class: str
    input: str
    tenant: str
    weight: float | None = None
    application_id: str = field(default_factory=lambda: f"app-{uuid.uuid4().hex}")
    """Id of the application within its tenant."""
    recognized_by: str = ""
    """Name of the rule that recognized the application (see `recognition`); empty: no rule did."""
    idle_s: Seconds | None = None
    """Seconds without a call after which the application ends; None: the configured time."""
    deadline_s: Seconds | None = None
    """Longest wait in seconds of each inference of the application before it starts; None: the
    configured time.
    """
    tier: str = DEFAULT_TIER
    is_retry: bool | None = None
    """Whether the caller marked the request as a retry; None: the header is absent."""

    def __post_init__(self) -> None:
        if not PLAIN_ID.fullmatch(self.application_id):
            raise RequestError(
                f"application_id is {shown_short(self.application_id)}: 1 to 128 of A-Z a-z 0-9 ."
                " _ : / - are allowed",
                "application_id",
            )
        check_tenant(self.tenant)
        check_class_name(self.application_class)

    @property
    def key(self) -> ApplicationId:
        """Id of the application across all tenants."""
        return application_key(self.tenant, self.application_id)


class ApplicationSpecCache:
    """Cache of open applications' specifications, to open them at other models later.

    The first inference at a model opens the application in that model's queue, and its headers name
    at most class and tenant. Only the ingress process that opened the application has its input and
    weight; other processes use the headers alone. A spec expires when it is not looked up.

    Args:
        idle_s: Time without a lookup after which a spec expires, as its application does.
        max_specs: Maximum number of specs; beyond it the oldest are dropped.
        max_characters: Maximum total characters of their inputs.
    """

    def __init__(
        self, idle_s: Seconds, max_specs: int, *, max_characters: int = _MAX_CHARACTERS
    ) -> None:
        self._idle_s = idle_s
        self._max_specs = max_specs
        self._max_characters = max_characters
        self._characters = 0
        self._kept: OrderedDict[ApplicationId, tuple[ApplicationSpec, Seconds]] = OrderedDict()

    def add_spec(self, spec: ApplicationSpec, now: Seconds) -> None:
        """Cache the specification of an application that has none, unless its input is too long."""
        if len(spec.input) > self._max_characters:
            spec = replace(spec, input="")
        if self.find_spec(spec.key, now) is None:
            self._kept[spec.key] = (spec, now)
            self._characters += len(spec.input)
            while len(self._kept) > self._max_specs or self._characters > self._max_characters:
                self.drop_spec(next(iter(self._kept)))

    def find_spec(self, application_id: ApplicationId, now: Seconds) -> ApplicationSpec | None:
        """Return an application's cached specification, or None; it stays for another `idle_s`."""
        self._drop_idle(now)
        found = self._kept.get(application_id)
        if found is None:
            return None
        self._kept[application_id] = (found[0], now)
        self._kept.move_to_end(application_id)
        return found[0]

    def drop_spec(self, application_id: ApplicationId) -> bool:
        """Drop the cached specification of an application; return whether it was cached."""
        found = self._kept.pop(application_id, None)
        if found is None:
            return False
        self._characters -= len(found[0].input)
        return True

    def _drop_idle(self, now: Seconds) -> None:
        while self._kept:
            oldest, (_, asked_at) = next(iter(self._kept.items()))
            if now - asked_at < self._idle_s:
                return
            self.drop_spec(oldest)


class Submitter:
    """Opens applications, and submits their inferences with predicted costs.

    Attributes:
        tenant_weights: Default weight of an application by tenant node; the nearest node with a
            weight counts; 1 if none has one.
        tenants: Tenant tree: default deadlines, and quotas with the quantile that an inference
            reserves.
        max_model_len: Context length of the model (tokens); None: unknown.
    """

    def __init__(
        self,
        queue: QueueClient,
        estimates: Estimates,
        counter: TokenCounter,
        max_model_len: Tokens | None,
        specs: ApplicationSpecCache,
        metrics: IngressMetrics | None,
    ) -> None:
        self.tenant_weights: Mapping[str, float] = {}
        self.tenants = TenantTree()
        self._queue = queue
        self._estimates = estimates
        self._metrics = metrics
        self._counter = counter
        self.max_model_len = max_model_len
        self._specs = specs

    async def open_application(
        self, spec: ApplicationSpec
    ) -> tuple[ApplicationArrived, VirtualTime]:
        """Open an application if it is not open; return the event that opened it and its tag.

        An application that this ingress has open stays as it was opened: input, class and weight of
        `spec` have no effect.

        Raises:
            TooManyApplications: If there is no room for the application.
        """
        arrival, summary, source = await self._predict_application(spec, None, None)
        try:
            opened = await self._queue.open_application(arrival)
        except JustitiaError as error:
            if self._metrics is not None:
                self._metrics.record_drop(error)
            raise
        if opened.is_new:
            self._estimates.inputs.keep_input(arrival.application_id, summary)
            if self._metrics is not None:
                self._metrics.record_estimate(arrival.application_id, source)
                self._metrics.record_opening(arrival.application_id)
        return opened.arrival, opened.virtual_finish_time

    async def submit_inference(
        self, context: RequestContext, body: InferenceBody
    ) -> PendingInference:
        """Submit an inference; without an application id it forms its own application.

        Raises:
            Forbidden: If the caller may not submit for the named tenant.
            RequestError: If a header is malformed.
            QueueFull: If too many inferences are pending here.
        """
        tenant, deadline_s = context.tenant, context.deadline_s
        size = body.size or await self._counter.prompt_size(body, tenant, self.max_model_len)
        most = output_bound(body, size.longest_tokens, self.max_model_len, is_exact=size.is_exact)
        choices = size.prompts * body.n
        opening = source = application = None
        if context.application_id is not None:
            key = application_key(tenant, context.application_id)
            application = self._queue.pending.applications.get(key)
        if application is None:
            application, source = await self._opened_application(context, tenant, body, size, most)
            opening = application
        stage, inferences = self._queue.pending.next_stage(application.application_id)
        each, remaining = self._predict_inference(
            application.application_class, size, body, most, stage, inferences
        )
        reserved = most
        if self.tenants.described:
            reserved = self._reserved_tokens(
                application.application_class, tenant, size, each, most
            )
        item = InferenceSubmitted(
            request_id=uuid.uuid4().hex,
            application_id=application.application_id,
            inference_id=uuid.uuid4().hex,
            ingress_id=self._queue.session.ingress_id,
            prompt_tokens=size.total_tokens * body.n,
            predicted_output_tokens=each * choices,
            max_output_tokens=most * choices,
            choices=choices,
            stage=stage,
            remaining_kv_token_time=remaining,
            expected_stages=self._estimates.stages.stages_to_send(
                application.application_class, stage, inferences
            ),
            deadline_s=deadline_s,
            is_retry=context.is_retry,
            is_counted=False,
            reserve_output_tokens=choices * reserved,
            least_output_tokens=most * choices if body.forced_length else 0,
            prefixes=size.prefixes,
            copies=size.copies,
        )
        is_last = context.application_id is None or context.is_final
        inference = self._queue.submit_inference(item, opening, is_last=is_last)
        if self._metrics is not None:
            if source is not None:
                self._metrics.record_estimate(application.application_id, source)
            self._metrics.record_recognition(
                "new_conversation" if context.begins_conversation else context.recognized_by
            )
        return inference

    # --- predictions

    def _predict_inference(
        self,
        application_class: str,
        size: PromptSize,
        body: InferenceBody,
        most: Tokens,
        stage: int,
        inferences: int,
    ) -> tuple[Tokens, KvTokenTime]:
        """Return an inference's predicted output tokens, and its application's remaining cost.

        For an unknown class, the inference is predicted to reach its maximum length, and its
        application's other inferences the usual length.
        """
        prompt_tokens = size.total_tokens // size.prompts
        sequences = inferences * size.prompts * body.n
        expected = self._estimates.stages.expect(
            application_class, stage, prompt_tokens, most, inferences
        )
        if body.forced_length:
            usual = length = most
        elif expected is not None:
            usual = length = expected.output_tokens
        else:
            length, usual = self._estimates.classes.output_tokens(application_class, most)
        needed = still_needed(expected, usual, prompt_tokens, sequences)
        return length, CHARGE_FACTOR * needed

    def _reserved_tokens(
        self, application_class: str, tenant: str, size: PromptSize, each: Tokens, most: Tokens
    ) -> Tokens:
        """Return the output tokens of each sequence of an inference that quotas reserve.

        KV token-time grows with the square of the output length, so the ratio of two costs is the
        squared ratio of the lengths.
        """
        share = _reserved_share(self.tenants, tenant)
        if share >= 1 or each >= most:
            return most
        estimate = self._estimates.classes.estimate(application_class, size.total_tokens, most)
        if not estimate.kv_token_time:
            return most
        spread = math.sqrt(estimate.quantile(share) / estimate.kv_token_time)
        return min(most, math.ceil(each * spread))

    async def _opened_application(
        self,
        context: RequestContext,
        tenant: str,
        body: InferenceBody,
        size: PromptSize,
        most: Tokens,
    ) -> tuple[ApplicationArrived, Source]:
        """Return the application that an inference opens, and the source of its estimate.

        The predictor is called only for applications that name a class.
        """
        named_class = context.application_class
        text = "" if named_class is None else prompt_text(body)
        spec = ApplicationSpec(
            named_class or DEFAULT_CLASS,
            text,
            tenant,
            recognized_by=context.recognized_by,
            idle_s=context.idle_s,
            tier=context.tier,
            is_retry=context.is_retry,
        )
        elsewhere = None
        if context.application_id is not None:
            spec = replace(spec, application_id=context.application_id)
            elsewhere = self._specs.find_spec(spec.key, asyncio.get_running_loop().time())
        if elsewhere is not None:
            arrival, summary, source = await self._predict_application(elsewhere, None, None)
            # The caller has opened the application at every model, which includes this one.
            arrival = replace(arrival, reopens=True)
        else:
            if named_class is None:
                estimate = self._estimates.classes.estimate(DEFAULT_CLASS, size.total_tokens, most)
                return self._arrival_event(spec, estimate), estimate.source
            arrival, summary, source = await self._predict_application(
                spec, size.total_tokens, most
            )
        # If another inference has just opened the application, the input of that one counts.
        if arrival.application_id not in self._queue.pending.applications:
            self._estimates.inputs.keep_input(arrival.application_id, summary)
        return arrival, source

    async def _predict_application(
        self, spec: ApplicationSpec, input_tokens: Tokens | None, max_tokens: Tokens | None
    ) -> tuple[ApplicationArrived, InputSummary, Source]:
        """Return an application with its predicted cost, input features and estimate's source.

        Args:
            spec: The application.
            input_tokens: Tokens of its input; None: they are counted.
            max_tokens: Maximum output tokens of one of its inferences; None: unknown.
        """
        if input_tokens is None:
            input_tokens = await self._counter.text_tokens(spec.input, spec.tenant)
        summary = await self._estimates.inputs.summarise(spec.input)
        estimate = await self._estimates.estimate_application(
            spec.application_class, input_tokens, max_tokens, summary
        )
        return self._arrival_event(spec, estimate), summary, estimate.source

    def _arrival_event(self, spec: ApplicationSpec, estimate: Estimate) -> ApplicationArrived:
        tenant, weight = spec.tenant, spec.weight
        if weight is None:
            named = (path for path in reversed(ancestors(tenant)) if path in self.tenant_weights)
            weight = self.tenant_weights.get(next(named, tenant), 1.0)
        deadline_s = spec.deadline_s
        if deadline_s is None:
            deadline_s = self.tenants.deadline_s(tenant)
        stages = self._estimates.stages.expected_stages(spec.application_class, 0)
        return ApplicationArrived(
            spec.key,
            spec.application_class,
            tenant,
            weight,
            estimate.kv_token_time,
            self._queue.session.ingress_id,
            charge_kv_token_time=CHARGE_FACTOR * estimate.kv_token_time,
            recognized_by=spec.recognized_by,
            idle_s=spec.idle_s,
            expected_stages=stages,
            deadline_s=deadline_s,
            tier=spec.tier,
            is_retry=spec.is_retry,
            keeps_ends=True,
        )


def _reserved_share(tree: TenantTree, tenant: str) -> float:
    """Return the quantile of output length that the tenant's quotas reserve; 1.0 without quotas."""
    quotas = (quota for _, node in tree.nodes(tenant) for quota in node.quotas)
    return max((quota.reserve_quantile for quota in quotas if quota.unit in METERED), default=1.0)
