"""A batch of equal iterations equals the iterations one by one, and runs equal single blocks."""

from collections.abc import Iterator
from random import Random

import pytest

from justitia_ray.engine_model.block_pool import BlockPool
from justitia_ray.engine_model.contents import Span
from justitia_ray.engine_model.steps import EnginePolicy, EngineSequence, StepScheduler

_BLOCK = 4


class SharedStartContent:
    """Tokens of a turn: first those of a text that all turns share, then a unique output."""

    def __init__(self, path: tuple[tuple[str, int], ...], name: str, *, single: bool) -> None:
        self.path = path
        self._name = name
        self._single = single

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        """Yield chains of cache blocks of this content; with `single`, a chain a block."""
        for chain, end in (*self.path, (self._name, stop)):
            if start < (last := min(end, stop)):
                blocks = range(start, last)
                if self._single:
                    yield from (Span((chain, at), at, at + 1) for at in blocks)
                else:
                    yield Span(chain, start, last)
                start = last


class RandomTurns:
    """Submits random turns to the engine model, with or without jumps over equal iterations."""

    def __init__(self, seed: int, *, jumps: bool, single: bool) -> None:
        self.random = Random(seed)
        blocks, seats = self.random.randint(60, 200), self.random.choice((2, 5, 20))
        policy: EnginePolicy = self.random.choice(("priority", "fcfs"))
        self.steps: StepScheduler[EngineSequence] = StepScheduler(
            BlockPool(blocks), _BLOCK, seats, self.random.choice((10, 60)), policy
        )
        self.jumps, self.single = jumps, single
        self.seen: list[tuple[int, ...]] = []
        self.iteration = 0
        self._paths: list[tuple[tuple[str, int], ...]] = [(("system", 10),)]

    def play(self) -> list[tuple[int, ...]]:
        """Submit turns at random iterations, and record the visible state at the end of each."""
        comes_at = 0
        for arrival in range(60):
            comes_at += self.random.randint(0, 12)
            self._advance_to(comes_at)
            self.steps.add(self._random_turn(arrival))
        self._advance_to(10**9)
        return self.seen

    def _random_turn(self, arrival: int) -> EngineSequence:
        path = self.random.choice(self._paths)
        chain, end = path[-1]
        if self.random.random() < 0.3:  # From a random block on, the context differs.
            cut = self.random.randint(1, end)
            path = (*((name, min(at, cut)) for name, at in path), (f"from {arrival}", cut))
            chain, end = f"from {arrival}", cut
        longer = min(40, end + self.random.randint(0, 8))
        path = (*(piece for piece in path if piece[0] != chain), (chain, longer))
        self._paths.append(path)
        return EngineSequence(
            content=SharedStartContent(path, f"output {arrival}", single=self.single),
            arrival=arrival,
            prompt_tokens=longer * _BLOCK + self.random.randint(0, _BLOCK - 1),
            max_tokens=self.random.randint(1, 30),
            priority=self.random.randrange(3),
        )

    def _advance_to(self, iteration: int) -> None:
        while self.iteration < iteration and (step := self.steps.plan()):
            most = self.steps.count_equal_steps(step) if self.jumps else 1
            count = min(most, iteration - self.iteration)
            self.iteration += count
            for sequence in self.steps.end(step, count):
                if sequence.finished:
                    pool = self.steps.pool
                    self.seen.append(
                        (
                            self.iteration,
                            sequence.arrival,
                            sequence.cached_tokens or 0,
                            sequence.preemptions,
                            pool.free_blocks,
                            pool.cached_blocks,
                        )
                    )
        if iteration < 10**9:
            self.iteration = iteration


@pytest.mark.parametrize("seed", range(40))
def test_skipping_equal_engine_iterations_does_not_change_the_result(seed: int) -> None:
    """Without jumps over equal iterations, the simulation of real sessions would take hours."""
    plain = RandomTurns(seed, jumps=False, single=True).play()

    assert 60 == len(plain)
    assert any(cached for _, _, cached, *_ in plain)
    assert plain == RandomTurns(seed, jumps=True, single=True).play()
    assert plain == RandomTurns(seed, jumps=False, single=False).play()
    assert plain == RandomTurns(seed, jumps=True, single=False).play()
