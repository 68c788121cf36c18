"""What the recorder writes down of agents' calls, on a service in memory and a clock by hand."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress

from justitia_ray.bench.live_recorder import Recorder
from justitia_ray.client import JustitiaClient, Response, StreamedResponse
from justitia_ray.errors import ResponseError
from justitia_ray.sim.results import Lateness


class Service:
    """Takes 2 s an inference, by a clock that it moves itself; `broken` prompts fail."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.classes: list[str] = []

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Answer as the ingress would."""
        fields = json.loads(body) if body else {}
        if path == "/v1/models":
            return _answer({"data": [{"id": "tiny"}]})
        if path == "/v1/applications":
            self.classes.append(fields["application_class"])
            self.now_s += 0.5
            return _answer(
                {
                    "application_id": "a/1",
                    "predicted_kv_token_time": 777.0,
                    "virtual_finish_time": None,
                }
            )
        if path == "/v1/chat/completions":
            self.classes.append(headers["x-justitia-class"])
            self.now_s += 2.0
            if fields["messages"][0]["content"] == "broken":
                return Response(500, {}, b"{}")
            usage = {"prompt_tokens": 30, "completion_tokens": 4}
            choices = [{"index": 0, "message": {"content": "yes"}}]
            head = {
                "x-justitia-replica": "r7",
                "x-justitia-waited-s": "0.7500",
                "x-justitia-ran-s": "1.0000",
                "x-justitia-leased-s": "1.1250",
            }
            return Response(200, head, _body({"choices": choices, "usage": usage}))
        if method == "GET":
            return _answer({"gps_lag": {"seconds": -1.5, "bound_s": 4.0}})
        return _answer({})

    def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Refuse: agents do not stream."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Do nothing."""


def _body(value: object) -> bytes:
    return json.dumps(value).encode()


def _answer(value: object) -> Response:
    return Response(200, {}, _body(value))


def recorded(*prompts: str) -> tuple[Service, Recorder]:
    """Return a service and what was recorded of one application with these prompts."""
    service = Service()
    recorder = Recorder(service, ".run-3", clock=lambda: service.now_s)

    async def go() -> None:
        async with (
            JustitiaClient(recorder) as client,
            client.application("MRS", input="text") as app,
        ):
            for prompt in prompts:
                with suppress(ResponseError):
                    await app.chat(prompt, max_tokens=4)

    asyncio.run(go())
    return service, recorder


def test_service_sees_the_class_of_the_run_everywhere() -> None:
    """The predictor must not mix runs, also when an ingress opens an application anew."""
    service, _ = recorded("one")

    assert ["MRS.run-3", "MRS.run-3"] == service.classes


def test_inference_is_recorded_with_its_instants_sizes_replica_and_wait() -> None:
    """Each of them goes into the profile or into the simulated load."""
    _, recorder = recorded("one", "two")

    first, second = recorder.applications["a/1"].inferences
    assert (0.5, 2.5) == (first.submitted_at_s, first.finished_at_s)
    assert (2.5, 4.5) == (second.submitted_at_s, second.finished_at_s)
    assert (30, 4, "r7", 0.75, 1.0, 1.125) == (
        first.prompt_tokens,
        first.output_tokens,
        first.replica,
        first.waited_s,
        first.ran_s,
        first.leased_s,
    )


def test_prediction_and_lateness_are_recorded() -> None:
    """The simulator takes the costs that the service predicted; the lag goes beside its bound."""
    _, recorder = recorded("one")

    opened = recorder.applications["a/1"]
    assert 777.0 == opened.predicted_kv_token_time
    assert Lateness(-1.5, 4.0) == opened.lateness


def test_failed_call_is_not_recorded() -> None:
    """It has no sizes; its application is left out as not whole."""
    _, recorder = recorded("one", "broken")

    assert 1 == len(recorder.applications["a/1"].inferences)
