"""Held prompts: found by the next turn, and given up where memory is short."""

from dataclasses import replace
from pathlib import Path

from justitia_ray.sim.sessions.replica import SessionReplica, TurnSequence
from justitia_ray.sim.sessions.trace import Session, TurnContent
from tests.unit.sim.sessions.made import ENGINE, read_written, session_line, turn_line

_SIZE = ENGINE.block_size


class TurnByTurnReplica:
    """Replica of 400 blocks on which turns run one after the other."""

    def __init__(self) -> None:
        self.replica = SessionReplica(0, ENGINE, "fcfs")
        self.now = 0.0
        self._arrivals = 0

    def add_turn(self, session: Session, place: int = 0) -> TurnSequence:
        turn, self._arrivals = session.turns[place], self._arrivals + 1
        sequence = TurnSequence(
            content=TurnContent(turn, _SIZE),
            arrival=self._arrivals,
            prompt_tokens=turn.prompt_tokens,
            max_tokens=turn.output_tokens,
            path=turn.path,
        )
        self.replica.add(sequence, self.now)
        return sequence

    def run_to_end(self) -> None:
        while self.replica.ends_at is not None:
            self.run_iterations()

    def run_iterations(self) -> None:
        """Finish the current run of iterations."""
        assert self.replica.ends_at is not None
        self.now = self.replica.ends_at
        self.replica.end(self.now)

    def run_and_hold(self, session: Session, rank: float = 0.0) -> TurnSequence:
        """Run the first turn of a session, and keep its prompt in the cache."""
        sequence = self.add_turn(session)
        self.replica.before_plan = lambda *_: self.replica.holds.add(
            session.name, sequence.content, sequence.prompt_tokens, rank
        )
        self.run_to_end()
        self.replica.before_plan = None
        return sequence


def _sessions(tmp_path: Path, *prompts: int, tools: int = 0) -> list[Session]:
    lines = [
        session_line(f"s{k}", turn_line(p, 16), turn_line(p + 160, 1, p // 64 * 64), tools=tools)
        for k, p in enumerate(prompts)
    ]
    return read_written(tmp_path, *lines)


def test_held_prompt_stays_cached_while_other_prompts_use_all_memory(tmp_path: Path) -> None:
    kept, other, last, last_of_all = _sessions(tmp_path, 3_200, 3_000, 3_100, 2_900)
    for is_held, found in ((True, 3_200), (False, 0)):
        engine = TurnByTurnReplica()
        engine.run_and_hold(kept) if is_held else engine.add_turn(kept)
        engine.run_to_end()
        for session in (other, last, last_of_all):
            engine.add_turn(session)
            engine.run_to_end()
        sequence = engine.add_turn(kept, 1)
        engine.run_to_end()

        assert found == sequence.cached_tokens


def test_held_prompt_delays_a_waiting_sequence_until_its_release(tmp_path: Path) -> None:
    kept, small, large = _sessions(tmp_path, 3_200, 320, 3_000)
    engine = TurnByTurnReplica()
    engine.run_and_hold(kept)
    engine.add_turn(with_output(small, 200))
    engine.run_iterations()
    waiting = engine.add_turn(large)
    engine.run_iterations()
    assert waiting in engine.replica.steps.waiting
    released_at = engine.now + 0.5
    assert (engine.replica.ends_at or 0.0) > released_at + 1.0
    engine.replica.release(kept.name, released_at)
    engine.run_iterations()

    assert waiting in engine.replica.steps.running
    assert released_at <= engine.now <= released_at + 0.02


def test_held_prompts_are_released_before_any_preemption(
    tmp_path: Path,
) -> None:
    first, second, long = _sessions(tmp_path, 1_600, 1_600, 2_000)
    engine = TurnByTurnReplica()
    engine.run_and_hold(first, rank=1.0)
    engine.run_and_hold(second, rank=2.0)
    engine.add_turn(with_output(long, 2_000))
    engine.run_to_end()

    assert 0 == engine.replica.steps.preemptions
    assert first.name in engine.replica.holds
    assert second.name not in engine.replica.holds


def test_held_prompts_are_released_if_no_sequence_can_run(tmp_path: Path) -> None:
    kept, large = _sessions(tmp_path, 3_200, 4_000)
    engine = TurnByTurnReplica()
    engine.run_and_hold(kept)
    sequence = engine.add_turn(large)
    engine.run_to_end()

    assert sequence.finished
    assert not engine.replica.holds


def with_output(session: Session, output_tokens: int) -> Session:
    """Return a session whose first turn has another length of output."""
    first = replace(session.turns[0], output_tokens=output_tokens)
    return Session(session.name, (first, *session.turns[1:]))
