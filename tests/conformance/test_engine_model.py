"""The model of vLLM's scheduler equals vLLM's own, iteration by iteration, on random calls.

No engine is started: vLLM's `Scheduler` plans, and a function of the context replaces the model.
"""

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from justitia_ray.engine_model.block_pool import BlockPool, Holding
from justitia_ray.engine_model.contents import ContentTree, TokenContent
from justitia_ray.engine_model.steps import EngineSequence, StepScheduler

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning"),
]

_SEEDS_OF_A_TEST = 50
_CALLS = 100
_LONGEST = 400


@dataclass(frozen=True)
class EngineSetup:
    block_size: int
    blocks: int
    max_num_seqs: int
    max_batched_tokens: int
    policy: Any
    caching: bool

    @staticmethod
    def drawn(random: Random) -> "EngineSetup":
        block_size = random.choice((1, 4, 16))
        return EngineSetup(
            block_size,
            random.randint(2, 20) * max(2, 64 // block_size),
            random.choice((1, 3, 8, 40)),
            random.choice((7, 30, 64, 500)),
            random.choice(("priority", "fcfs")),
            random.random() < 0.85,
        )


@dataclass
class CallInBoth:
    """Call that runs both in vLLM's scheduler and in the project's model of it."""

    prompt: list[int]
    max_tokens: int
    priority: int
    salt: str | None
    reads_cache: bool
    name: str
    made: list[int] = field(default_factory=list)
    sequence: EngineSequence | None = None
    request: Any = None

    def next_token(self) -> int:
        """Return the next output token of a fake language model: a hash of the context."""
        return zlib.crc32(repr([*self.prompt, *self.made]).encode()) % 3


class BothSchedulers:
    """Runs the same calls in vLLM's scheduler and in the model of it, and compares their state."""

    def __init__(self, setup: EngineSetup, make_vllm: Callable[[EngineSetup], Any]) -> None:
        self.setup = setup
        self.theirs = make_vllm(setup)
        self.ours: StepScheduler[EngineSequence] = StepScheduler(
            BlockPool(setup.blocks, caching=setup.caching),
            setup.block_size,
            setup.max_num_seqs,
            setup.max_batched_tokens,
            setup.policy,
        )
        self.tree = ContentTree(setup.block_size)
        self.open: dict[str, CallInBoth] = {}
        self.ended: list[CallInBoth] = []
        self.cached_tokens = 0
        self._made = 0

    def add(self, call: CallInBoth) -> None:
        from vllm import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        init_none_hash(sha256)
        self._made += 1
        call.request = Request(
            call.name,
            call.prompt,
            SamplingParams(
                max_tokens=call.max_tokens,
                ignore_eos=True,
                prompt_logprobs=None if call.reads_cache else 0,
            ),
            None,
            arrival_time=float(self._made),
            cache_salt=call.salt,
            priority=call.priority,
            block_hasher=get_request_block_hasher(self.setup.block_size, sha256)
            if self.setup.caching
            else None,
        )
        call.sequence = EngineSequence(
            content=self.tree.content(call.prompt, call.salt),
            arrival=self._made,
            prompt_tokens=len(call.prompt),
            max_tokens=call.max_tokens,
            priority=call.priority,
            reads_cache=call.reads_cache,
        )
        self.open[call.name] = call
        self.theirs.add_request(call.request)
        self.ours.add(call.sequence)

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        call = self.open.pop(name)
        assert call.sequence is not None
        self.theirs.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.ours.remove(call.sequence)
        self.check()

    def step(self, abort: str | None = None) -> None:
        """Run one engine iteration on both schedulers; some calls may be aborted during it."""
        from vllm.v1.outputs import ModelRunnerOutput

        planned = self.theirs.schedule()
        step = self.ours.plan()
        names = {id(call.sequence): call.name for call in self.open.values()}
        by_name = {names[id(sequence)]: tokens for sequence, tokens in step.items()}
        assert list(planned.num_scheduled_tokens.items()) == list(by_name.items())
        self.check()
        if abort is not None:
            self.abort(abort)
        sampled: list[list[int]] = []
        for name in by_name:
            call = self.open.get(name)
            if call is None or call.request.num_computed_tokens < call.request.num_tokens:
                sampled.append([])
                continue
            token = call.next_token()
            sampled.append([token])
            call.made.append(token)
            assert call.sequence is not None
            content = call.sequence.content
            assert isinstance(content, TokenContent)
            content.append([token])
        order = list(by_name)
        self.theirs.update_from_output(
            planned,
            ModelRunnerOutput(
                req_ids=order,
                req_id_to_index={name: i for i, name in enumerate(order)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        made = self.ours.end(step)
        assert [names[id(one)] for one in made] == [
            name for name, tokens in zip(order, sampled, strict=True) if tokens
        ]
        for name in order:
            if name in self.open and self.open[name].request.is_finished():
                call = self.open.pop(name)
                assert call.sequence is not None
                assert call.sequence.finished
                self.ended.append(call)
        self.check()

    def check(self) -> None:
        pool = self.theirs.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == self.ours.pool.free_blocks
        names = {id(call.sequence): call.name for call in self.open.values()}
        assert [r.request_id for r in self.theirs.running] == [
            names[id(one)] for one in self.ours.running
        ]
        assert [r.request_id for r in self.theirs.waiting] == [
            names[id(one)] for one in self.ours.waiting
        ]
        for call in self.open.values():
            sequence, request = call.sequence, call.request
            assert sequence is not None
            assert request.num_preemptions == sequence.preemptions
            assert request.num_output_tokens == sequence.generated
            if request.prefill_stats is not None and sequence.cached_tokens is not None:
                assert request.prefill_stats.num_cached_tokens == sequence.cached_tokens
                self.cached_tokens += sequence.cached_tokens
        cached = sum(block.block_hash is not None for block in pool.blocks)
        assert cached == self.ours.pool.cached_blocks


def drawn_prompt(random: Random, both: BothSchedulers, stems: list[list[int]]) -> list[int]:
    """Draw a prompt that is new, repeats another prompt, or extends another call's tokens."""
    room = both.setup.blocks * both.setup.block_size
    calls = [*both.open.values(), *both.ended[-8:]]
    kind = random.random()
    if kind < 0.45 and calls:
        other = random.choice(calls)
        base = [*other.prompt, *other.made]
        if random.random() < 0.3:
            base = base[: random.randint(1, len(base))]
        elif random.random() < 0.3:
            base = list(other.prompt)
    else:
        base = list(random.choice(stems))
    more = random.choice((0, 0, random.randint(1, 10), random.randint(1, 100)))
    prompt = (base + [random.randrange(3) for _ in range(more)])[: min(room, _LONGEST) - 12]
    return prompt or [1]


def compare_run(seed: int, make_vllm: Callable[[EngineSetup], Any]) -> BothSchedulers:
    """Draw random calls for both schedulers, and compare the schedulers after each iteration."""
    random = Random(seed)
    both = BothSchedulers(EngineSetup.drawn(random), make_vllm)
    stems = [[random.randrange(3) for _ in range(random.randint(1, 120))] for _ in range(3)]
    pressure = random.choice((0.15, 0.4, 0.7))
    for position in range(_CALLS):
        draw = random.random()
        if draw < pressure and len(both.open) < 30:
            both.add(
                CallInBoth(
                    drawn_prompt(random, both, stems),
                    random.randint(1, 12),
                    random.randrange(3),
                    random.choice((None, None, None, "salt")),
                    random.random() < 0.9,
                    f"call-{position}",
                )
            )
        else:
            within = random.random() < 0.08 and both.open
            both.step(abort=random.choice(list(both.open)) if within else None)
        if random.random() < 0.03 and both.open:
            both.abort(random.choice(list(both.open)))
    while both.open:
        both.step()
    return both


@pytest.fixture(scope="module")
def make_vllm(model_path: str) -> Callable[[EngineSetup], Any]:
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    args = EngineArgs(model=model_path, dtype="float32", max_model_len=_LONGEST, block_size=16)
    config = args.create_engine_config()

    def make_scheduler(setup: EngineSetup) -> Any:
        scheduler, cache = config.scheduler_config, config.cache_config
        scheduler.max_num_seqs = setup.max_num_seqs
        scheduler.max_num_batched_tokens = setup.max_batched_tokens
        scheduler.max_num_scheduled_tokens = setup.max_batched_tokens
        scheduler.policy = setup.policy
        cache.enable_prefix_caching = setup.caching
        cache.num_gpu_blocks = setup.blocks + 1  # plus vLLM's null block
        spec = FullAttentionSpec(
            block_size=setup.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        return Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=setup.blocks + 1,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=setup.block_size,
            log_stats=True,
        )

    return make_scheduler


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4 * _SEEDS_OF_A_TEST, _SEEDS_OF_A_TEST))
def test_engine_model_schedules_and_caches_like_vllm(
    first: int, make_vllm: Callable[[EngineSetup], Any]
) -> None:
    """Results of the fake engine and of the simulator are only valid if the model equals vLLM."""
    played = [compare_run(seed, make_vllm) for seed in range(first, first + _SEEDS_OF_A_TEST)]

    assert sum(both.cached_tokens for both in played) > 0
    assert sum(both.ours.preemptions for both in played) > 0


class FreesFromTheFirst(BlockPool):
    """Mutant of the block pool that frees a sequence's blocks from first to last."""

    def free(self, holding: Holding) -> None:
        holding.pieces.reverse()
        super().free(holding)


class EvictsTheLatest(BlockPool):
    """Mutant of the block pool that evicts the most recently freed block first."""

    def allocate(self, holding: Holding, blocks: int) -> None:
        """Allocate from a reversed list of free blocks."""
        self._turn_free_runs()
        super().allocate(holding, blocks)
        self._turn_free_runs()

    def _turn_free_runs(self) -> None:
        ends = run = self._free
        while True:
            run.before, run.after = run.after, run.before
            run = run.before
            if run is ends:
                return


class FindsWholePrompts(StepScheduler[EngineSequence]):
    """Mutant of the scheduler that does not compute the last token of a cached prompt again."""

    def _start_sequence(self, sequence: EngineSequence) -> bool:
        sequence.prompt_tokens += 1
        started = super()._start_sequence(sequence)
        sequence.prompt_tokens -= 1
        return started


class PreemptsTheFirst(StepScheduler[EngineSequence]):
    """Mutant of the scheduler that preempts the sequence that was admitted first."""

    def _choose_victim(self) -> EngineSequence:
        return self.running[0]


class CachesForLogprobs(StepScheduler[EngineSequence]):
    """Mutant of the scheduler that reads the prefix cache even for prompt log probabilities."""

    def add(self, sequence: EngineSequence) -> None:
        """Add a call whose prompt may be read from the prefix cache."""
        sequence.reads_cache = True
        super().add(sequence)


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        ("BlockPool", FreesFromTheFirst),
        ("BlockPool", EvictsTheLatest),
        ("StepScheduler", FindsWholePrompts),
        ("StepScheduler", PreemptsTheFirst),
        ("StepScheduler", CachesForLogprobs),
    ],
)
def test_each_mutant_of_the_engine_model_is_detected(
    part: str,
    broken: type,
    make_vllm: Callable[[EngineSetup], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], part, broken)

    def compare_all() -> None:
        for seed in range(_SEEDS_OF_A_TEST):
            compare_run(seed, make_vllm)

    with pytest.raises(AssertionError):
        compare_all()
