"""Requests that reveal the cost of an iteration, timed on a live service with one replica.

The requests form one application of consecutive stages, so that the load does not depend on the
engine's speed. The stages are batches of different sizes with short prompts (base and cost per
sequence), batches with long prompts (cost of context), and prompts of different lengths, one after
the other, while others decode (cost of prefill).
"""

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace

import httpx

from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.sim.calibration.measured import TimedRequest
from justitia_ray.sim.client_service import served_requests
from justitia_ray.sim.replay import LiveService, replay_workload
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import InferenceId, Tokens

SHARE_OF_KV = 0.8
"""Share of the KV memory that the largest calibration batch fills. Below 1, no request waits."""
BATCHES = (1, 2, 4, 8, 16, 32)
LONG_BATCHES = (1, 4, 8)
SHORT_PROMPT: Tokens = 16
OUTPUT: Tokens = 64
PROBES: tuple[Tokens, ...] = (64, 128, 256, 512, 1024)
"""Prompt lengths whose prefill is measured while other requests decode."""
PROBES_OF_EACH = 8
BACKGROUND = 2
BACKGROUND_OUTPUT: Tokens = 96


async def measure_live(
    url: str, model: str | None = None, *, network: httpx.AsyncBaseTransport | None = None
) -> tuple[list[TimedRequest], Tokens]:
    """Send the calibration requests to a service twice, and measure the second round.

    Args:
        url: URL of the service, which should be idle otherwise.
        model: Model to call; None: the only model of the service.
        network: Replaces the network in tests.

    Returns:
        The requests, and the KV memory that the replica reports.

    Raises:
        ConfigError: If the service has no such model, or more or fewer replicas than one.
        ConnectionError: If the service cannot be reached or is not ready.
        ResponseError: If the service, or a request, failed.
    """
    async with aclosing(LiveService(url, network=network)) as service:
        facts = await service.facts(model)
    replicas = len(facts.status.replicas)
    if replicas != 1:
        raise ConfigError(f"--url must be a service with one replica, {url} has {replicas}")
    room = int(SHARE_OF_KV * facts.kv_tokens)
    longest = min(room, facts.max_model_len or room)
    timed: list[TimedRequest] = []
    for name in ("warm-up", "timed"):
        load = designed_load(name, room, longest)
        outcome = await replay_workload(url, [load], model=facts.model, network=network)
        if outcome.failures:
            raise ResponseError(200, f"a request to {url} failed: {outcome.failures[0].error}")
        timed = [replace(one, client="calibration") for one in served_requests(outcome.run)]
    return timed, facts.kv_tokens


def designed_load(name: str, room: Tokens, longest: Tokens) -> WorkloadApplication:
    """Return the application whose requests are sent to calibrate a profile.

    Args:
        name: Part of the application's id; prompts differ between names.
        room: KV tokens that a stage may hold when it ends.
        longest: Largest sum of prompt and output tokens of one request.
    """
    inferences: list[WorkloadInference] = []
    before: tuple[InferenceId, ...] = ()

    def add(prompt: Tokens, output: Tokens, after: tuple[InferenceId, ...]) -> InferenceId:
        inference_id = str(len(inferences))
        inferences.append(WorkloadInference(inference_id, prompt, output, after))
        return inference_id

    for count, prompt in _calibration_batches(room, longest):
        before = tuple([add(prompt, OUTPUT, before) for _ in range(count)])
    background_output = min(BACKGROUND_OUTPUT, longest - SHORT_PROMPT)
    free = min(room - BACKGROUND * (SHORT_PROMPT + background_output), longest)
    for prompt in PROBES:
        if prompt + 1 > free:
            break
        stage = [add(SHORT_PROMPT, background_output, before) for _ in range(BACKGROUND)]
        last = before
        for _ in range(PROBES_OF_EACH):
            last = (add(prompt, 1, last),)
        before = (*stage, *last)
    return WorkloadApplication(
        application_id=f"calibration-{name}",
        application_class="calibration",
        arrived_at_s=0.0,
        inferences=tuple(inferences),
    )


def _calibration_batches(room: Tokens, longest: Tokens) -> Iterator[tuple[int, Tokens]]:
    """Yield the number and the prompt length of the parallel requests of each calibration batch."""
    for count in BATCHES:
        if count * (SHORT_PROMPT + OUTPUT) <= room:
            yield count, SHORT_PROMPT
    for count in LONG_BATCHES:
        prompt = min(longest, room // count) - OUTPUT
        if prompt > SHORT_PROMPT:
            yield count, prompt
