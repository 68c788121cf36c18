"""Requests for one model: checks of paths and bodies, and calls that need no lease."""

import logging
from asyncio import get_running_loop, sleep
from dataclasses import replace
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import NoReplicaAnswers, NotServed
from justitia_ray.observability.call_traces import CallTracer
from justitia_ray.observability.part_metrics import IngressMetrics
from justitia_ray.protocol.endpoints import name_model, parse_body
from justitia_ray.protocol.engine import Answer
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS
from justitia_ray.protocol.inference_body import InferenceBody, read_object
from justitia_ray.protocol.request_mapping import RequestMapping
from justitia_ray.protocol.request_schemas import installed_schemas
from justitia_ray.serve.ingress.attempts import Attempts
from justitia_ray.serve.ingress.estimates import Estimates
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.ingress.replica_calls import ReplicaCalls
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.serve.ingress.submission import ApplicationSpecCache, Submitter
from justitia_ray.serve.ingress.token_counter import TokenCounter
from justitia_ray.serve.ingress.waiting_streams import StreamOutlooks
from justitia_ray.units import ClientId, Seconds, Tokens

logger = logging.getLogger("ray.serve")

_ASK_AGAIN_S: Seconds = 0.5
_ASK_AGAIN_MOST_S: Seconds = 10.0
"""Longest pause in seconds between two requests to replicas for the context length; the first is
`_ASK_AGAIN_S`.
"""
_ASK_FOR_CACHE_S: Seconds = 60.0
"""Seconds between two requests to replicas while their engines have no prefix cache, because an
update may enable it.
"""


class Gateway:
    """Checks the requests for one model; `Gateway.attempts` runs requests that need a lease.

    Args:
        config: The model's configuration.
        queue: Client of the model's queue.
        calls: Calls to the model's replicas.
        estimates: Estimates of the model's predictor.
        counter: Counts the model's prompt tokens.
        specs: Specifications of applications that were opened at another model.
        outlooks: Returns the outlooks of waiting streams.
        metrics: Counts estimates and dropped calls; None: they are not counted.
        tracer: Traces calls; None: calls are not traced.
    """

    def __init__(
        self,
        config: AppConfig,
        queue: QueueClient,
        calls: ReplicaCalls,
        estimates: Estimates,
        counter: TokenCounter,
        specs: ApplicationSpecCache,
        outlooks: StreamOutlooks,
        metrics: IngressMetrics | None = None,
        tracer: CallTracer | None = None,
    ) -> None:
        self.outlooks = outlooks
        self._config = config
        self._queue = queue
        self._calls = calls
        self._metrics = metrics
        model = config.model
        self._names = model.names
        self._mapping: RequestMapping | None = None
        if model.aliases or model.reasoning_efforts:
            self._mapping = RequestMapping(model.names, model.aliases, model.reasoning_efforts)
        self._schemas = installed_schemas() if config.engine.kind == "vllm" else None
        self._paths: frozenset[str] | None = None
        """Paths that the model's engines serve; None until a replica has reported them."""
        self._counter = counter
        declared = config.engine.declared_context
        self.submitter = Submitter(queue, estimates, counter, declared, specs, metrics)
        self.attempts = Attempts(self.submitter, queue, calls, config.ingress, metrics, tracer)
        """Runs the inferences whose requests were checked."""

    @property
    def max_model_len(self) -> Tokens | None:
        """Context length of the model in tokens: as configured, until a replica reports its own.

        None: unknown.
        """
        return self.submitter.max_model_len

    def note_failed_stream(self, status: int) -> None:
        """Count a stream that failed after its head was sent.

        Args:
            status: HTTP status that the call would have had if it had failed before.
        """
        if self._metrics is not None:
            self._metrics.record_failed_stream(status)

    def standings(self, context: RequestContext) -> tuple[LimitStanding, ...]:
        """Return the rate limits of a call's tenant, as far as this ingress knows them."""
        return self.standings_of(context.tenant) if self._queue.standings else ()

    def standings_of(self, tenant: ClientId) -> tuple[LimitStanding, ...]:
        """Return the rate limits of a tenant, as last sent by the scheduler."""
        return self._queue.standings.of(tenant, get_running_loop().time())

    def parse(self, path: str, body: bytes, fields: dict[str, Any] | None = None) -> InferenceBody:
        """Parse the body of a request for this model; see `protocol.endpoints.parse_body`.

        A body that vLLM's own request models forbid is refused, too.
        """
        if self._mapping is not None:
            fields = read_object(body) if fields is None else fields
            body = self._mapping.map_request(fields, body)
        read = parse_body(path, body, self._names, self.submitter.max_model_len, fields)
        if self._schemas is not None:
            self._schemas.check(path, read.fields)
        return read

    async def counted(self, context: RequestContext, body: InferenceBody) -> InferenceBody:
        """Return the body of a request with the token counts of its prompts."""
        tenant, max_model_len = context.tenant, self.submitter.max_model_len
        return replace(body, size=await self._counter.prompt_size(body, tenant, max_model_len))

    async def learn_context(self) -> None:
        """Query replicas until one reports its context length and its prefix cache's block size.

        vLLM derives the context length or fits it to its memory, so only a started engine has it.
        """
        pause_s = _ASK_AGAIN_S
        while True:
            try:
                self.submitter.max_model_len = await self._calls.context()
                block_size = await self._calls.cache_block()
            except Exception:  # No replica answers, or its release is too old.
                await sleep(pause_s)
                pause_s = min(2 * pause_s, _ASK_AGAIN_MOST_S)
                continue
            self._counter.note_blocks(block_size)
            if block_size:
                return
            await sleep(_ASK_FOR_CACHE_S)

    async def check_served(self, path: str) -> None:
        """Raise an error for a path that the engines do not serve, before the request waits.

        Chat and completion requests skip the lookup until the paths are cached, since almost every
        model serves them. While no replica answers the lookup, the request is not refused: it waits
        for a replica like any other.

        Raises:
            NotServed: If the engine does not serve the path.
        """
        if self._paths is None:
            if path in (CHAT, COMPLETIONS):
                return
            try:
                self._paths = await self._calls.paths()
            except NoReplicaAnswers:
                return
        self.check_path(path)

    def check_path(self, path: str) -> None:
        """Raise an error for a path that the engines are known not to serve.

        Raises:
            NotServed: If the engine does not serve the path.
        """
        if self._paths is not None and path not in self._paths:
            raise NotServed(f"the model {self._config.model.name!r} has no {path}")

    def name_body(self, body: bytes, fields: dict[str, Any]) -> bytes:
        """Return the body of a call that needs no lease, with the model's name filled in.

        Raises:
            UnknownModel: If the body names another model.
        """
        if self._mapping is not None:
            body = self._mapping.map_request(fields, body)
        return name_model(fields, body, self._names)

    async def unscheduled(self, path: str, payload: bytes) -> Answer:
        """Return a replica's answer to a call that needs no lease, such as `/tokenize`.

        Raises:
            NotServed: If the model's engine does not serve the path.
            NoReplicaAnswers: If no replica answers.
        """
        await self.check_served(path)
        return await self._calls.unscheduled(path, payload)
