"""Sections of a model and of the replicas that serve it."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from justitia_ray.config.schema import Count, ModelName, NotNegative, Positive, Section
from justitia_ray.scaling.sizing import SizingRules
from justitia_ray.units import Tokens

_KV_CONNECTORS = ("kv_transfer_config", "kv_offloading_size", "kv_offloading_backend")
"""Options of vLLM that choose its KV connector."""
_LONGEST_CONTEXT: Tokens = 10**9
"""Largest accepted `max_model_len`."""


class ModelSection(Section):
    """Settings of a served model: its names, its path and its adapters."""

    name: ModelName
    """Name of the model in calls (`model`)."""
    path: str
    """A local directory, a hub name, or a model of random weights that is built on the node:
    `random:tiny-llama`, `random:small-llama`, `random:tiny-embedding` or `random:tiny-reranker`.
    `random:llama-2-7b` and `random:llama-3-8b` have no weights and need `load_format: dummy`. The
    fake engine ignores it."""
    cache_dir: str = "~/.cache/justitia_ray/models"
    """Directory in which a `random:` model is built."""
    adapters: dict[ModelName, str] = Field(default={})
    """LoRA adapters: for each, the name that callers give as `model`, and a local directory or hub
    name (`random:tiny-adapter` for the tiny Llama). The adapters run on the model's replicas and
    share the model's queue. vLLM's options `enable_lora` and `max_loras` (room for all adapters at
    once) are set; a rank above 16 needs `max_lora_rank` in `engine.vllm_args`."""
    aliases: tuple[ModelName, ...] = ()
    """Other names that callers may give as `model`, and patterns of names with `*`, `?` and `[…]`:
    `gpt-4o`, `claude-haiku-*`; `*` matches every name that is not a served model's. Names are
    matched before patterns, longer patterns before shorter ones. Answers contain the model's own
    name. Empty by default, because harnesses ask for models that are not served, and should get an
    error."""
    reasoning_efforts: dict[str, str] = Field(default={})
    """Reasoning efforts that callers request, mapped to efforts that the model's chat template
    supports, for example `minimal: low, max: high`. Callers request an effort by
    `reasoning_effort`, `reasoning.effort` or `output_config.effort`. Unmapped efforts are passed on
    unchanged.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """All names that callers may give as `model`; they share one queue."""
        return (self.name, *self.adapters)

    @model_validator(mode="after")
    def _names_differ(self) -> "ModelSection":
        if self.name in self.adapters:
            raise ValueError(f"adapters: {self.name!r} is the model's own name; name it otherwise")
        for position, alias in enumerate(self.aliases):
            if alias in (*self.names, *self.aliases[:position]):
                raise ValueError(f"aliases: {alias!r} is a name already; each is allowed once")
        return self


class FakeEngineSection(Section):
    """Engine that sleeps instead of computing, for tests and to measure the serving path."""

    kv_tokens: Count = 7_344
    """KV memory of the fake engine in tokens. The default is 459 blocks of 16 tokens, as on the A10
    GPU of the Justitia paper (v1, Sec. V-A).
    """
    block_size: Count = 1
    """Number of tokens in a KV block."""
    max_num_seqs: Count = 256
    """Largest number of sequences that run at the same time, as vLLM's option."""
    max_model_len: Count = 4_096
    """Longest prompt plus output of one sequence, in tokens."""
    iteration_s: NotNegative = 0.03
    """Duration of a decode iteration in seconds. The default is about that of a 7B model on an A10
    GPU (v1 of the Justitia paper, Sec. V).
    """
    prefill_s_per_token: NotNegative = 0.0
    """Time in seconds that each computed prompt token adds to an iteration."""
    max_num_batched_tokens: Count = 8_192
    """Largest number of tokens computed in an iteration, as vLLM's option. Longer prompts are
    computed in chunks.
    """
    enable_prefix_caching: bool = True
    """Whether prompts reuse the computed beginnings of earlier prompts, by vLLM's rules, as vLLM's
    option. Cache salts are those of `cache_isolation`.
    """
    enable_prompt_tokens_details: bool = False
    """Whether `usage` contains the number of cached prompt tokens; as vLLM's option."""

    @model_validator(mode="after")
    def _memory_holds_a_block(self) -> "FakeEngineSection":
        if self.kv_tokens < self.block_size:
            raise ValueError(
                f"kv_tokens is {self.kv_tokens}: at least block_size, {self.block_size}, is allowed"
            )
        return self


class PrefillCostSection(Section):
    """Cost of computing prompts on this model's engines, relative to the cost of KV memory."""

    per_token: NotNegative
    """Cost κ of each computed prompt token, in token·iterations."""
    per_pair: NotNegative = 0.0
    """Cost κ₁ of each pair of a computed token and an earlier token (attention), in
    token·iterations. It matters for prompts above some 20,000 tokens."""


class EngineSection(Section):
    """Settings of the engine in each replica."""

    kind: Literal["vllm", "fake"] = "vllm"
    """Kind of engine: `vllm`, or `fake`. A fake engine sleeps instead of computing, and answers
    only chats, completions, `/tokenize` and `/detokenize`.
    """
    vllm_args: dict[str, str | int | float | bool] = Field(default={})
    """Options of `vllm serve`, with underscores and without leading dashes: `max_model_len: 2048`.
    `scheduling_policy` is always `priority`, `data_parallel_size` 1, `sse_keep_alive_interval` 0
    (`ingress.keepalive_s` keeps waiting streams alive). Options of vLLM's HTTP server (`port`,
    `api_key`, `root_path`, `middleware`, `ssl_*`) are refused: the service has its own. The ingress
    uses `max_model_len` until a replica has reported the context of its engine; without it, prompts
    that are too long are not refused before that. Tools that a model may choose to call need
    `enable_auto_tool_choice: true` and `tool_call_parser`; reasoning needs `reasoning_parser`. With
    `enable_prompt_tokens_details: true` callers see how many prompt tokens were cached.
    `long_prefill_token_threshold` is always 0, so that prompts with equal beginnings share memory.
    `lora_modules` is replaced by `model.adapters`."""
    cache_isolation: Literal["tenant", "top", "shared"] = "tenant"
    """Callers that share cached prompts in vLLM's prefix cache: those of one tenant, by its whole
    path (`tenant`), of all tenants below one top-level tenant (`top`: the first part of the path),
    or all (`shared`: a caller can learn from `cached_tokens` and the time to the first token what
    others have sent). A system prompt that all tenants send is computed and stored for each. A
    caller's own `cache_salt` divides the cache further."""
    max_cache_salts: Count = 1_000
    """Largest number of salts (`cache_salt`) in use by the callers of one tenant; a replica drops a
    salt ten minutes after its last use. Each salt has its own copy of cached prompts. A further
    salt is refused with 400."""
    hold_contexts: bool = False
    """Experimental. Whether vLLM evicts the context of an application that is between two
    inferences after all other cached blocks, for as long as the working set of `justitia` counts
    this context. Otherwise the blocks of single calls that ended later displace the context.
    Running inferences can still have all of the memory. Needs prefix caching, and uses vLLM's only
    `kv_transfer_config`.
    """
    host_kv_gib: Positive | None = None
    """Experimental, and not yet run on a GPU. Size in GiB of a KV cache in a replica's host memory,
    for all its GPUs together: contexts that are evicted from the GPU are loaded from there. The
    contexts of waiting applications are evicted last, and the working set counts the larger of both
    memories. `null`: no such cache. It needs a GPU, vLLM 0.32 and prefix caching, and uses vLLM's
    only `kv_transfer_config`; not with `hold_contexts` or speculative decoding (vllm#55503)."""
    grammar_timeout_s: Positive | None = 5.0
    """Longest time for compiling a grammar (a JSON schema, a regex, a list of choices, forced
    tools). A process beside the replica compiles each grammar first, and a grammar that takes
    longer is refused with 400: vLLM compiles on its event loop, where a schema of nested
    alternatives stops all streams for minutes. The process starts with the first grammar. `null`:
    no such process, as in vLLM."""
    grammar_memory_bytes: Count = 2**30
    """Largest memory for compiling a grammar, in bytes (1 GiB); a grammar that needs more is
    refused with 400."""
    env: dict[str, str] = Field(default={})
    """Environment variables of the replica, set before vLLM is imported. Variables that change
    vLLM's HTTP application (`VLLM_API_KEY`, `VLLM_SERVER_DEV_MODE`, …) are refused; if a node has
    them they are removed, with a warning."""
    metrics: bool = True
    """Whether vLLM's own metrics are in Ray's exporter, as `ray_vllm_…`, for Ray's LLM dashboard;
    see [observability.md](observability.md#the-engines-metrics) for their cost."""
    start_timeout_s: Positive = 3_600.0
    """Longest start of an engine, including loading the model; after that its process is killed,
    and Serve starts another. vLLM itself waits for ever for a hanging start."""
    prefill_cost: PrefillCostSection | None = None
    """Cost of computing prompts, for `scheduler.cost: with_prefill`. `null`: each replica measures
    its engine when it starts, which takes seconds, and the first measurement under a release of the
    service counts for all replicas of the model, until the next release. `justitia status` shows
    the cost. `justitia calibrate` prints a cost fitted to recorded or live requests."""
    fake: FakeEngineSection = FakeEngineSection()

    @model_validator(mode="after")
    def _context_length_is_valid(self) -> "EngineSection":
        _ = self.declared_context
        return self

    @model_validator(mode="after")
    def _can_keep_contexts(self) -> "EngineSection":
        options = {"hold_contexts": self.hold_contexts, "host_kv_gib": self.host_kv_gib}
        chosen = [name for name, value in options.items() if value]
        if not chosen:
            return self
        if len(chosen) > 1:
            raise ValueError(
                "hold_contexts and host_kv_gib are both set: each is a KV connector, and vLLM has"
                " one; leave out one of the two"
            )
        (name,) = chosen
        if self.kind != "vllm":
            raise ValueError(f"{name} is set: kind {self.kind} has no memory for contexts")
        given = {_option_name(key): value for key, value in self.vllm_args.items()}
        for option, off in {
            "enable_prefix_caching": False,
            "no_enable_prefix_caching": True,
        }.items():
            if given.get(option) is off:
                raise ValueError(
                    f"{name} is set: vllm_args.{option} is {str(off).lower()}, so that there are no"
                    " contexts to keep"
                )
        for option in _KV_CONNECTORS:
            if option in given:
                raise ValueError(
                    f"{name} is set: vllm_args.{option} asks for another KV connector, and vLLM has"
                    " one; leave out one of the two"
                )
        if name == "host_kv_gib" and "speculative_config" in given:
            raise ValueError(
                "host_kv_gib is set: vllm_args.speculative_config is not allowed with it, because"
                " vLLM's host memory fails with multi-token prediction (vllm#55503)"
            )
        return self

    @property
    def declared_context(self) -> Tokens | None:
        """Context length from `vllm_args`; None if vLLM determines it, by default or as `auto`.

        Raises:
            ValueError: If vLLM does not accept the value.
        """
        if self.kind == "fake":
            return self.fake.max_model_len
        given = {_option_name(name): value for name, value in self.vllm_args.items()}
        value = given.get("max_model_len")
        return None if value is None else _context_length(value)


def _option_name(given: str) -> str:
    """Return the name of a vLLM option, which may have dashes, or a dot before a nested name."""
    return given.replace("-", "_").partition(".")[0]


def _context_length(value: str | int | float | bool) -> Tokens | None:
    """Return a `max_model_len` as vLLM reads it: `2k` is 2,000 and `2K` 2,048; None for `auto`."""
    text = str(value).strip()
    if text == "-1" or text.lower() == "auto":
        return None
    whole = re.fullmatch(r"(\d+)([KMGT]?)", text)
    decimal = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt])", text)
    tokens = 0
    if whole is not None:
        tokens = int(whole[1]) * 2 ** (10 * " KMGT".index(whole[2] or " "))
    elif decimal is not None:
        tokens = int(float(decimal[1]) * 10 ** (3 * " kmgt".index(decimal[2])))
    if not 0 < tokens <= _LONGEST_CONTEXT or isinstance(value, bool):
        raise ValueError(
            f"vllm_args: max_model_len is {value!r}: a number of tokens above 0 (2048, 2K, 25.6k),"
            " or auto is allowed"
        )
    return tokens


class ReplicaSection(Section):
    """Settings of a replica's reports to the scheduler, of its streams and of stalled engines."""

    report_interval_s: Positive = 0.25
    """Interval of reports on running inferences; ended inferences are reported at once. Virtual
    time advances with both reports. At most half of `scheduler.lease_timeout_s`, because this
    report confirms that a lease runs."""
    pull_interval_s: NotNegative = 0.01
    """Interval over which a replica collects ended inferences before it reports them to the
    scheduler; a report costs about 2 ms of CPU.
    """
    heartbeat_s: Positive = 1.0
    """Longest time between two reports of an idle replica to the scheduler; at most half of
    `scheduler.replica_timeout_s`.
    """
    chunk_interval_s: NotNegative = 0.0
    """Interval over which stream chunks are joined into one: the CPU cost of a chunk hardly depends
    on its size. 0: only the chunks of one turn of the event loop are joined."""
    cache_fill_s: NotNegative = 0.0
    """Longest time for which Serve counts a new replica as starting, although the replica already
    serves. This time ends when the replica's computed prompt tokens would fill its KV memory, or
    when no call has come for 2 s. Meanwhile a rolling update stops no further old replicas, whose
    caches hold the contexts of agents; the same holds for a deployment under load. 0: Serve
    continues at once.
    """
    lease_grace_s: Positive = 1.0
    """Time for which a replica keeps the payload of a call before its lease arrives. The lease
    travels in another message.
    """
    stall_factor: NotNegative = 5.0
    """Factor on an engine's longest recent step. An engine with work that makes no step for this
    time plus `stall_allowance_s` is stalled. Its leases then move to other replicas, and it gets no
    new ones until it makes a step. Steps differ in length: that of a long prompt's last chunk takes
    several times as long as that of its first chunk.
    """
    stall_allowance_s: Positive = 15.0
    """Time without a step that an engine is allowed in addition to `stall_factor` times its longest
    recent step, for steps that compile a kernel or load an adapter; four times as long for the
    first 16 steps. Increase it for an engine with longer steps (a large `max_num_batched_tokens` on
    a CPU).
    """
    stall_replace_s: Positive = 60.0
    """Time for which an engine may be stalled before its process is killed and Serve starts
    another. Starting a large model takes minutes, so a stalled engine gets this time to recover."""


_LEAST_PATIENCE_S = 120.0


class AutoscalingSection(Section):
    """Autoscaling of a model's replicas by the demand of its queue."""

    min_replicas: Annotated[int, Field(ge=0)] = 1
    """Smallest number of replicas. 0: no replica while no application is open; the first call then
    waits until one has loaded."""
    max_replicas: Count
    """Largest number of replicas: limited by the cluster's GPUs, or by the budget."""
    initial_replicas: Annotated[int, Field(ge=0)] | None = None
    """Number of replicas after a deployment; `null`: `min_replicas`."""
    target_drain_s: Positive = 60.0
    """Time within which all waiting, running and expected work of open applications is to be
    served. A shorter time is faster and costs more replicas."""
    load_s: Positive = 120.0
    """Time that a replica takes to load, until it has been measured. Work that will be served
    within this time starts no new replica."""
    hold_s: NotNegative = 60.0
    """Time for which an application without waiting or running inferences (in a tool call) still
    counts, so that a replica is kept for it."""
    upscale_delay_s: NotNegative = 10.0
    """Time for which more replicas must have been wanted before they are started; the first replica
    starts at once. Serve's own default is 30 s, because its count of requests is less precise."""
    downscale_delay_s: NotNegative | None = None
    """Time for which fewer replicas must have been wanted before some are drained. `null`: twice
    `load_s`, at least 120 s, because a replica that is stopped too early must load again. Serve's
    own default is 600 s."""
    downscale_to_zero_delay_s: NotNegative | None = None
    """Delay before the last replica is drained; `null`: `downscale_delay_s`."""
    poll_s: Positive = 1.0
    """Interval at which Ray Serve's controller polls the scheduler for the replica count."""
    external: bool = False
    """Whether an external autoscaler starts and stops replicas, by the metric
    `justitia_wanted_replicas`, instead of Serve. See autoscaling.md."""

    @property
    def patience_s(self) -> float:
        """Delay in seconds before replicas are drained when fewer are wanted."""
        if self.downscale_delay_s is None:
            return max(_LEAST_PATIENCE_S, 2 * self.load_s)
        return self.downscale_delay_s

    @property
    def rules(self) -> SizingRules:
        """Rules by which the scheduler computes the wanted number of replicas."""
        return SizingRules(
            self.min_replicas, self.max_replicas, self.target_drain_s, self.load_s, self.hold_s
        )

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas is {self.min_replicas}: at most max_replicas,"
                f" {self.max_replicas}, is allowed"
            )
        initial = self.initial_replicas
        if initial is not None and not self.min_replicas <= initial <= self.max_replicas:
            raise ValueError(
                f"initial_replicas is {initial}: from min_replicas, {self.min_replicas}, to"
                f" max_replicas, {self.max_replicas}, is allowed"
            )
        return self
