"""Replay of a workload against an in-memory service, in virtual time."""

import asyncio
from typing import Any

import httpx
import pytest

from justitia_ray.client.load import LoadProgress
from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.sim.replay import Replay, prompt_token_ids, replay_workload
from justitia_ray.sim.results import ApplicationResult, InferenceResult, Lateness
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from tests.harness.simulation.virtual_loop import run_virtually
from tests.unit.sim.fake_service import MODEL, FakeService


def inference_of(
    name: str,
    output_tokens: int = 1,
    *,
    after: tuple[str, ...] = (),
    delay_s: float = 0.0,
    prompt_tokens: int = 4,
) -> WorkloadInference:
    """Return an inference that takes 1 s + 0.5 s per further token."""
    return WorkloadInference(name, prompt_tokens, output_tokens, after, delay_s)


def application_of(
    *inferences: WorkloadInference, name: str = "a", arrived_at_s: float = 0.0
) -> WorkloadApplication:
    return WorkloadApplication(name, "MRS", arrived_at_s, inferences, "t1", 2.0, "a text")


def replay_on(
    fake_server: FakeService, *applications: WorkloadApplication, **options: Any
) -> Replay:
    return run_virtually(
        replay_workload("http://service", applications, network=fake_server.network(), **options)
    )


def times_of(done: Replay) -> dict[str, tuple[float | None, ...]]:
    """Return (submitted, first token, finished) of each inference that was sent."""
    return {
        row.inference_id: (row.submitted_at_s, row.first_token_at_s, row.finished_at_s)
        for row in done.run.inferences
    }


@pytest.fixture
def fake_server() -> FakeService:
    return FakeService()


def test_result_rows_have_the_measured_times(fake_server: FakeService) -> None:
    done = replay_on(
        fake_server,
        application_of(
            inference_of("x", 3),
            inference_of("y", prompt_tokens=6, after=("x",), delay_s=2.0),
            arrived_at_s=5.0,
        ),
    )

    assert [
        ApplicationResult("a", "MRS", "t1", 5.0, 10.0, 5.0, 25.0, 70.0, 7.5, None, "finished")
    ] == done.run.applications
    assert [
        InferenceResult("a", "x", None, 5.0, None, 6.0, 7.0, 4, 3),
        InferenceResult("a", "y", None, 9.0, None, 10.0, 10.0, 6, 1),
    ] == done.run.inferences
    assert () == done.failures


def test_service_receives_the_requests_of_the_workload(fake_server: FakeService) -> None:
    """Without forced lengths the service would run another load than that of the file."""
    replay_on(fake_server, application_of(inference_of("x", 3, prompt_tokens=321)))
    [(_, _, opened)] = fake_server.requests_to("/v1/applications")
    [(_, _, body)] = fake_server.requests_to("/v1/completions")
    [sent] = [one for one in fake_server.raw if one.url.path == "/v1/completions"]

    assert {
        "application_id": "a",
        "application_class": "MRS",
        "tenant": "t1",
        "weight": 2.0,
        "input": "a text",
    } == opened
    assert 321 == len(body.pop("prompt"))
    assert body.pop("cache_salt")
    assert {
        "model": "tiny",
        "max_tokens": 3,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    } == body
    assert "a" == sent.headers["x-justitia-application"]
    assert 1 == len(fake_server.requests_to("/v1/applications/a/close"))


def test_applications_arrive_on_time_on_a_slow_service(fake_server: FakeService) -> None:
    """Arrivals of an open load do not wait for earlier answers."""
    done = replay_on(
        fake_server,
        application_of(inference_of("x", 100), name="slow"),
        application_of(inference_of("y"), name="late", arrived_at_s=2.5),
    )

    assert [0.0, 2.5] == [at for at, _, _ in fake_server.requests_to("/v1/applications")]
    assert [50.5, 1.0] == [a.jct_s for a in done.run.applications]


def test_replay_speed_divides_arrival_times_and_delays(fake_server: FakeService) -> None:
    """At speed 2 an hour of load takes half an hour."""
    done = replay_on(
        fake_server,
        application_of(
            inference_of("x"), inference_of("y", after=("x",), delay_s=3.0), arrived_at_s=10.0
        ),
        speed=2.0,
    )

    assert {"x": (5.0, 6.0, 6.0), "y": (7.5, 8.5, 8.5)} == times_of(done)
    assert (5.0, 3.5) == (done.run.applications[0].arrived_at_s, done.run.applications[0].jct_s)


@pytest.mark.parametrize(
    ("trouble", "error", "first_token_at_s"),
    [
        ("error", "500: broken", None),
        ("cut", "the stream ended before [DONE]", 1.0),
        ("event", "502: the replica was lost", 1.0),
        ("no usage", "200: the stream ended without usage", 1.0),
    ],
)
def test_failed_inference_ends_only_its_successors(
    fake_server: FakeService, trouble: str, error: str, first_token_at_s: float | None
) -> None:
    fake_server.streams = {2: trouble}
    broken = application_of(
        inference_of("x"),
        inference_of("y", 2),
        inference_of("z", after=("x", "y")),
        inference_of("w", after=("z",)),
        inference_of("v", after=("x",)),
    )
    done = replay_on(fake_server, broken, application_of(inference_of("u"), name="b"))

    assert [("a", "y", error)] == [
        (f.application_id, f.inference_id, f.error) for f in done.failures
    ]
    assert {
        "x": (0.0, 1.0, 1.0),
        "y": (0.0, first_token_at_s, None),
        "v": (1.0, 2.0, 2.0),
        "u": (0.0, 1.0, 1.0),
    } == times_of(done)
    assert [("failed", None, None), ("finished", 1.0, 1.0)] == [
        (a.outcome, a.finished_at_s, a.jct_s) for a in done.run.applications
    ]
    assert 1 == done.failed_applications
    assert 1 == len(fake_server.requests_to("/v1/applications/a/close"))


def test_refused_application_sends_no_inference(fake_server: FakeService) -> None:
    """Inferences would open the application again, in the default class and another weight."""
    fake_server.refused = {"a"}
    done = replay_on(fake_server, application_of(inference_of("x")))

    assert [("a", None, "400: no such weight")] == [
        (f.application_id, f.inference_id, f.error) for f in done.failures
    ]
    assert [] == fake_server.requests_to("/v1/completions")
    assert "failed" == done.run.applications[0].outcome
    assert 0.0 == done.run.makespan_s


def test_replayed_inference_without_a_timely_answer_counts_as_failed(
    fake_server: FakeService,
) -> None:
    """One lost answer must not block the results forever."""
    fake_server.streams = {2: "silent"}
    done = replay_on(
        fake_server, application_of(inference_of("x", 2), inference_of("y", 8)), timeout_s=6.0
    )

    assert [("x", "not finished within 6 s (--timeout-s)")] == [
        (f.inference_id, f.error) for f in done.failures
    ]
    assert {"x": (0.0, None, None), "y": (0.0, 1.0, 4.5)} == times_of(done)


def test_replayed_application_has_the_lag_and_finish_tag_of_the_service(
    fake_server: FakeService,
) -> None:
    """The scheduler measures lags and tags in service units."""
    lag = {"kv_token_time": 9, "seconds": 1.5, "bound_kv_token_time": 20, "bound_s": 3.0}
    fake_server.known = {"virtual_finish_time": 8.25, "gps_lag": lag}
    done = replay_on(fake_server, application_of(inference_of("x")))

    assert {"a": Lateness(1.5, 3.0)} == done.run.lateness
    assert 8.25 == done.run.applications[0].virtual_finish_time


def test_replay_records_the_policy_and_memory_of_the_service(fake_server: FakeService) -> None:
    """Only the increase of the totals since the start of the run belongs to the run."""
    fake_server.later = {"kv": {"used_token_s": 40.0, "capacity_token_s": 160.0, "preemptions": 3}}
    done = replay_on(fake_server, application_of(inference_of("x", 3), arrived_at_s=2.0))

    assert "justitia" == done.policy
    assert (0.5, 1, 2.0) == (done.run.kv_utilization, done.run.preemptions, done.run.makespan_s)
    assert {"model": "tiny", "replicas": 2, "settings": {"admission": "peak"}} == done.service


def test_replay_ignores_the_totals_of_a_restarted_scheduler(fake_server: FakeService) -> None:
    """A restarted scheduler counts from zero, so the difference has no meaning."""
    fake_server.later = {"kv": {"used_token_s": 1.0, "capacity_token_s": 4.0, "preemptions": 0}}
    done = replay_on(fake_server, application_of(inference_of("x")))

    assert (None, 0) == (done.run.kv_utilization, done.run.preemptions)


def test_replay_reports_ended_applications_and_foreign_calls(fake_server: FakeService) -> None:
    """Other users of the service change the measurements."""
    progress: list[LoadProgress] = []
    warnings: list[str] = []
    fake_server.status["applications"] = 3
    workload = [application_of(inference_of("x"), name=name) for name in "ab"]
    replay_on(fake_server, *workload, on_progress=progress.append, on_warning=warnings.append)

    assert [LoadProgress(2, 1), LoadProgress(2, 2)] == progress[:2]
    assert [LoadProgress(2, 2, 1), LoadProgress(2, 2, 2)] == progress[2:]
    assert ["3 applications are open on the service already; results mix"] == warnings


def test_replay_stops_if_the_service_is_not_ready(fake_server: FakeService) -> None:
    """The error contains the service's reason."""
    fake_server.ready = (503, {"status": "degraded", "reason": "no replica pulls"})

    with pytest.raises(ConnectionError, match=r"^http://service is not ready: no replica pulls$"):
        replay_on(fake_server, application_of(inference_of("x")))
    assert ["/readyz"] == [path for _, _, path, _ in fake_server.requests]


def test_server_of_another_program_is_recognised(fake_server: FakeService) -> None:
    """A wrong port often belongs to another server."""
    fake_server.ready = (404, {})
    with pytest.raises(ConnectionError, match="not ready: /readyz answered with status 404"):
        replay_on(fake_server, application_of(inference_of("x")))
    fake_server.ready = (200, {})
    fake_server.status = {}
    with pytest.raises(ResponseError, match="http://service does not answer as this service does"):
        replay_on(fake_server, application_of(inference_of("x")))


def test_unreachable_service_is_reported(fake_server: FakeService) -> None:
    def refuse_connection(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(ConnectionError, match=r"^no connection to service: refused$"):
        run_virtually(
            replay_workload("http://service", [], network=httpx.MockTransport(refuse_connection))
        )


def test_service_without_an_answer_times_out() -> None:
    """A port that accepts connections and never answers must not block the command."""

    async def never_answer(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(ConnectionError, match="no answer to /readyz within 15 s"):
        run_virtually(
            replay_workload("http://service", [], network=httpx.MockTransport(never_answer))
        )


@pytest.mark.parametrize(
    ("models", "model", "complaint"),
    [
        ([MODEL], "other", r"--model must be one that http://service serves \(tiny\), got 'other'"),
        ([MODEL, {"id": "b"}], None, r"serves \(tiny, b\), got None"),
        ([], None, r"serves \(none\), got None"),
    ],
)
def test_replayed_model_must_be_served(
    fake_server: FakeService, models: list[dict[str, Any]], model: str | None, complaint: str
) -> None:
    fake_server.models = models

    with pytest.raises(ConfigError, match=complaint):
        replay_on(fake_server, application_of(inference_of("x")), model=model)


def test_replayed_model_is_chosen_among_several(fake_server: FakeService) -> None:
    """Without a known context length, the replicas' memory is the limit.

    Policy and memory are those of its queue, before and after the run.
    """
    fake_server.models = [MODEL, {"id": "org/n"}]
    done = replay_on(fake_server, application_of(inference_of("x")), model="org/n")

    assert "org/n" == done.service["model"]
    assert "org/n" == fake_server.requests_to("/v1/completions")[0][2]["model"]
    assert "org/n" == fake_server.requests_to("/v1/applications")[0][2]["model"]
    asked = [one.url.raw_path for one in fake_server.raw if one.url.path == "/v1/status"]
    assert [b"/v1/status?model=org%2Fn"] * 2 == asked


@pytest.mark.parametrize(
    ("max_model_len", "complaint"),
    [
        (1000, "prompt_tokens \\+ output_tokens = 801 must be at most the KV memory of a replica"),
        (800, "= 801 must be at most the "),
        (600, "application 'a', inference 'x': .* = 601 must be at most the context of tiny, 600"),
    ],
)
def test_inference_that_can_never_run_is_reported_before_the_replay(
    fake_server: FakeService, max_model_len: int, complaint: str
) -> None:
    """Half a replay would only delay a correct one."""
    fake_server.models = [{"id": "tiny", "max_model_len": max_model_len}]
    total = 601 if max_model_len == 600 else 801

    with pytest.raises(ConfigError, match=complaint):
        replay_on(fake_server, application_of(inference_of("x", 1, prompt_tokens=total - 1)))
    assert [] == fake_server.requests_to("/v1/applications")


def test_replayed_prompt_is_repeatable_and_has_exactly_its_tokens() -> None:
    """Token ids keep the exact lengths of the load, which text would not."""
    assert [1, 7, 5000] == [len(prompt_token_ids("a", "0", count)) for count in (1, 7, 5000)]
    assert prompt_token_ids("a", "0", 100) == prompt_token_ids("a", "0", 100)


def test_replay_does_not_hit_the_prefix_cache_of_an_earlier_replay() -> None:
    """Cached prompts would make the second of two compared policies faster."""
    salts = []
    for _ in range(2):
        service = FakeService()
        replay_on(service, application_of(inference_of("x", 1), inference_of("y", 1)))
        salts.append({body["cache_salt"] for _, _, body in service.requests_to("/v1/completions")})

    assert [1, 1] == [len(of_one) for of_one in salts]
    assert salts[0] != salts[1]


def test_replayed_prompts_share_no_prefix() -> None:
    """The prefix cache of vLLM shares blocks of 16 tokens."""
    begins = {
        tuple(prompt_token_ids(application, str(inference), 1000)[:16])
        for application in "abcde"
        for inference in range(100)
    }

    assert 500 == len(begins)
    ids = prompt_token_ids("a", "0", 10_000)
    assert (10, 249) == (min(ids), max(ids))


def test_inference_waits_for_the_last_of_its_predecessors(fake_server: FakeService) -> None:
    """A reduce step needs the results of all map steps.

    x ends at 1 s, y (submitted at 0.5 s, 5 tokens) at 3.5 s; z is submitted then.
    """
    done = replay_on(
        fake_server,
        application_of(
            inference_of("z", after=("x", "y")),
            inference_of("x"),
            inference_of("y", 5, delay_s=0.5),
        ),
    )

    assert {"z": (3.5, 4.5, 4.5), "x": (0.0, 1.0, 1.0), "y": (0.5, 1.5, 3.5)} == times_of(done)
