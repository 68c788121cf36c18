"""Applications of a workload as sessions, under every scheduler of sessions."""

from dataclasses import replace

import pytest

from justitia_ray.core.prefixes import Prefix, read_prefixes
from justitia_ray.errors import ConfigError
from justitia_ray.sim.engine_profile import load_profile
from justitia_ray.sim.sessions.applications import sessions_of
from justitia_ray.sim.sessions.arm import TurnCall
from justitia_ray.sim.sessions.arms import APPLICATION_ARMS, ArmOptions
from justitia_ray.sim.sessions.play import SessionResult, SessionSettings, play_sessions
from justitia_ray.sim.sessions.profiles import LongContextProfile
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.rivals.concur import ConcurArm
from justitia_ray.sim.sessions.rivals.mori import MoriArm
from justitia_ray.sim.sessions.rivals.programs import ProgramArm, ProgramContext
from justitia_ray.sim.sessions.rivals.thunder_agent import ThunderAgentArm
from justitia_ray.sim.sessions.trace import Session, TurnContent
from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from tests.unit.sim.sessions.made import ENGINE

each_arm = pytest.mark.parametrize("arm", APPLICATION_ARMS)
each_setting = pytest.mark.parametrize(
    ("arm", "options"),
    [(name, options) for name, kind in APPLICATION_ARMS.items() for options in kind.grid],
)

_A10G = LongContextProfile.of_engine(load_profile("a10g-llama2-7b"), "a10g-llama2-7b")


def _application(
    name: str, kind: str, *inferences: WorkloadInference, at: float = 0.0
) -> WorkloadApplication:
    return WorkloadApplication(name, kind, at, inferences)


def _check(name: str = "a", at: float = 0.0) -> WorkloadApplication:
    """Return two calls at once, and after a tool of 5 s a call on the results of both."""
    return _application(
        name,
        "KBQAV",
        WorkloadInference("0", 160, 11),
        WorkloadInference("1", 160, 21),
        WorkloadInference("2", 320, 1, ("0", "1"), 5.0),
        at=at,
    )


def _play(
    arm: str,
    sessions: list[Session],
    options: ArmOptions = (),
    engine: LongContextProfile = ENGINE,
    replicas: int = 1,
) -> SessionResult:
    return play_sessions(sessions, SessionSettings(arm, engine, replicas, None, 7, options))


def test_turns_of_a_loop_continue_their_prompts() -> None:
    turns = [WorkloadInference(str(k), 100 + k, 5, (str(k - 1),)[:k], 0.2) for k in range(3)]
    (session,) = sessions_of([_application("a", "ALFWI", *turns, at=3.0)], 16)

    assert ("ALFWI", 3.0) == (session.kind, session.begins_at_s)
    assert 1 == len({turn.path[0][0] for turn in session.turns})
    assert [0, 100, 101] == [turn.continued_tokens for turn in session.turns]
    assert [True, True, False] == [turn.calls_tool for turn in session.turns]
    assert (0, 1, 2) == session.stages


def test_samples_of_one_prompt_share_it_and_other_calls_do_not() -> None:
    calls = [WorkloadInference(str(k), prompt, 5) for k, prompt in enumerate((100, 100, 90))]
    sample, query = sessions_of(
        [_application("a", "SC", *calls), _application("b", "EV", *calls)], 16
    )

    first, second, other = (turn.path[0][0] for turn in sample.turns)
    assert first is second
    assert first is not other
    assert 3 == len({turn.path[0][0] for turn in query.turns})
    (prefix,) = read_prefixes(sample.turns[0].prefixes, 100)
    assert Prefix(96, prefix.digest) == prefix
    assert sample.turns[0].prefixes == sample.turns[1].prefixes
    assert b"" == sample.turns[2].prefixes == query.turns[0].prefixes


def test_calls_must_come_after_those_that_they_wait_for() -> None:
    calls = WorkloadInference("0", 9, 5, ("1",)), WorkloadInference("1", 9, 5)
    with pytest.raises(ConfigError, match=r"'a'.*'0' comes before one"):
        sessions_of([_application("a", "EV", *calls)], 16)


@each_arm
def test_calls_run_in_parallel_and_wait_for_each_other(arm: str) -> None:
    """The second call is computed beside the first; after both and 5 s of tool the third runs."""
    (session,) = sessions_of([_check(at=2.0)], 16)
    (row,) = _play(arm, [session]).sessions

    first_s = 0.01 + 0.016
    second_s = 0.01 + 161e-6 + 0.016
    both_s = sum(0.01 + 1e-6 * (162 + k + 161 + k) for k in range(9))
    one_s = sum(0.01 + 1e-6 * (170 + k) for k in range(11))
    last_s = 0.01 + 0.032
    parallel_s = first_s + second_s + both_s + one_s
    assert parallel_s + 5.0 + last_s == pytest.approx(row.completion_s)
    assert 2.0 == row.began_at_s
    assert (0, 0, 1) == session.stages


@each_setting
def test_all_calls_are_played_with_little_memory(arm: str, options: ArmOptions) -> None:
    applications = [_check(f"a{k}", at=0.02 * k) for k in range(12)]
    turns = [WorkloadInference(str(k), 300 + 20 * k, 9, (str(k - 1),)[:k], 0.1) for k in range(5)]
    applications += [_application(f"b{k}", "ALFWI", *turns, at=0.05 * k) for k in range(6)]
    samples = [WorkloadInference(str(k), 200, 30) for k in range(8)]
    applications += [_application(f"c{k}", "SC", *samples, at=0.1 * k) for k in range(4)]
    sessions = sessions_of(applications, 16)
    small = replace(ENGINE, kv_tokens=1_280)
    result = _play(arm, sessions, options, small, replicas=2)

    assert (22, 36 + 30 + 32) == (len(result.sessions), result.turns)
    assert result == _play(arm, sessions, options, small, replicas=2)


@each_arm
def test_turn_that_does_not_fit_is_refused(arm: str) -> None:
    sessions = sessions_of(
        [_check(), _application("b", "EV", WorkloadInference("0", 7_000, 1))], 16
    )
    with pytest.raises(ConfigError, match="does not fit"):
        _play(arm, sessions)


@pytest.mark.parametrize("kind", [ThunderAgentArm, MoriArm])
@pytest.mark.parametrize(("context", "tokens"), [("sum", 320), ("longest", 160)])
def test_context_of_a_program_with_parallel_turns(
    kind: type[ThunderAgentArm | MoriArm], context: ProgramContext, tokens: int
) -> None:
    """The program acts when its last turn has ended, and keeps its place until then."""
    replica = SessionReplica(0, ENGINE, "fcfs")
    arm: ProgramArm = kind([replica], [], context=context)
    (session,) = sessions_of([_check()], 16)
    first, second, _ = calls = _calls(session)
    arm.open(session, 0.0)
    started = [*arm.submit(first, 0.0), *arm.submit(second, 0.0)]

    program = arm.programs["a"]
    assert [first, second] == [start.call for start in started]
    assert tokens == program.tokens
    program.is_marked = True
    arm.finish(replica, [first], 1.0)
    assert (160, True, replica) == (program.tokens, program.is_running, program.replica)
    assert [] == list(arm.submit(calls[2], 1.0))
    arm.finish(replica, [second], 2.0)
    assert (181, False, None) == (program.tokens, program.is_running, program.replica)
    assert [calls[2]] == [start.call for start in arm.wake(5.0)]


def _calls(session: Session) -> list[TurnCall]:
    return [
        TurnCall(session, place, TurnContent(turn, ENGINE.block_size))
        for place, turn in enumerate(session.turns)
    ]


def test_parallel_turns_of_a_paused_agent_start_together() -> None:
    replica = SessionReplica(0, ENGINE, "fcfs")
    arm = ConcurArm([replica], [], start=1.0)
    active, waiting = sessions_of([_check("a"), _check("b")], 16)
    for session in (active, waiting):
        arm.open(session, 0.0)
    first = _calls(active)
    second = _calls(waiting)[:2]
    started = [start.call for call in first[:2] for start in arm.submit(call, 0.0)]
    assert first[:2] == started
    assert [] == [start for call in second for start in arm.submit(call, 0.0)]

    assert second == [start.call for start in arm.close(active, 1.0)]


_FIGURES = {
    "justitia": ("35.913", "0.704"),
    "justitia-class-mean": ("37.285", "0.719"),
    "justitia-no-working-set": ("52.495", "0.340"),
    "pinned": ("59.166", "0.305"),
    "lmetric": ("59.166", "0.305"),
    "cache-ttl": ("39.214", "0.745"),
    "thunder-agent": ("47.147", "0.570"),
    "concur": ("39.198", "0.757"),
    "mori": ("42.215", "0.745"),
    "gittins": ("57.692", "0.268"),
    "vtc": ("58.234", "0.259"),
}
"""Mean completion in seconds and share of cached prompt tokens of each arm with its defaults."""


@each_arm
def test_small_load_of_nine_classes(arm: str) -> None:
    """Pinned figures: a change of them changes the table of the rivals in the results."""
    load = build_suite("nine-class", SuiteOptions(count=20, window_s=12.0, seed=101))
    result = _play(arm, sessions_of(load, 16), engine=_A10G)

    mean_s = sum(row.completion_s for row in result.sessions) / len(result.sessions)
    cached = result.cached_tokens / result.prompt_tokens
    assert _FIGURES[arm] == (f"{mean_s:.3f}", f"{cached:.3f}")
