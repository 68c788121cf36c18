"""The parts of scripts/bench_recognition: agents as plain chats, and their results."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from justitia_ray.client.transport import Response, StreamedResponse
from justitia_ray.sim.recognition import RecognitionCounts
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from scripts.bench.chat_player import ChatPlayer, Placed, PlayedChats
from scripts.bench.recognition import REFERENCE, SimulatedLoad, Times, times_of, ways
from scripts.bench.recognition_cost import BODY_BYTES, cost_table, long_chat, measure_cost
from scripts.bench.recognition_live import BY_CONVERSATION, HEADER, PLAIN, LivePlays
from scripts.bench.recognition_report import live_tables, simulated_tables
from tests.harness.simulation.virtual_loop import run_virtually

REPEATING = WorkloadInference("1", 40, 2, ("0",), 6.0)
"""Agent whose second prompt is long enough to contain its first turn."""


class EchoService:
    """Fake service that answers every chat at once with as many words as the call allows.

    It identifies an application by its first question.
    """

    def __init__(self, *, fails: bool = False, knows: str = "") -> None:
        self.asked: list[tuple[str, Mapping[str, str], dict[str, Any]]] = []
        """Path, headers and body of every call."""
        self._fails = fails
        self._knows = knows
        """Application that every call is assigned to; if empty, each first question starts one."""

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        fields = json.loads(body or b"{}")
        self.asked.append((path, headers, fields))
        if self._fails:
            return Response(400, {}, b"{}")
        named = headers.get("x-justitia-application", self._knows)
        if not named and "messages" in fields:
            named = fields["messages"][1]["content"]
        message = {"role": "assistant", "content": "well " * fields.get("max_tokens", 1)}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "length"}]}
        return Response(200, {"x-justitia-application": named}, json.dumps(answer).encode())

    def stream(self, *_: Any) -> StreamedResponse:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Do nothing: the fake has no connection."""


def two_turn_agent(second: WorkloadInference, name: str = "a") -> WorkloadApplication:
    return WorkloadApplication(name, "FV", 3.0, (WorkloadInference("0", 20, 2), second))


def play_chats(
    service: EchoService, *load: WorkloadApplication, has_headers: bool = False
) -> PlayedChats:
    """Play the load at three times its speed, in virtual time."""
    player = ChatPlayer(service, "m", 3.0, has_headers=has_headers, name="play")  # type: ignore[arg-type]
    return run_virtually(player.play(load))


def test_second_prompt_of_a_session_contains_its_first_turn() -> None:
    service = EchoService()
    play_chats(service, two_turn_agent(REPEATING))
    [(path, headers, first), (_, _, second)] = service.asked
    *again, answer, question = second["messages"]

    assert "/v1/chat/completions" == path
    assert not any(name.startswith("x-justitia") for name in headers)
    assert first["messages"] == again
    assert {"role": "assistant", "content": "well well "} == answer
    sizes = [len(m["content"].split()) + 4 for m in (*again, answer, question)]
    assert [5, 15, 6, 14] == sizes


def test_application_of_each_call_is_read_from_its_response() -> None:
    short = WorkloadInference("1", 21, 2, ("0",))
    found = play_chats(
        EchoService(),
        two_turn_agent(REPEATING),
        two_turn_agent(REPEATING, "b"),
        two_turn_agent(short, "c"),
    )

    assert Placed(calls=6, following=3, repeating=2, right=2, wrong=0) == found.placed


def test_call_assigned_to_another_conversation_counts_as_wrong() -> None:
    found = play_chats(
        EchoService(knows="all"), two_turn_agent(REPEATING), two_turn_agent(REPEATING, "b")
    )

    assert (1, 2) == (found.placed.right, found.placed.wrong)


def test_completion_time_counts_from_the_arrival_at_the_play_speed() -> None:
    [(name, jct_s)] = play_chats(EchoService(), two_turn_agent(REPEATING)).completed

    assert "FV" == name
    assert pytest.approx(2.0) == jct_s


def test_benchmark_names_its_application_in_headers_and_closes_it() -> None:
    service = EchoService()
    play_chats(service, two_turn_agent(REPEATING), has_headers=True)
    *calls, (path, _, _) = service.asked

    assert "/v1/applications/play-a/close" == path
    assert {("play-a", "FV")} == {
        (headers["x-justitia-application"], headers["x-justitia-class"]) for _, headers, _ in calls
    }


def test_failed_application_is_reported_and_ends_no_other_application() -> None:
    found = play_chats(
        EchoService(fails=True), two_turn_agent(REPEATING), two_turn_agent(REPEATING, "b")
    )

    assert () == found.completed
    assert ["a", "b"] == sorted(failure[0] for failure in found.failures)


def test_completion_times_are_reported_for_all_applications_and_each_class() -> None:
    found = times_of([("CC", 1.0), ("FV", 2.0), ("CC", 3.0)])

    assert Times(2.0, found.p90_s, 3.0, {"CC": 2.0, "FV": 2.0}) == found
    assert pytest.approx(2.8) == found.p90_s


def test_recognition_modes_are_compared_with_the_first_mode() -> None:
    found = ways(("learned",))

    assert REFERENCE == found[0]
    assert len(set(found)) == len(found) == 6


def test_ratios_compare_runs_of_the_same_seed() -> None:
    times = {
        str(REFERENCE): [times_of([("CC", 1.0)]), times_of([("CC", 10.0)])],
        "other": [times_of([("CC", 2.0)]), times_of([("CC", 40.0)])],
    }
    load = SimulatedLoad("paper", 3.0, times, [{"CC": RecognitionCounts(4, 2, 1)}])

    assert "3.00 (2.00 to 4.00)" in simulated_tables(load)
    assert ["all", "4", "2", "1", "25%", "50%"] in [
        line.split() for line in simulated_tables(load).splitlines()
    ]


def test_every_arm_of_the_benchmark_is_reported() -> None:
    arms = (PLAIN.name, BY_CONVERSATION.name, HEADER.name)
    plays = LivePlays(
        {arm: [times_of([("CC", 1.0)])] for arm in arms},
        {arm: Placed(9, 5, 3, 2, 1) for arm in arms},
        {arm: {"none": 4, "header": 5} for arm in arms},
    )
    lines = [line.split() for line in live_tables(plays).splitlines()]

    for arm in arms:
        assert [arm, "9", "5", "3", "2", "1", "header", "5,", "none", "4"] in lines


def test_recognition_time_is_measured_for_every_kind_of_call() -> None:
    costs = measure_cost(repeats=2, calls=1)
    table = cost_table(costs)

    assert 4 == len(costs)
    assert all(name in table and 2 == len(values) for name, values in costs.items())
    assert BODY_BYTES <= len(json.dumps(long_chat(1))) < 1.1 * BODY_BYTES
