"""Live part of `scripts/bench_recognition`: nine classes as plain chats, sent to three services."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import ray
from prometheus_client.parser import text_string_to_metric_families

from justitia_ray.client.transport import HttpTransport
from justitia_ray.errors import JustitiaError
from justitia_ray.observability.metrics import RECOGNIZED_TOTAL
from justitia_ray.recognition.rules import CONVERSATION, DEFAULT_RULES
from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import Seconds, Tokens
from scripts.bench import live
from scripts.bench.chat_player import ChatPlayer, Placed
from scripts.bench.recognition import Times, times_of
from scripts.bench.serve_arms import Arm, RunningArms
from scripts.bench.serve_loads import order_of

PLAIN = Arm("plain")
BY_CONVERSATION = Arm("conversation", rules=(*DEFAULT_RULES, CONVERSATION))
HEADER = Arm("header")
ARMS = (PLAIN, BY_CONVERSATION, HEADER)
"""Arms: without headers and recognition, with recognition, and with application headers."""

SPEED = 6.0
"""Factor by which engine iterations and tool times are faster than in the paper."""
CONTEXT: Tokens = 8_192
"""Context length of the model in tokens; no recorded inference is longer."""
FAKE: Mapping[str, float] = {
    "kv_tokens": CONTEXT,
    "max_model_len": CONTEXT,
    "iteration_s": 0.03 / SPEED,
    "prefill_s_per_token": 0.000214 / SPEED,
}
REPLICAS = 2
_GAP_S: Seconds = 1.2
"""Mean seconds between arrivals before the speed-up, as at the paper's triple density."""
_EXPORTED_WITHIN_S: Seconds = 20.0
_POLL_S: Seconds = 0.5


@dataclass(frozen=True, slots=True)
class LiveSize:
    """Number of applications in a live run."""

    mix: Mapping[str, int]
    """Number of applications by class, equal for every seed."""
    sc_samples: int | None = None
    """Number of sampled answers in a vote of class SC; None uses the suite's number."""


FULL, QUICK = LiveSize(live.FULL.mix), LiveSize(live.QUICK.mix)


def draw_chats(size: LiveSize, seed: int, data_dir: Path | None) -> list[WorkloadApplication]:
    """Draw the chats of one seed."""
    count = sum(size.mix.values())
    options = SuiteOptions(
        count=count,
        window_s=_GAP_S * count,
        seed=seed,
        data_dir=data_dir,
        mix=",".join(f"{name}={number}" for name, number in size.mix.items()),
        sc_samples=size.sc_samples,
    )
    return build_suite("nine-class", options)


@dataclass(slots=True)
class LivePlays:
    """Runs of all arms, in the order of seeds."""

    times: dict[str, list[Times]] = field(default_factory=dict)
    placed: dict[str, Placed] = field(default_factory=dict)
    """Numbers of calls assigned to the right and wrong application, by arm."""
    recognised: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of calls of each arm, by the rule by which the service recognised their applications.
    """


async def play_arms(
    running: RunningArms,
    size: LiveSize,
    seeds: Sequence[int],
    data_dir: Path | None,
    say: Callable[[str], None],
) -> LivePlays:
    """Run each seed's load on every arm in changing order, after an uncounted warm-up load.

    Raises:
        JustitiaError: If a call fails, or the service does not tell how calls were recognised.
    """
    found = LivePlays()
    model = running.config.model.name
    for repeat, seed in enumerate((min(seeds) - 1, *seeds), -1):
        load = draw_chats(size, seed, data_dir)
        for arm in order_of(ARMS, max(0, repeat)):
            target = running.targets[arm.name]
            before = await _current_counts(arm.name)
            transport = HttpTransport(f"http://127.0.0.1:{target.port}{target.route_prefix}")
            player = ChatPlayer(
                transport, model, SPEED, has_headers=arm is HEADER, name=f"{arm.name}-{seed}"
            )
            try:
                played = await player.play(load)
            finally:
                await transport.aclose()
            if played.failures:
                raise JustitiaError(
                    f"{arm.name}: {len(played.failures)} failed, one of: {played.failures[0]}"
                )
            times = times_of(played.completed)
            say(f"{arm.name}, seed {seed}: mean {times.mean_s:.1f} s, worst {times.worst_s:.1f} s")
            if repeat < 0:
                continue
            found.times.setdefault(arm.name, []).append(times)
            found.placed.setdefault(arm.name, Placed()).add(played.placed)
            rules = found.recognised.setdefault(arm.name, {})
            for rule, count in (await _new_counts(arm.name, before, played.placed.calls)).items():
                rules[rule] = rules.get(rule, 0) + count
    return found


async def _new_counts(application: str, before: Mapping[str, int], calls: int) -> Mapping[str, int]:
    """Return the number of calls by rule since `before`, after the service's late export."""
    for _ in range(round(_EXPORTED_WITHIN_S / _POLL_S)):
        now = await _current_counts(application)
        counted = {rule: count - before.get(rule, 0) for rule, count in now.items()}
        if sum(counted.values()) >= calls:
            return {rule: count for rule, count in counted.items() if count}
        await asyncio.sleep(_POLL_S)
    raise JustitiaError(
        f"{application}: {RECOGNIZED_TOTAL.name} has {sum(counted.values())} of {calls} calls"
    )


async def _current_counts(application: str) -> dict[str, int]:
    """Return the number of calls that all ingresses have counted, by rule."""
    found: dict[str, int] = {}
    async with httpx.AsyncClient() as http:
        for node in ray.nodes():
            url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            for family in text_string_to_metric_families((await http.get(url)).text):
                for sample in family.samples:
                    is_it = sample.name == RECOGNIZED_TOTAL.exported[-1]
                    if is_it and sample.labels.get("application") == application:
                        rule = sample.labels["recognized_by"]
                        found[rule] = found.get(rule, 0) + round(sample.value)
    return found
