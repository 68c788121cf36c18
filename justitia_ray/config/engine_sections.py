"""`engine` and `replica`: what runs inferences, and how it talks to the scheduler."""

from typing import Annotated, Literal

from pydantic import Field

from justitia_ray.config.section import Positive, Section


class FakeEngineSection(Section):
    """An engine that sleeps as a GPU would: for tests and for measuring the rest of the path."""

    kv_tokens: Annotated[int, Field(gt=0)] = 7_344
    """459 blocks of 16, the paper's A10 (v1, Sec. V-A)."""
    block_size: Annotated[int, Field(gt=0)] = 1
    max_num_seqs: Annotated[int, Field(gt=0)] = 256
    max_model_len: Annotated[int, Field(gt=0)] = 4_096
    iteration_s: Annotated[float, Field(ge=0)] = 0.03
    """About what a 7B model takes on an A10 (v1, Sec. V)."""
    prefill_s_per_token: Annotated[float, Field(ge=0)] = 0.0


class EngineSection(Section):
    """The engine inside each replica."""

    kind: Literal["vllm", "fake"] = "vllm"
    vllm_args: dict[str, str | int | float | bool] = Field(default={})
    """vLLM's own command-line options, with underscores: `max_model_len: 2048`."""
    env: dict[str, str] = Field(default={})
    """Environment of the replica, set before vLLM is imported."""
    fake: FakeEngineSection = FakeEngineSection()


class ReplicaSection(Section):
    """How a replica behaves towards the scheduler."""

    report_interval_s: Positive = 0.25
    """How often running inferences are metered: V moves that often at least."""
    pull_interval_s: Annotated[float, Field(ge=0)] = 0.01
    """Ends of inferences are gathered over this time after a pull: one costs about 2 ms of CPU."""
    heartbeat_s: Positive = 1.0
    """Longest pull while nothing runs."""
    chunk_interval_s: Annotated[float, Field(ge=0)] = 0.03
    """Stream chunks are joined over this time after the first: chunks cost, tokens do not."""
    lease_grace_s: Positive = 1.0
    """A payload may come so long before its lease (the pull's answer may be on its way)."""
