"""The simulator's prefix cache, of one context an application, has bounded errors against vLLM's.

`engine_model`, which `conformance/test_engine_model.py` compares with vLLM's own scheduler, serves
turns of agents at random, whose prompts are the agent's last context and more; `PrefixCache` gets
the same starts and ends. Calls that do not extend their application's last context have no bound:
`PrefixCache` takes every longer prompt for a continuation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

import pytest

from justitia_ray.engine_model.block_pool import BlockPool
from justitia_ray.engine_model.contents import ContentTree, TokenContent
from justitia_ray.engine_model.steps import EngineSequence, StepScheduler
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.kv_memory import PrefixCache, SimulatedSequence
from justitia_ray.sim.results import InferenceResult
from justitia_ray.units import Tokens

_TURNS = 60
_SEEDS = 20


@dataclass
class Agent:
    """Agent whose prompts repeat all of its earlier turns."""

    number: int
    context: list[int] = field(default_factory=list)
    turns: int = 0

    def next_prompt(self, random: Random) -> list[int]:
        """Return the context so far and a new message; no two agents' contexts begin alike."""
        context = self.context or [1000 + self.number]
        return [*context, *(random.randrange(9) for _ in range(random.randint(1, 60)))]


@dataclass
class Turn:
    """Running turn in vLLM's and in the simulated prefix cache."""

    agent: Agent
    prompt: list[int]
    sequence: EngineSequence
    simulated: SimulatedSequence

    @property
    def peak(self) -> Tokens:
        """Largest number of KV tokens that the turn will use."""
        return self.sequence.prompt_tokens + self.sequence.max_tokens


@dataclass(frozen=True)
class Found:
    """Prompt tokens of a turn that each of the two caches has found."""

    prompt_tokens: Tokens
    context_tokens: Tokens
    engine: Tokens
    simulator: Tokens


class BothCaches:
    """Serves turns on the engine model, and tells the simulated prefix cache of them.

    A turn starts when the peaks of all running turns fit, as under `admission: peak`, so that none
    is preempted.
    """

    def __init__(self, kv_tokens: Tokens, block_size: Tokens) -> None:
        self._kv_tokens, self._block_size = kv_tokens, block_size
        self._engine: StepScheduler[EngineSequence] = StepScheduler(
            BlockPool(kv_tokens // block_size), block_size, max_batched_tokens=10**9
        )
        self._tree = ContentTree(block_size)
        self._cache = PrefixCache(
            EngineProfile(kv_tokens, block_size=block_size, prefix_caching=True)
        )
        self._running: list[Turn] = []
        self._made = 0

    def is_busy(self, agent: Agent) -> bool:
        """Return whether a turn of the agent runs."""
        return any(turn.agent is agent for turn in self._running)

    def start(self, agent: Agent, prompt: list[int], output: Tokens) -> Found | None:
        """Start a turn, and return its cached tokens; None if it does not fit."""
        peak = sum(map(self._whole_blocks, (turn.peak for turn in self._running)))
        if peak + self._whole_blocks(len(prompt) + output) > self._kv_tokens:
            return None
        held, context = sum(turn.sequence.tokens for turn in self._running), len(agent.context)
        self._made += 1
        sequence = EngineSequence(
            content=self._tree.content(prompt),
            arrival=self._made,
            prompt_tokens=len(prompt),
            max_tokens=output,
        )
        name = str(self._made)
        row = InferenceResult(str(agent.number), name, 0, 0, 0, None, None, len(prompt), output)
        simulated = SimulatedSequence(
            name,
            name,
            str(agent.number),
            "t",
            len(prompt),
            output,
            row,
            len(prompt),
            agent.turns > 0,
        )
        if simulated.follows:
            self._cache.use_prefix(simulated, self._kv_tokens - held)
        self._running.append(Turn(agent, prompt, sequence, simulated))
        self._engine.add(sequence)
        self.step()
        assert sequence.cached_tokens is not None
        cached = simulated.prompt_tokens - simulated.prefill_tokens
        return Found(simulated.prompt_tokens, context, sequence.cached_tokens, cached)

    def step(self) -> None:
        """Run an iteration; contexts of ended turns become those of their agents."""
        made = self._engine.end(self._engine.plan())
        for turn in [turn for turn in self._running if turn.sequence in made]:
            token = turn.sequence.generated % 7
            assert isinstance(turn.sequence.content, TokenContent)
            turn.sequence.content.append([token])
            turn.prompt.append(token)
            if turn.sequence.finished:
                self._running.remove(turn)
                turn.agent.context, turn.agent.turns = turn.prompt, turn.agent.turns + 1
                turn.simulated.made = turn.sequence.generated
                self._cache.keep_context(turn.simulated)
        assert not self._engine.preemptions

    def _whole_blocks(self, tokens: Tokens) -> Tokens:
        return -(-tokens // self._block_size) * self._block_size


@lru_cache
def _turns(block_size: Tokens, agents: int, kv_tokens: Tokens) -> list[Found]:
    """Serve turns of agents in random order; return what later turns found in the caches."""
    return [
        found
        for seed in range(_SEEDS)
        for found in _turns_of_seed(seed, block_size, agents, kv_tokens)
    ]


def _turns_of_seed(
    seed: int, block_size: Tokens, agents: int, kv_tokens: Tokens
) -> Iterator[Found]:
    random, both = Random(seed), BothCaches(kv_tokens, block_size)
    served = [Agent(number) for number in range(agents)]
    for position in range(_TURNS):
        place = random.randrange(agents)
        if both.is_busy(served[place]):
            both.step()
            continue
        if len(served[place].context) > kv_tokens // 3:
            served[place] = Agent(agents + position)
        agent = served[place]
        found = both.start(agent, agent.next_prompt(random), random.randint(1, 30))
        if found is not None and agent.turns:
            yield found
        for _ in range(random.randrange(40)):
            both.step()


_FITTING, _SHORT = (3, 4000), ((4, 1600), (8, 1600), (12, 1600))
"""Number of concurrent agents, and KV tokens; a context may take a third of the memory."""
with_block_sizes = pytest.mark.parametrize("block_size", [1, 16])


@pytest.mark.slow
@with_block_sizes
@pytest.mark.parametrize(("agents", "kv_tokens"), [_FITTING, *_SHORT])
def test_simulated_cache_hit_exceeds_vllms_cache_hit_by_at_most_a_block(
    agents: int, kv_tokens: Tokens, block_size: Tokens
) -> None:
    """VLLM keeps no KV of the last output token, so its last block may be incomplete.

    A context that is evicted in part is lost as a whole in the simulator.
    """
    for found in _turns(block_size, agents, kv_tokens):
        whole_blocks = found.context_tokens // block_size * block_size
        assert found.simulator in (0, whole_blocks)
        assert found.simulator <= found.engine + block_size


@pytest.mark.slow
@with_block_sizes
def test_simulated_cache_hits_equal_vllms_cache_hits_if_all_contexts_fit(
    block_size: Tokens,
) -> None:
    """Nothing is evicted: both caches find every context, up to its last block."""
    for found in _turns(block_size, *_FITTING):
        assert 0 <= found.simulator - found.engine <= block_size


@pytest.mark.slow
@with_block_sizes
@pytest.mark.parametrize(("agents", "kv_tokens"), _SHORT)
def test_simulated_cache_hits_are_slightly_below_vllms_under_eviction(
    agents: int, kv_tokens: Tokens, block_size: Tokens
) -> None:
    """VLLM keeps parts of evicted contexts, which are 2 to 5 % of the prompt tokens."""
    served = _turns(block_size, agents, kv_tokens)
    prompts = sum(found.prompt_tokens for found in served)
    simulator = sum(found.simulator for found in served) / prompts
    engine = sum(found.engine for found in served) / prompts

    assert any(found.engine < found.context_tokens - block_size for found in served)
    assert engine - 0.06 <= simulator <= engine
