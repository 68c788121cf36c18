"""The process that compiles grammars first: vLLM's own checks and compilers, in children to kill.

It imports vLLM and loads the model's tokenizer once, then forks: a fork takes milliseconds, and
one that takes too long or too much memory is killed without any harm to others. Two forks wait for
work; one that was quick takes the next grammar too.

It runs beside an engine's replica and ends with it: its pipe is closed then.
"""

import os
import pickle
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from justitia_ray.units import Seconds

_SPARE = 2
"""Forks that wait for work."""
_GRAMMARS_EACH = 50
"""Grammars that a fork compiles before another takes its place: it keeps some of what it makes."""
_BACKENDS = {
    "xgrammar": ("backend_xgrammar", "XgrammarBackend"),
    "guidance": ("backend_guidance", "GuidanceBackend"),
    "outlines": ("backend_outlines", "OutlinesBackend"),
    "lm-format-enforcer": ("backend_lm_format_enforcer", "LMFormatEnforcerBackend"),
}
"""vLLM's compilers: name, module, class."""
_PAGE = resource.getpagesize()


class Job(NamedTuple):
    """A grammar to compile."""

    number: int
    grammar: bytes
    """vLLM's `StructuredOutputsParams`, pickled."""


class Result(NamedTuple):
    """The end of a job."""

    number: int
    checked: bytes
    """The grammar as vLLM's checks leave it, pickled; empty if it is refused."""
    reason: str
    """Why it is refused; empty if it is not."""
    took_s: Seconds


Judge = Callable[[bytes], bytes]
"""Compiles a grammar, and returns it as the checks leave it; raises what is wrong with it."""


def vllm_judge(config: Any) -> Callable[[], Judge]:
    """Return a function that makes a judge in each fork, given a `VllmConfig`. Takes seconds."""
    from vllm.sampling_params import SamplingParams
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.v1.structured_output.request import get_structured_output_key

    tokenizer = cached_tokenizer_from_config(model_config=config.model_config)
    vocabulary = config.model_config.get_vocab_size()

    def make_backend(name: str) -> Any:
        module, kind = _BACKENDS[name]
        backend = getattr(import_module(f"vllm.v1.structured_output.{module}"), kind)
        return backend(config, tokenizer=tokenizer, vocab_size=vocabulary)

    def make_judge() -> Judge:
        backends = {}
        if config.structured_outputs_config.backend in ("auto", "xgrammar"):
            backends["xgrammar"] = make_backend("xgrammar")

        def judge(raw: bytes) -> bytes:
            params = SamplingParams(structured_outputs=pickle.loads(raw))
            params._validate_structured_outputs(
                config.model_config, config.structured_outputs_config, tokenizer
            )
            checked: Any = params.structured_outputs
            backend = backends.get(checked._backend)
            if backend is None:
                backend = backends[checked._backend] = make_backend(checked._backend)
            backend.compile_grammar(*get_structured_output_key(checked))
            return pickle.dumps(checked)

        return judge

    return make_judge


@dataclass(slots=True)
class _Fork:
    """A forked process and its work."""

    pid: int
    pipe: Connection
    job: Job | None = None
    began_at: Seconds = 0.0
    grammars: int = 0


class Forks:
    """The forks of a worker, and the jobs that they do."""

    def __init__(
        self,
        answers: Connection,
        make_judge: Callable[[], Judge],
        timeout_s: Seconds,
        memory_bytes: int,
    ) -> None:
        """Fork the first ones.

        Args:
            answers: Where jobs come from and results go to.
            make_judge: Makes the judge, once in each fork.
            timeout_s: Longest time for a grammar.
            memory_bytes: Most memory that a fork may take beyond that with which it begins.
        """
        self._answers = answers
        self._make_judge = make_judge
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._forks: dict[Connection, _Fork] = {}
        for _ in range(_SPARE):
            self._fork()

    def serve(self) -> None:
        """Do jobs until the pipe is closed."""
        try:
            while True:
                busy = [fork for fork in self._forks.values() if fork.job is not None]
                ends = [fork.began_at + self._timeout_s for fork in busy]
                left_s = max(0.0, min(ends) - time.monotonic()) if ends else None
                for pipe in wait([self._answers, *self._forks], left_s):
                    assert isinstance(pipe, Connection)
                    if pipe is self._answers:
                        self._begin(Job(*pickle.loads(pipe.recv_bytes())))
                    else:
                        self._end(self._forks[pipe])
                for fork in busy:
                    if fork.job and time.monotonic() >= fork.began_at + self._timeout_s:
                        reason = f"it takes longer than {self._timeout_s:g} s to compile"
                        self._replace(fork, f"{reason} (engine.grammar_timeout_s)")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            for fork in self._forks.values():
                os.kill(fork.pid, signal.SIGKILL)

    def _begin(self, job: Job) -> None:
        idle = next((fork for fork in self._forks.values() if fork.job is None), None)
        fork = idle or self._fork()
        fork.job, fork.began_at = job, time.monotonic()
        fork.grammars += 1
        try:
            fork.pipe.send_bytes(job.grammar)
        except (BrokenPipeError, ConnectionResetError):
            self._replace(fork, "the process that was to compile it has died; try again")

    def _end(self, fork: _Fork) -> None:
        """Pass a fork's result on; one that has died took too much memory, or broke down."""
        try:
            checked, reason = pickle.loads(fork.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            limit = f"{self._memory_bytes / 2**20:g} MiB (engine.grammar_memory_bytes)"
            self._replace(fork, f"its compiler breaks down, or needs more than {limit}")
            return
        self._tell(fork, checked, reason)
        if fork.grammars >= _GRAMMARS_EACH:
            self._replace(fork, "")

    def _tell(self, fork: _Fork, checked: bytes, reason: str) -> None:
        job, fork.job = fork.job, None
        assert job is not None
        took_s = time.monotonic() - fork.began_at
        self._answers.send_bytes(pickle.dumps(tuple(Result(job.number, checked, reason, took_s))))

    def _replace(self, fork: _Fork, reason: str) -> None:
        """Kill a fork, refuse what it works on, and fork another one if few are left."""
        del self._forks[fork.pipe]
        os.kill(fork.pid, signal.SIGKILL)
        os.waitpid(fork.pid, 0)
        fork.pipe.close()
        if fork.job is not None:
            self._tell(fork, b"", reason)
        if len(self._forks) < _SPARE:
            self._fork()

    def _fork(self) -> _Fork:
        here, there = Pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for pipe in (here, self._answers, *self._forks):
                    pipe.close()
                self._judge_grammars(there)
            finally:
                os._exit(0)
        there.close()
        fork = self._forks[here] = _Fork(pid, here)
        return fork

    def _judge_grammars(self, pipe: Connection) -> None:
        """Compile what comes; in the fork."""
        judge = self._make_judge()
        with open("/proc/self/statm", encoding="ascii") as file:
            data_pages = int(file.read().split()[5])
        limit = data_pages * _PAGE + self._memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        while True:
            raw = pipe.recv_bytes()
            # If the worker should die meanwhile.
            signal.setitimer(signal.ITIMER_REAL, 2 * self._timeout_s + 1)
            checked, reason = b"", ""
            try:
                checked = judge(raw)
            except MemoryError:
                os._exit(1)
            except Exception as error:
                reason = str(error) or type(error).__name__
            signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send_bytes(pickle.dumps((checked, reason)))


def run_worker(
    make: Callable[[Any], Callable[[], Judge]],
    config: Any,
    answers: Connection,
    timeout_s: Seconds,
    memory_bytes: int,
) -> None:
    """Be the worker: prepare, then do jobs until the pipe is closed.

    Args:
        make: `vllm_judge`, or another maker of judges.
        config: What it is given.
        answers: See `Forks`.
        timeout_s: See `Forks`.
        memory_bytes: See `Forks`.
    """
    make_judge = make(config)
    answers.send_bytes(b"")
    Forks(answers, make_judge, timeout_s, memory_bytes).serve()
