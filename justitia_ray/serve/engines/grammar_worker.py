"""The process that compiles grammars first: vLLM's own checks and compilers, in children to kill.

It imports vLLM and loads the model's tokenizer once, then forks: a fork takes milliseconds, and
one that takes too long or too much memory is killed without any harm to others. Two forks wait for
work; one that was quick takes the next grammar too.

It runs beside an engine's replica and ends with it: its pipe is closed then. What goes through the
pipes holds texts of callers: it is MessagePack and JSON, for a pickle may run code as it is read.
"""

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import msgspec

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
_NO_MEMORY = 1
"""Exit code of a fork that has reached its bound."""
_BY_ITS_GRAMMAR = frozenset(
    {
        _NO_MEMORY,
        *(-number for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)),
        -signal.SIGILL,
    }
)
"""How a fork ends by the grammar that it compiles; any other end, as by SIGKILL, is an accident."""
_HAS_DIED = "the fork that was at this grammar has died; try again"
_PAUSE_S: Seconds = 0.5
"""Pause after a fork that could not be made; it doubles with each that follows."""
_LONGEST_PAUSE_S: Seconds = 30.0
NO_JOB = 0
"""Number of a result that tells of no grammar, but of a fork that could not be made."""
_PAGE = resource.getpagesize()


class Job(NamedTuple):
    """A grammar to compile."""

    number: int
    grammar: bytes
    """Fields of vLLM's `StructuredOutputsParams`, as JSON."""


class Result(NamedTuple):
    """The end of a job."""

    number: int
    checked: bytes
    """Its fields as vLLM's checks leave them, as JSON; empty if it did not come through."""
    reason: str
    """Why it did not; empty if it did."""
    took_s: Seconds
    """Of `NO_JOB`: the pause before the next try."""
    is_accident: bool
    """The reason lies here, and says nothing of the grammar."""


@dataclass(slots=True)
class Tries:
    """Tries of a thing that fails, with a pause after each that is twice as long as the last."""

    first_pause_s: Seconds
    longest_pause_s: Seconds
    failures: int = 0
    """In a row."""
    reason: str = ""
    """Of the last failure."""
    next_at: Seconds = 0.0
    """Instant of the next try."""

    def succeed(self) -> None:
        """Begin again with the first pause."""
        self.failures = 0

    def fail(self, reason: str, now: Seconds) -> Seconds:
        """Note a failure; return the pause after it."""
        pause_s = min(self.longest_pause_s, self.first_pause_s * (1 << min(self.failures, 10)))
        self.failures += 1
        self.reason, self.next_at = reason, now + pause_s
        return pause_s


Judge = Callable[[bytes], bytes]
"""Compiles a grammar, and returns it as the checks leave it; raises what is wrong with it."""


def vllm_judge(config: Any) -> Callable[[], Judge]:
    """Return a function that makes a judge in each fork, given a `VllmConfig`. Takes seconds."""
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
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
            grammar = object.__new__(StructuredOutputsParams)  # it was checked as it was made
            vars(grammar).update(json.loads(raw))
            params = SamplingParams(structured_outputs=grammar)
            params._validate_structured_outputs(
                config.model_config, config.structured_outputs_config, tokenizer
            )
            checked: Any = params.structured_outputs
            backend = backends.get(checked._backend)
            if backend is None:
                backend = backends[checked._backend] = make_backend(checked._backend)
            backend.compile_grammar(*get_structured_output_key(checked))
            return json.dumps(vars(checked)).encode()

        return judge

    return make_judge


class _Judged(NamedTuple):
    """What a fork says of a grammar: see `Result`."""

    checked: bytes = b""
    reason: str = ""
    is_accident: bool = False


@dataclass(slots=True)
class _Fork:
    """A forked process and its work."""

    pid: int
    pipe: Connection
    is_ready: bool = False
    """Whether its judge is made."""
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
        self._fork_tries = Tries(_PAUSE_S, _LONGEST_PAUSE_S)
        self._refill()

    def serve(self) -> None:
        """Do jobs until the pipe is closed."""
        try:
            while True:
                busy = [fork for fork in self._forks.values() if fork.job is not None]
                ends = [fork.began_at + self._timeout_s for fork in busy]
                if len(self._forks) < _SPARE:
                    ends.append(self._fork_tries.next_at)
                left_s = max(0.0, min(ends) - time.monotonic()) if ends else None
                for pipe in wait([self._answers, *self._forks], left_s):
                    assert isinstance(pipe, Connection)
                    if pipe is self._answers:
                        self._begin(msgspec.msgpack.decode(pipe.recv_bytes(), type=Job))
                    elif pipe in self._forks:  # else it was found dead as a job was sent to it
                        self._hear(self._forks[pipe])
                for fork in busy:
                    if fork.job and time.monotonic() >= fork.began_at + self._timeout_s:
                        self._kill(fork)
                        self._expire(fork)
                self._refill()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            for fork in self._forks.values():
                os.kill(fork.pid, signal.SIGKILL)

    def _begin(self, job: Job) -> None:
        began_at = time.monotonic()
        for fork in [fork for fork in self._forks.values() if fork.job is None]:
            if self._send(fork, job, began_at):
                return
        extra = self._fork()
        if extra is None:
            self._tell(job, self._no_fork(), began_at)
        elif not self._send(extra, job, began_at):
            self._end(extra, _Judged(reason=_HAS_DIED, is_accident=True))

    def _send(self, fork: _Fork, job: Job, began_at: Seconds) -> bool:
        """Give a fork a job, and return whether it lives."""
        fork.job, fork.began_at = job, began_at
        fork.grammars += 1
        try:
            fork.pipe.send_bytes(job.grammar)
        except OSError:
            self._kill(fork)
            return False
        return True

    def _hear(self, fork: _Fork) -> None:
        """Pass a fork's result on; one that has died took too much memory, or broke down."""
        try:
            judged = msgspec.msgpack.decode(fork.pipe.recv_bytes(), type=_Judged)
        except (EOFError, OSError):
            judged = self._last_words(fork, self._kill(fork))
        if fork.is_ready:
            self._end(fork, judged)
        elif judged.reason:
            if fork.pipe in self._forks:
                self._kill(fork)
            self._fail(fork, judged.reason)
        else:
            fork.is_ready = True
            self._fork_tries.succeed()
            fork.began_at = time.monotonic()

    def _expire(self, fork: _Fork) -> None:
        """End the job of a fork that was killed because its time was up."""
        limit = f"{self._timeout_s:g} s"
        if fork.is_ready:
            reason = f"it takes longer than {limit} to compile (engine.grammar_timeout_s)"
            self._end(fork, _Judged(reason=reason))
        else:
            self._fail(fork, f"it had not begun after {limit}")

    def _fail(self, fork: _Fork, reason: str) -> None:
        """Note that a fork could not be made, and give its job back."""
        self._note_unmade(reason)
        self._end(fork, self._no_fork())

    def _no_fork(self) -> _Judged:
        return _Judged(
            reason=f"no fork for it can be made: {self._fork_tries.reason}", is_accident=True
        )

    def _last_words(self, fork: _Fork, exit_code: int) -> _Judged:
        """Return the verdict on a fork that has ended early: on its grammar, or on itself."""
        if not fork.is_ready:
            return _Judged(reason=f"it ended with code {exit_code} as it began", is_accident=True)
        if exit_code in _BY_ITS_GRAMMAR:
            limit = f"{self._memory_bytes / 2**20:g} MiB (engine.grammar_memory_bytes)"
            return _Judged(reason=f"its compiler breaks down, or needs more than {limit}")
        return _Judged(reason=_HAS_DIED, is_accident=True)

    def _end(self, fork: _Fork, judged: _Judged) -> None:
        """End the job of a fork, if it has one; a fork that has done many of them goes."""
        if fork.job is not None:
            job, fork.job = fork.job, None
            self._tell(job, judged, fork.began_at)
        if fork.grammars >= _GRAMMARS_EACH and fork.pipe in self._forks:
            self._kill(fork)

    def _tell(self, job: Job, judged: _Judged, began_at: Seconds) -> None:
        took_s = time.monotonic() - began_at
        result = Result(job.number, judged.checked, judged.reason, took_s, judged.is_accident)
        self._answers.send_bytes(msgspec.msgpack.encode(result))

    def _kill(self, fork: _Fork) -> int:
        """Kill a fork, and return how it ended: by this, or already."""
        del self._forks[fork.pipe]
        os.kill(fork.pid, signal.SIGKILL)
        _, status = os.waitpid(fork.pid, 0)
        fork.pipe.close()
        return os.waitstatus_to_exitcode(status)

    def _refill(self) -> None:
        while len(self._forks) < _SPARE and self._fork() is not None:
            pass

    def _note_unmade(self, reason: str) -> None:
        """Wait before the next fork is made, longer each time, and say so."""
        pause_s = self._fork_tries.fail(reason, time.monotonic())
        result = Result(NO_JOB, b"", reason, pause_s, is_accident=True)
        self._answers.send_bytes(msgspec.msgpack.encode(result))

    def _fork(self) -> _Fork | None:
        """Make a fork; None: that fails, or has failed shortly before."""
        if time.monotonic() < self._fork_tries.next_at:
            return None
        try:
            here, there = Pipe()
        except OSError as error:
            self._note_unmade(_text(error))
            return None
        try:
            pid = os.fork()
        except OSError as error:
            here.close()
            there.close()
            self._note_unmade(_text(error))
            return None
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
        try:
            judge = self._make_judge()
        except Exception as error:
            pipe.send_bytes(msgspec.msgpack.encode(_Judged(reason=_text(error), is_accident=True)))
            return
        pipe.send_bytes(msgspec.msgpack.encode(_Judged()))
        with open("/proc/self/statm", encoding="ascii") as file:
            data_pages = int(file.read().split()[5])
        limit = data_pages * _PAGE + self._memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        try:
            while True:
                raw = pipe.recv_bytes()
                # If the worker should die meanwhile.
                signal.setitimer(signal.ITIMER_REAL, 2 * self._timeout_s + 1)
                judged = _judged(judge, raw)
                signal.setitimer(signal.ITIMER_REAL, 0)
                pipe.send_bytes(msgspec.msgpack.encode(judged))
        except MemoryError:
            os._exit(_NO_MEMORY)


def _judged(judge: Judge, raw: bytes) -> _Judged:
    """Return what a judge says of a grammar.

    Raises:
        MemoryError: If there is too little memory.
    """
    try:
        return _Judged(judge(raw))
    except (MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except (OSError, ImportError) as error:  # of files and packages here
        return _Judged(reason=_text(error), is_accident=True)
    except BaseException as error:  # a compiler in Rust panics beside Exception
        return _Judged(reason=_text(error))


def _text(error: BaseException) -> str:
    """Return a text that can be encoded: what callers send may hold halves of characters."""
    text = str(error) or type(error).__name__
    return text.encode(errors="backslashreplace").decode()


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
