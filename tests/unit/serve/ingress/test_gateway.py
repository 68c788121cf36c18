"""What the gateway submits to the scheduler: class, stage, predicted length and later stages."""

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from justitia_ray.access.identity import Identity, Scope
from justitia_ray.config import AppConfig
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.core.stages import ExpectedStage, StageServed
from justitia_ray.core.tenants import Period, Quota, TenantNode, TenantTree, Unit
from justitia_ray.errors import (
    EngineError,
    NoReplicaAnswers,
    NotServed,
    RequestError,
    TooManyApplications,
    UnknownModel,
)
from justitia_ray.observability.part_metrics import IngressMetrics
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.observation import Sample
from justitia_ray.predictor.stages import CHARGE_FACTOR, StageTable
from justitia_ray.protocol.engine import Answer
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES
from justitia_ray.protocol.inference_body import PromptSize
from justitia_ray.protocol.pooling_bodies import EMBEDDINGS
from justitia_ray.serve.ingress import gateway
from justitia_ray.serve.ingress.door import ANYBODY
from justitia_ray.serve.ingress.gateway import Gateway
from justitia_ray.serve.ingress.pending_inferences import PendingInference, PendingInferences
from justitia_ray.serve.ingress.prefix_names import PrefixNames
from justitia_ray.serve.ingress.queue_client import OpenedApplication
from justitia_ray.serve.ingress.request_context import RequestContext, read_context
from justitia_ray.serve.ingress.standings import TenantStandings
from justitia_ray.serve.ingress.submission import ApplicationSpec, ApplicationSpecCache
from justitia_ray.serve.ingress.waiting_streams import StreamOutlooks
from justitia_ray.serve.transport.handshake import Keyring
from tests.unit.observability.recording_backend import export_once, new_measures


@dataclass
class FakeSession:
    """Fake session of a queue client with the scheduler of epoch 1."""

    ingress_id: str = "i"
    epoch: int = 1


@dataclass
class FakeQueueClient:
    """Fake queue client that stores submissions and grants none of them."""

    session: FakeSession = field(default_factory=FakeSession)
    pending: PendingInferences = field(default_factory=PendingInferences)
    items: list[InferenceSubmitted] = field(default_factory=list)
    standings: TenantStandings = field(default_factory=TenantStandings)

    async def open_application(self, arrival: ApplicationArrived) -> OpenedApplication:
        known = self.pending.applications.setdefault(arrival.application_id, arrival)
        return OpenedApplication(known, 1.0, is_new=known is arrival)

    def submit_inference(
        self, item: InferenceSubmitted, opening: ApplicationArrived | None, *, is_last: bool
    ) -> PendingInference:
        if opening is not None:
            self.pending.applications[opening.application_id] = opening
        self.items.append(item)
        self.pending.note_submitted(item)
        return PendingInference(item, 0.0, opening, is_last)

    async def next_grant(self, inference: PendingInference) -> Any:
        raise EngineError("no replica here")

    def note_answered(self, inference: PendingInference) -> None:
        self.pending.note_answered(inference)

    def cancel_inference(self, inference: PendingInference) -> None:
        pass


def context(headers: dict[str, str]) -> RequestContext:
    """Return the request context for these headers; the default tenant is `t`."""
    named = {"x-justitia-tenant": "t"} | headers
    return read_context(ANYBODY, [(k.encode(), v.encode()) for k, v in named.items()])


class FakeEstimates:
    """Fake predictor that estimates the mean cost of a class, from costs that the test adds."""

    def __init__(self) -> None:
        self.classes = ClassMeanPredictor()
        self.stages = StageTable()
        self.inputs = self
        self.remembered: dict[str, object] = {}

    async def summarise(self, text: str) -> object:
        return f"seen: {text}"

    async def estimate_application(
        self, name: str, tokens: int, most: int | None, summary: object
    ) -> Estimate:
        return self.classes.estimate(name, tokens, most)

    def keep_input(self, application_id: str, summary: object) -> None:
        self.remembered[application_id] = summary


async def _no_outlooks(application_ids: tuple[str, ...]) -> dict[str, Any]:
    return {}


def unknown_outlooks() -> StreamOutlooks:
    """Return no positions: the fake scheduler knows none of the waiting streams."""
    return StreamOutlooks(_no_outlooks, 1000.0)


class FakeCounter:
    """Fake token counter that finds equal prompts, of ten tokens each, in every body."""

    def __init__(self, prompts: int = 1) -> None:
        self._prompts = prompts
        self.names = PrefixNames("tenant", Keyring())

    async def prompt_size(self, body: Any, tenant: str, most: Any) -> PromptSize:
        copies = body.n if self.names.shares(body) else 1
        return PromptSize(self._prompts, 10 * self._prompts, 10, copies=copies)

    async def text_tokens(self, text: str, tenant: str) -> int:
        return 10

    def note_blocks(self, block_size: int) -> None:
        self.names.block_size = block_size


@dataclass
class RecordingReplicas:
    """Fake replicas that answer on given paths and record the requests."""

    served: frozenset[str] | None
    """Paths that the replicas answer; None if no replica exists."""
    asked_paths: int = 0
    contexts: list[int | Exception] = field(default_factory=list)
    """Successive context lengths that a replica reports; errors are raised."""
    cache_blocks: list[int] = field(default_factory=lambda: [16])
    """Successive block sizes that a replica reports; the last one repeats."""
    asked: list[tuple[str, Any]] = field(default_factory=list)

    async def paths(self) -> frozenset[str]:
        self.asked_paths += 1
        if self.served is None:
            raise NoReplicaAnswers("none")
        return self.served

    async def context(self) -> int:
        match self.contexts.pop(0):
            case Exception() as error:
                raise error
            case tokens:
                return tokens

    async def cache_block(self) -> int:
        return self.cache_blocks.pop(0) if len(self.cache_blocks) > 1 else self.cache_blocks[0]

    async def unscheduled(self, path: str, body: bytes) -> Answer:
        self.asked.append((path, json.loads(body)))
        return 200, {}, b"{}"


_CONFIG = AppConfig.parse({"model": {"name": "m", "path": "none"}, "engine": {"kind": "fake"}})


class GatewayRig:
    """Gateway with fake dependencies and replicas that serve the given paths."""

    def __init__(self, *served: str, prompts: int = 1) -> None:
        self.client, self.estimates = FakeQueueClient(), FakeEstimates()
        self.replicas = RecordingReplicas(frozenset(served))
        specs = ApplicationSpecCache(600.0, 10)
        self.measures = new_measures("ingress")
        self.metrics = IngressMetrics(self.measures)
        counter = FakeCounter(prompts)
        calls: Any = (self.client, self.replicas, self.estimates, counter)
        parts: Any = (*calls, specs, unknown_outlooks(), self.metrics)
        self.gateway = Gateway(_CONFIG, *parts)

    async def open_application(self, application_class: str, application_id: str) -> None:
        spec = ApplicationSpec(application_class, "input", "t", None, application_id)
        await self.gateway.submitter.open_application(spec)

    async def submit(self, headers: dict[str, str], **fields: Any) -> InferenceSubmitted:
        """Submit one completion and return the event that the scheduler receives."""
        body = {"prompt": "text", "max_tokens": 1000, **fields}
        return await self.submit_body(COMPLETIONS, headers, body)

    async def submit_body(
        self, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> InferenceSubmitted:
        """Submit one inference and return the event that the scheduler receives."""
        parsed = self.gateway.parse(path, json.dumps(body).encode())
        with pytest.raises(EngineError, match="no replica here"):
            await self.gateway.attempts.answer(path, context(headers), parsed)
        return self.client.items[-1]

    def opened_by_source(self) -> dict[str, float]:
        """Return the number of opened applications by the source of their estimate."""
        told = export_once(self.measures).counts
        return {key[1]: n for key, n in told.items() if key[0] == "predictions_total" and n}


@pytest.fixture
def gateway_rig() -> GatewayRig:
    return GatewayRig("/tokenize", MESSAGES)


_IN_A = {"x-justitia-application": "a", "x-justitia-class": "EV"}


async def test_inference_of_an_open_application_has_its_class(gateway_rig: GatewayRig) -> None:
    """An opening names the class; inferences name only the application."""
    gateway_rig.estimates.stages.observe_stages("EV", [StageServed(1, 1, 10, 40, 1000)])
    await gateway_rig.open_application("EV", "a")
    item = await gateway_rig.submit({"x-justitia-application": "a"})

    assert 40 == item.predicted_output_tokens


async def test_submission_contains_estimates_of_its_stage_and_later_stages(
    gateway_rig: GatewayRig,
) -> None:
    """The second inference follows an answer, so it carries the needs of later stages."""
    gateway_rig.estimates.stages.observe_stages(
        "EV", [StageServed(1, 1, 10, 4, 50), StageServed(1, 1, 10, 40, 1_000_000)]
    )
    first = await gateway_rig.submit(_IN_A)
    sibling = await gateway_rig.submit(_IN_A)
    gateway_rig.client.pending.note_answered(PendingInference(first, 0.0))
    second = await gateway_rig.submit(_IN_A)

    assert [0, 0, 1] == [item.stage for item in (first, sibling, second)]
    assert first.predicted_output_tokens < second.predicted_output_tokens
    assert CHARGE_FACTOR * 1_000_000 == second.remaining_kv_token_time


async def test_application_opened_again_keeps_its_class_and_input(gateway_rig: GatewayRig) -> None:
    """A sub-agent or a retry may open the application without its input."""
    submitter = gateway_rig.gateway.submitter
    first, _ = await submitter.open_application(ApplicationSpec("EV", "text", "t", None, "a"))
    again, _ = await submitter.open_application(ApplicationSpec("CC", "", "t", 7.0, "a"))

    assert first is again
    assert {"t|a": "seen: text"} == gateway_rig.estimates.remembered


async def test_estimates_of_later_stages_are_sent_when_a_stage_begins(
    gateway_rig: GatewayRig,
) -> None:
    """Half of the applications in the second stage reach a third; a second call adds nothing.

    The first stage has two inferences of 10 + 2·4 tokens, the second 10 + 2·8, the third 10 + 2·16.
    """
    map_stage, reduce_stage = (
        StageServed(2, 2, 20, 8, 100, 5, 1.5),
        StageServed(1, 1, 10, 8, 116, 8),
    )
    rarely = StageServed(1, 1, 10, 16, 296, 16, 0.0)
    for stages in ([map_stage, reduce_stage], [map_stage, reduce_stage, rarely], [map_stage]):
        gateway_rig.estimates.stages.observe_stages("EV", stages)
    items = [await gateway_rig.submit(_IN_A) for _ in range(2)]
    gateway_rig.client.pending.note_answered(PendingInference(items[0], 0.0))
    items += [await gateway_rig.submit(_IN_A) for _ in range(2)]

    first, second = ExpectedStage(2, 36, 100, 5, 1.5), ExpectedStage(1, 26, 116, 8, 0)
    opened = gateway_rig.client.pending.applications["t|a"]
    assert (first, second) == opened.expected_stages
    later = (second, ExpectedStage(1, 42, 296, 16, 0))
    assert [(), (), later, ()] == [item.expected_stages for item in items]


async def test_opening_an_application_sends_estimates_of_later_stages(
    gateway_rig: GatewayRig,
) -> None:
    """Nothing is known about the later stages of an unknown class."""
    gateway_rig.estimates.stages.observe_stages("EV", [StageServed(1, 1, 10, 4, 50, 4, 0.0)])
    for name in ("EV", "unknown"):
        await gateway_rig.open_application(name, name)
    opened = gateway_rig.client.pending.applications

    assert (ExpectedStage(1, 18, 50, 4, 0),) == opened["t|EV"].expected_stages
    assert () == opened["t|unknown"].expected_stages


async def test_cost_of_an_unknown_class_is_estimated_from_its_submissions(
    gateway_rig: GatewayRig,
) -> None:
    """Each of two inferences reserves max_tokens, of which 256 are expected."""
    await gateway_rig.submit(_IN_A)
    item = await gateway_rig.submit(_IN_A)

    assert CHARGE_FACTOR * 2 * (10 * 256 + 256 * 257 // 2) == item.remaining_kv_token_time
    assert 1000 == item.predicted_output_tokens


@pytest.mark.parametrize(("tenant", "weight"), [("acme/x", 9.0), ("acme/y", 2.0), ("acme", 2.0)])
async def test_subtenant_named_by_a_call_determines_the_weight(
    gateway_rig: GatewayRig, tenant: str, weight: float
) -> None:
    """A tenant without configuration has the weight of its nearest configured ancestor."""
    acme = Identity("acme", frozenset({Scope.INFER}), "key:0")
    submitter = gateway_rig.gateway.submitter
    submitter.tenant_weights = {"acme": 2.0, "acme/x": 9.0}
    headers = {"x-justitia-tenant": tenant, "x-justitia-application": "a"}
    body = gateway_rig.gateway.parse(COMPLETIONS, b'{"prompt": "text"}')
    context = read_context(acme, [(k.encode(), v.encode()) for k, v in headers.items()])
    await submitter.submit_inference(context, body)
    opened = gateway_rig.client.pending.applications[f"{tenant}|a"]

    assert (tenant, weight) == (opened.tenant, opened.weight)


@pytest.mark.parametrize(
    ("said", "is_retry"), [(None, None), ("0", False), ("2", True), ("x", None), ("-1", None)]
)
async def test_repeated_call_is_submitted_as_a_retry(
    gateway_rig: GatewayRig, said: str | None, is_retry: bool | None
) -> None:
    headers = {} if said is None else {"x-stainless-retry-count": said}
    item = await gateway_rig.submit({**_IN_A, **headers})

    assert is_retry == item.is_retry == gateway_rig.client.pending.applications["t|a"].is_retry


async def test_final_inference_closes_its_application(gateway_rig: GatewayRig) -> None:
    final = replace(context({"x-justitia-application": "a"}), is_final=True)
    body = gateway_rig.gateway.parse(COMPLETIONS, b'{"prompt": "text"}')
    submit = gateway_rig.gateway.submitter.submit_inference

    assert not (await submit(replace(final, is_final=False), body)).is_last
    assert (await submit(final, body)).is_last


async def test_recognition_rule_and_idle_time_are_sent_with_the_application(
    gateway_rig: GatewayRig,
) -> None:
    """The rule is counted per inference and shown with the application."""
    begun = replace(
        context({}),
        application_id="conversation/1",
        recognized_by="conversation",
        begins_conversation=True,
        idle_s=60.0,
    )
    body = gateway_rig.gateway.parse(COMPLETIONS, b'{"prompt": "text"}')
    submit = gateway_rig.gateway.submitter.submit_inference
    await submit(begun, body)
    await submit(replace(begun, begins_conversation=False), body)
    await gateway_rig.submit({})
    opened = gateway_rig.client.pending.applications["t|conversation/1"]
    counts = export_once(gateway_rig.measures).counts
    rules = {key[-1]: n for key, n in counts.items() if key[0] == "recognized_total" and n}

    assert ("conversation", 60.0) == (opened.recognized_by, opened.idle_s)
    assert {"new_conversation": 1, "conversation": 1, "none": 1} == rules


async def test_charged_cost_includes_a_margin_over_the_prediction(gateway_rig: GatewayRig) -> None:
    """The prediction itself is reported, and compared with the true cost at the end."""
    arrival, _ = await gateway_rig.gateway.submitter.open_application(
        ApplicationSpec("EV", "input", "t")
    )

    # Expected: one inference of ten prompt tokens and the prior's 256 output tokens.
    assert 10 * 256 + 256 * 257 // 2 == arrival.predicted_kv_token_time
    assert CHARGE_FACTOR * arrival.predicted_kv_token_time == arrival.charge_kv_token_time


async def test_every_choice_of_a_completion_is_charged_separately(gateway_rig: GatewayRig) -> None:
    """Three choices are three sequences of 10 + 256 tokens."""
    item = await gateway_rig.submit(_IN_A, n=3)

    assert (3, 30, 3000) == (item.choices, item.prompt_tokens, item.predicted_output_tokens)
    assert CHARGE_FACTOR * 3 * (10 * 256 + 256 * 257 // 2) == item.remaining_kv_token_time


@pytest.mark.parametrize(
    ("quantile", "reserved"), [(None, 1_000), (1.0, 1_000), (0.9, 150)], ids=str
)
async def test_quotas_reserve_max_tokens_or_a_quantile_of_the_length(
    gateway_rig: GatewayRig, quantile: float | None, reserved: int
) -> None:
    """A length is the square root of a cost: costs from 1 to 9 give lengths from 1 to 3."""
    gateway_rig.estimates.stages.observe_stages("EV", [StageServed(1, 1, 10, 50, 1000)])
    gateway_rig.estimates.classes.estimate = _predict_ninefold  # type: ignore[method-assign]
    if quantile is not None:
        quota = Quota(Unit.TOKENS, 10**6, Period.DAY, reserve_quantile=quantile)
        tree = TenantTree({"t": TenantNode(quotas=(quota,))})
        gateway_rig.gateway.submitter.tenants = tree
    item = await gateway_rig.submit(_IN_A)

    assert (50, reserved, 0) == (
        item.predicted_output_tokens,
        item.reserve_output_tokens,
        item.least_output_tokens,
    )


def _predict_ninefold(
    application_class: str, input_tokens: int, max_tokens: int | None
) -> Estimate:
    return Estimate(100, 10, 900, 50, "class")


async def test_output_length_forced_by_a_replay_replaces_the_prediction(
    gateway_rig: GatewayRig,
) -> None:
    """A replay fixes the length of each answer, so the stage's mean does not count."""
    gateway_rig.estimates.stages.observe_stages("EV", [StageServed(1, 1, 10, 4, 50)])
    item = await gateway_rig.submit(_IN_A, max_tokens=100, ignore_eos=True)

    assert 100 == item.predicted_output_tokens
    assert CHARGE_FACTOR * (10 * 100 + 5050) == item.remaining_kv_token_time
    assert (100, 100) == (item.reserve_output_tokens, item.least_output_tokens)


async def test_prompt_features_are_kept_until_their_application_ends(
    gateway_rig: GatewayRig,
) -> None:
    """Only the text of the first inference is the application's input."""
    await gateway_rig.open_application("EV", "b")
    await gateway_rig.submit(_IN_A)
    await gateway_rig.submit({**_IN_A, "x-justitia-application": "b"})

    assert {"t|b": "seen: input", "t|a": "seen: text"} == gateway_rig.estimates.remembered


async def test_estimate_is_counted_when_its_application_is_opened(gateway_rig: GatewayRig) -> None:
    """Inferences, and a second opening with another estimate, do not count."""
    gateway_rig.estimates.classes.observe_cost("EV", Sample(1_000, 1, 10, None))
    for name in ("EV", "unknown"):
        await gateway_rig.open_application(name, "a")
    await gateway_rig.submit(_IN_A)

    assert {"class": 1} == gateway_rig.opened_by_source()


async def test_estimate_of_a_refused_opening_is_not_counted(
    gateway_rig: GatewayRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller retries, and the retry gets a new estimate."""

    async def refuse_opening(arrival: ApplicationArrived) -> float:
        raise TooManyApplications("no room", 5.0)

    monkeypatch.setattr(gateway_rig.client, "open_application", refuse_opening)
    with pytest.raises(TooManyApplications):
        await gateway_rig.open_application("EV", "a")
    gateway_rig.metrics.record_opening("t|a")

    told = export_once(gateway_rig.measures).counts
    assert not any(count for key, count in told.items() if key[0] == "predictions_total")
    assert 1 == told["dropped_calls_total", "too_many_applications", "too_many_applications"]


async def test_call_that_ends_with_an_error_counts_as_one_dropped_call(
    gateway_rig: GatewayRig,
) -> None:
    await gateway_rig.submit(_IN_A)

    assert [("engine_error", "engine")] == [
        key[1:]
        for key, count in export_once(gateway_rig.measures).counts.items()
        if key[0] == "dropped_calls_total" and count == 1
    ]


async def test_estimate_of_an_application_opened_by_a_call_is_counted_at_its_lease(
    gateway_rig: GatewayRig,
) -> None:
    """Two first inferences may each carry an estimate, and each may still be refused."""
    await gateway_rig.submit(_IN_A)
    gateway_rig.client.pending.applications.clear()
    await gateway_rig.submit(_IN_A)
    before = gateway_rig.opened_by_source()
    for _ in range(2):
        gateway_rig.metrics.record_opening("t|a")

    assert ({}, {"prior": 1}) == (before, gateway_rig.opened_by_source())


def test_queue_position_is_forgotten_when_its_application_ends() -> None:
    """Positions take memory only while their application is open."""
    pending = PendingInferences()
    arrival = ApplicationArrived("a", "EV", "t", 1.0, 1.0, "i")
    pending.applications["a"] = arrival
    item = InferenceSubmitted("q", "a", "0", "i", 1, 1, 1, stage=0)
    pending.note_submitted(item)
    pending.note_answered(PendingInference(item, 0.0))

    assert (1, 1) == pending.next_stage("a")

    pending.forget_application("a")
    pending.note_answered(PendingInference(item, 0.0))
    pending.note_submitted(item)

    assert (0, 1) == pending.next_stage("a")


async def test_embedding_inputs_are_charged_as_one_output_token_each() -> None:
    """Three inputs of ten tokens are three sequences of one lease."""
    item = await GatewayRig(prompts=3).submit_body(EMBEDDINGS, {}, {"input": ["a", "b", "c"]})

    sizes = (item.prompt_tokens, item.choices, item.predicted_output_tokens)
    assert (30, 3, 3, 3) == (*sizes, item.max_output_tokens)


async def test_call_of_the_messages_api_is_queued_as_an_inference(gateway_rig: GatewayRig) -> None:
    """The Messages API has its own length field, which bounds the output."""
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}
    item = await gateway_rig.submit_body(MESSAGES, {}, body)

    assert 9 == item.max_output_tokens
    assert 1 <= item.predicted_output_tokens <= 9


async def test_path_that_the_model_does_not_serve_is_refused_before_the_queue(
    gateway_rig: GatewayRig,
) -> None:
    """The paths that replicas serve are requested once.

    A 404 must not wait in the queue for minutes.
    """
    for _ in range(2):
        await gateway_rig.gateway.check_served(MESSAGES)
        with pytest.raises(NotServed, match="the model 'm' has no /v1/embeddings"):
            await gateway_rig.gateway.check_served(EMBEDDINGS)
    assert 1 == gateway_rig.replicas.asked_paths


async def test_calls_to_any_endpoint_wait_until_the_first_replica_starts(
    gateway_rig: GatewayRig,
) -> None:
    """Calls wait while the first replica is still starting."""
    gateway_rig.replicas.served, later = None, gateway_rig.replicas.served
    await gateway_rig.gateway.check_served(EMBEDDINGS)
    gateway_rig.replicas.served = later

    with pytest.raises(NotServed):
        await gateway_rig.gateway.check_served(EMBEDDINGS)


async def test_chat_calls_do_not_wait_for_the_list_of_served_paths(gateway_rig: GatewayRig) -> None:
    """Nearly all calls are chats; a model without chat refuses them once its paths are known."""
    await gateway_rig.gateway.check_served(CHAT)
    gateway_rig.gateway.check_path(EMBEDDINGS)
    assert 0 == gateway_rig.replicas.asked_paths

    await gateway_rig.gateway.check_served(MESSAGES)
    with pytest.raises(NotServed):
        await gateway_rig.gateway.check_served(CHAT)
    with pytest.raises(NotServed):
        gateway_rig.gateway.check_path(EMBEDDINGS)


async def test_context_length_is_read_from_a_started_engine(
    gateway_rig: GatewayRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM may derive the length, so a declared one may be missing or too large."""
    monkeypatch.setattr(gateway, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(gateway, "_ASK_FOR_CACHE_S", 0.0)
    gateway_rig.replicas.cache_blocks = [
        0,
        16,
    ]  # The first answer comes from a replica before the update.
    declared = gateway_rig.gateway.max_model_len
    older = AttributeError("a replica of an earlier release cannot tell it")
    gateway_rig.replicas.contexts = [NoReplicaAnswers("none"), older, 256, 512]
    before = await gateway_rig.submit({}, max_tokens=510, n=2)
    await gateway_rig.gateway.learn_context()
    item = await gateway_rig.submit({}, max_tokens=510, n=2)

    assert (4_096, 512) == (declared, gateway_rig.gateway.max_model_len)
    assert 2 * 502 == item.max_output_tokens
    # A replica has reported that its engine has a prefix cache.
    assert (1, 2) == (before.copies, item.copies)


async def send_unscheduled(gateway_rig: GatewayRig, path: str, body: bytes) -> Answer:
    return await gateway_rig.gateway.unscheduled(
        path, gateway_rig.gateway.name_body(body, json.loads(body))
    )


async def test_unscheduled_call_is_sent_with_the_models_name(
    gateway_rig: GatewayRig,
) -> None:
    """Counting tokens needs no lease; the ingress refuses a wrong model name."""
    answer = await send_unscheduled(gateway_rig, "/tokenize", b'{"prompt": "a"}')

    assert (200, {}, b"{}") == answer
    assert [("/tokenize", {"prompt": "a", "model": "m"})] == gateway_rig.replicas.asked
    for path, body, error in (
        ("/tokenize", b'{"prompt": "a", "model": "other"}', UnknownModel),
        ("/detokenize", b'{"tokens": [1]}', NotServed),
    ):
        with pytest.raises(error):
            await send_unscheduled(gateway_rig, path, body)


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("vllm", pytest.raises(RequestError, match=r"tools is \[\]")), ("fake", nullcontext())],
)
def test_ingress_refuses_the_requests_that_vllm_would_refuse(
    kind: str, verdict: AbstractContextManager[Any]
) -> None:
    """The fake engine reads no tools, so the ingress checks names and efforts."""
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "x"}]}
    model = {"name": "m", "path": "none", "aliases": ["gpt-*"], "reasoning_efforts": {"max": "low"}}
    calls: Any = (FakeQueueClient(), None, FakeEstimates(), FakeCounter(1))
    parts: Any = (*calls, None, unknown_outlooks())
    config = AppConfig.parse({"model": model, "engine": {"kind": kind}})
    gateway = Gateway(config, *parts)
    read = gateway.parse(CHAT, json.dumps(body | {"reasoning_effort": "max"}).encode())

    assert ("m", "low") == (read.fields["model"], json.loads(read.payload)["reasoning_effort"])
    with verdict:
        gateway.parse(CHAT, json.dumps(body | {"tools": []}).encode())
