"""Code that one inference passes through: distinct files and functions, by `sys.setprofile`.

Two paths are traced. First, a granted submission in the scheduling core: one `InferenceSubmitted`
to a core with its application and a replica with headroom, which grants it at once. Second, a whole
inference through the service in memory, from the client's call to its answer: ingress, scheduler,
replica and fake engine of `tests.harness.simulation`, including their background work. It is the
second of its application, so that all connections stand. Only functions of this package are
counted, without what the simulation's own checks of the service call (`_CHECKS`).
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import justitia_ray
import tests.harness.simulation as simulation
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import ReplicaCapacity
from tests.harness.planned import PlannedInference
from tests.harness.simulation.callers import Callers
from tests.harness.simulation.plan import Ending as ApplicationEnding
from tests.harness.simulation.plan import PlannedApplication, draw_plan
from tests.harness.simulation.run import run_plan

_PACKAGE = Path(justitia_ray.__file__).parent
_CHECKS = frozenset(
    {
        str(_PACKAGE / "core" / "invariants.py"),
        str(Path(simulation.__path__[0], "recorder.py")),
        str(Path(simulation.__path__[0], "use_recorder.py")),
    }
)
"""Files that observe the service in a simulation; their calls are not counted."""
_KV_TOKENS = 10_000
_ENGINE = ("engine_model", "serve/engines")


@dataclass(slots=True)
class CallTrace:
    """Number of calls of this package's functions, by file and qualified name."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def files(self) -> list[str]:
        """Distinct files, relative to the package."""
        return sorted({file for file, _ in self.calls})

    @property
    def service_functions(self) -> set[tuple[str, str]]:
        """(file, name) of the called functions, without lambdas and those of the engine."""
        return {
            (file, name)
            for file, name in self.calls
            if not name.endswith(">") and _parent_folder(file) not in _ENGINE
        }

    def counts_by_folder(self) -> dict[str, tuple[int, int, int]]:
        """Return distinct files, distinct functions and calls of each folder."""
        folders = sorted({_parent_folder(file) for file in self.files})
        return {
            folder: (
                sum(_parent_folder(file) == folder for file in self.files),
                sum(_parent_folder(file) == folder for file, _ in self.calls),
                sum(
                    count
                    for (file, _), count in self.calls.items()
                    if _parent_folder(file) == folder
                ),
            )
            for folder in folders
        }

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record every call of this thread inside the block."""
        names: dict[str, str | None] = {}
        depth_in_checks = 0

        def record_call(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal depth_in_checks
            path = frame.f_code.co_filename
            if depth_in_checks or path in _CHECKS:
                depth_in_checks += {"call": 1, "return": -1}.get(event, 0)
                return
            if event != "call":
                return
            if path not in names:
                inside = Path(path).is_relative_to(_PACKAGE)
                names[path] = str(Path(path).relative_to(_PACKAGE)) if inside else None
            file = names[path]
            if file is not None:
                self.calls[file, frame.f_code.co_qualname] += 1

        before = sys.getprofile()
        sys.setprofile(record_call)
        try:
            yield
        finally:
            sys.setprofile(before)


def trace_granted_submission(policy: str = "justitia") -> CallTrace:
    """Return the calls of one submission that the core grants at once.

    Raises:
        RuntimeError: If the core does not grant it.
    """
    core, trace = SchedulerCore(policy), CallTrace()
    core.handle(ev.ApplicationArrived("app", "report", "team", 1.0, 1_000.0, "ingress"), 1.0)
    capacity = ReplicaCapacity(kv_tokens=_KV_TOKENS, block_size=16, max_num_seqs=8)
    core.handle(ev.ReplicaPulled("replica", capacity, _KV_TOKENS), 1.1)
    submitted = ev.InferenceSubmitted("request", "app", "inference", "ingress", 100, 20, 40)
    with trace.recording():
        actions = core.handle(submitted, 1.2)
    if not any(isinstance(action, Grant) for action in actions):
        raise RuntimeError(f"the submission was not granted: {actions}")
    return trace


def trace_inference(*, stream: bool = False) -> CallTrace:
    """Return the calls of one inference through the service in memory, up to its answer.

    Raises:
        RuntimeError: If the inference fails.
    """
    stages = tuple(
        (PlannedInference(name, f"{name} sun sea", max_tokens=4, stream=stream),)
        for name in ("a0.0.0", "a0.1.0")
    )
    application = PlannedApplication("a0", "t1", 1.0, True, stages, 0.0, ApplicationEnding.CLOSE)
    plan = replace(
        draw_plan(0),
        ingresses=1,
        replicas=1,
        kv_tokens=300,
        policy="justitia",
        options={},
        shuffled=False,
        applications=(application,),
        faults=(),
    )
    trace = CallTrace()
    with _recording_second_call(Callers, "_submit_once", trace):
        simulated = run_plan(plan)
    if simulated.failures:
        raise RuntimeError(f"the inference failed: {simulated.failures[0]}")
    return trace


@contextmanager
def _recording_second_call(owner: type, method: str, trace: CallTrace) -> Iterator[None]:
    """Record the second call of an asynchronous method, including concurrent work."""
    original: Callable[..., Any] = getattr(owner, method)
    calls = 0

    async def traced_method(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        with trace.recording() if calls == 2 else nullcontext():
            return await original(*arguments)

    setattr(owner, method, traced_method)
    try:
        yield
    finally:
        setattr(owner, method, original)


def _parent_folder(file: str) -> str:
    return str(Path(file).parent)
