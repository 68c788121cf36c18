"""Schema of the configuration file: an application's Serve `args`, and its Ingress's `user_config`.

`AppArgs` and `AppSettings` are read from the file. They are split into settings per model,
`AppConfig` and `SchedulingConfig`, so that only the ingress handles several models. A change of
`args` restarts deployments; a change of `user_config` is sent to the running scheduler, and the
queue stays.

The docstring of a key is its description for operators: `scripts/write_tables` writes the tables of
deployments/README.md from them. Units are part of the keys' names.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from justitia_ray.access.identity import check_tenant
from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.policies import advice, in_force, parse_options
from justitia_ray.core.tenants import (
    ANY,
    TIERS,
    ApplicationCaps,
    KvShare,
    OnExhausted,
    Period,
    Quota,
    TenantNode,
    TenantTree,
    Tier,
    Unit,
    Window,
    check_guaranteed,
)
from justitia_ray.errors import ConfigError, RequestError, shown_short
from justitia_ray.predictor.class_names import ClassName
from justitia_ray.predictor.observation import LEAST_MINIMUM_SAMPLES
from justitia_ray.recognition.harnesses import HARNESSES, Harness
from justitia_ray.recognition.rules import CONVERSATION, DEFAULT_RULES, RULES
from justitia_ray.scaling.sizing import SizingRules
from justitia_ray.store.redis_url import Setup, read_redis_url
from justitia_ray.units import Tokens

_NOT_IN_DEPLOYMENTS = re.compile(r"[^A-Za-z0-9._-]")
"""Characters not allowed in deployment names: Serve uses `#` as a separator, and names log files
after deployments."""
_LONGEST_DEPLOYMENT = 128
_LONGEST_CONTEXT = 10**9
"""Longest deployment name: a file name has at most 255 characters, which include the application's
name and the replica's id."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
HeaderName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$"), AfterValidator(lambda name: name.lower())
]
LabelCount = Annotated[int, Field(gt=0, le=1_000)]
JwtAlgorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


class Section(BaseModel):
    """A frozen part of the schema; unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str = "") -> Self:
        """Return the validated section.

        Args:
            values: Keys and values from the file.
            where: Prefix of error messages.

        Raises:
            ConfigError: If a key is unknown or a value is not allowed; the message names all of
                them.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{where}{describe(error)}") from error


class ModelSection(Section):
    """A served model."""

    name: ModelName
    """Name that callers give as `model`."""
    path: str
    """A local directory, a hub name, or a model of random weights that is built on the node:
    `random:tiny-llama`, `random:small-llama`, `random:tiny-embedding`, `random:tiny-reranker`, and
    `random:llama-2-7b` and `random:llama-3-8b`, which have no weights and need `load_format:
    dummy`. The fake engine ignores it."""
    cache_dir: str = "~/.cache/justitia_ray/models"
    """Directory in which a `random:` model is built."""
    adapters: dict[ModelName, str] = Field(default={})
    """LoRA adapters: the name that callers give as `model`, and a local directory or hub name
    (`random:tiny-adapter` for the tiny Llama). They run on the model's replicas and share its
    queue. vLLM gets `enable_lora` and a slot for each (`max_loras`); a rank above 16 needs
    `max_lora_rank` in `engine.vllm_args`."""
    aliases: tuple[ModelName, ...] = ()
    """Other names that callers may give as `model`, and patterns of names with `*`, `?` and `[…]`:
    `gpt-4o`, `claude-haiku-*`; `*` matches every name that no model has. Names are matched before
    patterns, longer patterns before shorter ones. Answers contain the model's own name. Empty by
    default, because harnesses ask for models that are not served, and should get an error."""
    reasoning_efforts: dict[str, str] = Field(default={})
    """Replacement of the effort that callers request (`reasoning_effort`, `reasoning.effort`,
    `output_config.effort`), for example `minimal: low, max: high` for a template that supports low,
    medium and high. Other efforts are passed on unchanged."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that callers may give as `model`; all of them share one queue."""
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
    """An engine that sleeps instead of computing, for tests and to measure the serving path."""

    kv_tokens: Count = 7_344
    """KV memory M in tokens: 459 blocks of 16, the paper's A10 (v1, Sec. V-A)."""
    block_size: Count = 1
    """Tokens in a KV block."""
    max_num_seqs: Count = 256
    """Largest number of running sequences, as vLLM's option."""
    max_model_len: Count = 4_096
    """Longest prompt plus output of one sequence."""
    iteration_s: NotNegative = 0.03
    """Time of a decode iteration; about a 7B model on an A10 (v1, Sec. V)."""
    prefill_s_per_token: NotNegative = 0.0
    """Time added to an iteration for each prompt token that it computes."""
    max_num_batched_tokens: Count = 8_192
    """Largest number of tokens computed in an iteration, longer prompts in chunks; as vLLM's
    option."""
    enable_prefix_caching: bool = True
    """Whether the computed beginning of a prompt is reused by later prompts, by vLLM's rules; as
    vLLM's option. Salts are those of `cache_isolation`."""
    enable_prompt_tokens_details: bool = False
    """Whether `usage` contains the number of cached prompt tokens; as vLLM's option."""


class EngineSection(Section):
    """The engine inside each replica."""

    kind: Literal["vllm", "fake"] = "vllm"
    """`vllm`, or `fake`: an engine that sleeps instead of computing, and answers only chats,
    completions, `/tokenize` and `/detokenize`."""
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
    path (`tenant`), of one tree (`top`: the first part of the path), or all (`shared`: a caller can
    learn from `cached_tokens` and the time to the first token what others have sent). A system
    prompt that all tenants send is computed and stored for each. A caller's own `cache_salt`
    divides further."""
    max_cache_salts: Count = 1_000
    """Largest number of salts (`cache_salt`) in use by the callers of one tenant; a replica drops a
    salt ten minutes after its last use. Each salt has its own copy of cached prompts. A further
    salt is refused with 400."""
    grammar_timeout_s: Positive | None = 5.0
    """Longest time for compiling a grammar (a JSON schema, a regex, a list of choices, forced
    tools). A process beside the replica compiles each grammar first, and refuses with 400 one that
    takes longer: vLLM compiles on its event loop, where a schema of nested alternatives stops all
    streams for minutes. The process starts with the first grammar. `null`: no such process, as in
    vLLM."""
    grammar_memory_bytes: Count = 2**30
    """Largest memory for compiling a grammar, 1 GiB; a grammar that needs more is refused with 400.
    """
    env: dict[str, str] = Field(default={})
    """Environment variables of the replica, set before vLLM is imported. Variables that change
    vLLM's HTTP application (`VLLM_API_KEY`, `VLLM_SERVER_DEV_MODE`, …) are refused; if a node has
    them they are removed, with a warning."""
    metrics: bool = True
    """Whether vLLM's own metrics are in Ray's exporter, as `ray_vllm_…`, for Ray's LLM dashboard;
    see [observability.md](observability.md#the-engines-metrics) for their cost."""
    start_timeout_s: Positive = 3_600.0
    """Time after which an engine that has not started, its model included, is given up: its process
    ends, and Serve starts another. vLLM itself waits for ever for a hanging start."""
    fake: FakeEngineSection = FakeEngineSection()

    @model_validator(mode="after")
    def _has_a_context(self) -> "EngineSection":
        _ = self.declared_context
        return self

    @property
    def declared_context(self) -> Tokens | None:
        """Declared context length of the model; None: vLLM determines it, by default or as `auto`.

        Raises:
            ValueError: If vLLM does not accept the value.
        """
        if self.kind == "fake":
            return self.fake.max_model_len
        given = {name.replace("-", "_"): value for name, value in self.vllm_args.items()}
        value = given.get("max_model_len")
        return None if value is None else _context_of(value)


def _context_of(value: str | int | float | bool) -> Tokens | None:
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
    """Reports of a replica to the scheduler, and its streams."""

    report_interval_s: Positive = 0.25
    """Interval of reports on running inferences; ends of inferences are reported at once. Virtual
    time advances with both. At most half of `scheduler.lease_timeout_s`, because this report
    confirms that a lease runs."""
    pull_interval_s: NotNegative = 0.01
    """Time after a pull over which ends of inferences are collected for the next: a pull costs
    about 2 ms of CPU."""
    heartbeat_s: Positive = 1.0
    """Longest duration of a pull while nothing runs; well below `scheduler.replica_timeout_s`."""
    chunk_interval_s: NotNegative = 0.0
    """Time after a stream chunk over which further chunks are joined to it: sending a chunk costs
    CPU, its tokens hardly any. 0 joins the chunks of one turn of the event loop."""
    cache_fill_s: NotNegative = 0.0
    """Longest time for which a new replica, which already serves, counts as starting for Serve:
    until the prompt tokens that it has computed would fill its KV memory, or no call has come for 2
    s. Meanwhile a rolling update stops no more old replicas, whose caches hold the contexts of
    agents; the same holds for a deployment under load. 0: Serve continues at once."""
    lease_grace_s: Positive = 1.0
    """Time that a replica waits for the lease of a payload, whose message may arrive later."""
    stall_factor: NotNegative = 5.0
    """An engine with work counts as stalled when it has made no step for this factor times its
    longest recent step, plus `stall_allowance_s`: its leases move to other replicas, and it gets no
    new ones until it makes a step. Steps differ: the last chunk of a long prompt takes several
    times as long as the first."""
    stall_allowance_s: Positive = 15.0
    """Extra time for a step that compiles a kernel or loads an adapter; the first 16 steps get four
    times as much. Increase it for an engine with single steps that take longer (a large
    `max_num_batched_tokens` on a CPU)."""
    stall_replace_s: Positive = 60.0
    """Time for which an engine may be stalled before its process is killed and Serve starts
    another. A start takes minutes with a large model, so an engine that may recover gets this time.
    """


_LEAST_PATIENCE_S = 120.0


class AutoscalingSection(Section):
    """Autoscaling of a model's replicas by the demand of its queue."""

    min_replicas: Annotated[int, Field(ge=0)] = 1
    """Smallest number of replicas. 0: no replica while no application is open; the first call then
    waits for one to load."""
    max_replicas: Count
    """Largest number of replicas: limited by the cluster's GPUs, or by the budget."""
    initial_replicas: Annotated[int, Field(ge=0)] | None = None
    """Number of replicas after a deployment; `null`: `min_replicas`."""
    target_drain_s: Positive = 60.0
    """Time within which all waiting, running and expected work of open applications must be served:
    a shorter time is faster and costs more replicas."""
    load_s: Positive = 120.0
    """Time that a replica takes to load, until it has been measured: work that will be served
    before a new replica is loaded starts none."""
    hold_s: NotNegative = 60.0
    """Time for which an application without waiting or running inferences (a tool gap) still
    counts, so that a replica is kept for it."""
    upscale_delay_s: NotNegative = 10.0
    """Time for which more replicas must have been wanted before they are started; 0 replicas start
    at once. Serve's own default is 30 s, for a request count that is less precise."""
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
        """Seconds for which fewer replicas must have been wanted before some are drained."""
        if self.downscale_delay_s is None:
            return max(_LEAST_PATIENCE_S, 2 * self.load_s)
        return self.downscale_delay_s

    @property
    def rules(self) -> SizingRules:
        """Rules by which the scheduler computes the number of replicas."""
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


class SchedulerSection(Section):
    """Timeouts and limits of the scheduler actor."""

    num_cpus: Annotated[float, Field(gt=0)] = 0.1
    """CPUs that Ray reserves for the actor. Above 0, so that it is not placed on a head node that
    offers none."""
    namespace: Name = "justitia"
    """Ray namespace of the actor."""
    lease_timeout_s: Positive = 5.0
    """Time within which the payload of a lease must arrive; otherwise the lease expires and its
    inference is queued again."""
    replica_timeout_s: Positive = 4.0
    """Time after which a silent replica without a connection counts as lost, so that its work is
    leased again within 5 s; a silent replica with a connection counts as alive
    (`transport.standstill_s`), but gets no new leases."""
    ingress_timeout_s: Positive = 30.0
    """Time after which a silent ingress counts as lost, and its inferences are ended. Above the 20
    s of a long-poll."""
    application_idle_s: Positive = 600.0
    """Time after which an application without waiting or running inferences ends; tool gaps are
    shorter."""
    recovery_s: Positive = 3.0
    """Longest time for which a new scheduler waits for the reports of all known replicas before it
    grants leases."""
    quota_timeout_s: Positive = 10.0
    """With quotas: the longest time that an application, or an inference, waits for the accounts to
    grant it, or for other claims to be returned. Then it is refused, or admitted if no quota of its
    tenant rejects."""
    engine_deaths_allowed: Annotated[int, Field(ge=0)] = 2
    """Number of engine deaths that one call may cause: then it is refused with 502, if no other
    call ran on all of these engines. 1 also blames a call that ran alone on an engine that died for
    another reason. 0 blames no call: what ran on a dead engine is leased again at once, up to
    `ingress.attempts` times. See
    [troubleshooting.md](troubleshooting.md#a-call-that-kills-its-engine)."""
    lag_meter: bool = False
    """`true`: measures the bound on the lag of every application from all starts and reports, and
    compares its lag with it at its end: `justitia_bounded_applications_total`,
    `justitia_bound_violations_total` with its alert, `gps_lag_bound_kv_token_time` in
    `application.ended`. It also measures lags under `clock: nominal` and in accounts of another
    `cost`. Off, because it takes a fifth of the calls of a submission and a third of those of a
    report. Lags, and promises to applications that wait, are computed on request in both cases."""
    abandoned_s: Positive = 600.0
    """Time without any call after which the actor ends itself."""
    max_waiting_inferences: Count = 200_000
    """Largest number of waiting and running inferences; more are refused with 429. They take 0.2 to
    0.6 GB. One tenant may have at most four times the number left free."""
    max_open_applications: Count = 50_000
    """Largest number of open applications, idle ones included; more are refused with 429, with the
    same limit for one tenant. They take 0.2 GB; saving all of them blocks the scheduler for 0.3 to
    0.5 s. Calls that name no application count as one each: increase it if many of those wait."""


class StoreSection(Section):
    """Redis: an embedded server, or an existing one."""

    durability: Literal["batched", "strict", "none"] = "batched"
    """`batched`, `strict` (a tag is stored before it is returned) or `none` (no Redis, nothing is
    stored); see below."""
    strict_timeout_s: Positive = 5.0
    """With `strict`: longest time that an application waits to be stored before it is refused with
    503."""
    redis_url: str | None = None
    """A server `redis://host:6379/0` or `unix:///path`, Sentinel
    `redis+sentinel://h1:26379,h2:26379/service/0`, a cluster `redis+cluster://h1:6379,h2:6379`;
    `rediss` instead of `redis` for TLS. Without user and password. `null`: an embedded Redis
    server, for one node; a cluster of several nodes is refused."""
    redis_username: str | None = None
    """User of Redis's access control list."""
    redis_password_env: str | None = None
    """Name of the environment variable that holds the password, on every node."""
    redis_password_file: str | None = None
    """A file on every node that holds the password, instead of `redis_password_env`. It is read at
    each connect, so that the password may change while the service runs; a variable may not."""
    redis_sentinel_password_env: str | None = None
    """Name of the variable with the Sentinels' own password."""
    redis_sentinel_password_file: str | None = None
    """File with the Sentinels' own password instead of a variable, read at each connect."""
    redis_tls_ca_file: str | None = None
    """File of trusted certificates, on every node; `null`: those of the system."""
    redis_tls_cert_file: str | None = None
    """File of the client certificate, if Redis requires one."""
    redis_tls_key_file: str | None = None
    """File of the client certificate's private key; `null`: in the certificate's file."""
    data_dir: str = "~/.local/share/justitia_ray"
    """Directory of the embedded server's data, with a subdirectory for each application and model.
    Not on a network file system."""
    save_interval_s: Positive = 0.5
    """Interval at which changes are saved: a scheduler that dies can lose this much of the
    accounts. The design allows 1 s."""

    @model_validator(mode="after")
    def _fits_together(self) -> "StoreSection":
        try:
            url = None if self.redis_url is None else read_redis_url(self.redis_url)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if self.durability == "none" and url is not None:
            raise ValueError("durability is none: no redis_url is allowed, nothing is stored")
        for name in ("username", "password_env", "password_file"):
            if getattr(self, f"redis_{name}") is not None and url is None:
                raise ValueError(f"redis_{name} is for a redis_url; none is given")
        for name in ("redis_password", "redis_sentinel_password"):
            if None not in (getattr(self, f"{name}_env"), getattr(self, f"{name}_file")):
                raise ValueError(f"{name}_env and {name}_file: one of them is allowed")
        for name in ("redis_sentinel_password_env", "redis_sentinel_password_file"):
            if getattr(self, name) is not None and (url is None or url.setup is not Setup.SENTINEL):
                raise ValueError(
                    f"{name} is for a redis_url that begins with redis+sentinel:// or"
                    " rediss+sentinel://"
                )
        for name in ("ca_file", "cert_file", "key_file"):
            if getattr(self, f"redis_tls_{name}") is not None and (url is None or not url.tls):
                raise ValueError(
                    f"redis_tls_{name} is for a redis_url with TLS: rediss://,"
                    " rediss+sentinel:// or rediss+cluster://"
                )
        if self.redis_tls_key_file is not None and self.redis_tls_cert_file is None:
            raise ValueError("redis_tls_key_file is the key of redis_tls_cert_file: name that too")
        return self


class PredictionSection(Section):
    """The predictor deployment, and the behaviour without it."""

    deadline_s: Positive = 0.02
    """Longest time that an application waits for its estimate; after that the ingress uses its own
    copy of the class means."""
    prior_output_tokens: Count = 256
    """Expected output of a call without `max_tokens`, in an unknown class (mean of the LMSYS sample
    in the VTC paper's data)."""
    max_classes: Count = 256
    """Largest number of classes with their own means, histories and models. Callers name the
    classes, so their number is bounded; all others share `other`."""
    replicas: Annotated[int, Field(gt=0, le=64)] = 1
    """Replicas of the predictor. One of them learns; all serve the same versions within a second.
    Use more than one to survive the loss of one."""
    minimum_samples: Annotated[int, Field(ge=LEAST_MINIMUM_SAMPLES)] = 10
    """Finished applications with known inputs from which on a class has a model; at least 8,
    because three are held back and a model needs five."""
    history_per_class: Annotated[int, Field(ge=100, le=100_000)] = 500
    """Finished applications of a class that are kept and trained on: with the default a training
    takes 20 s of one core. 100 to 100000."""
    models_dir: str | None = None
    """A directory of `justitia predictor train` with initial models, on every node of the
    predictor. Each model in it is imported once; later trainings start from it."""
    store_inputs: bool = False
    """Whether the texts of inputs are stored in Redis with the history. Their features (hashed word
    counts, measures) always are."""
    training_timeout_s: Positive = 900.0
    """Time after which a training is stopped, to be retried later. It runs in a separate process
    with the lowest priority."""

    @model_validator(mode="after")
    def _history_holds_what_a_model_takes(self) -> "PredictionSection":
        if self.minimum_samples > self.history_per_class:
            raise ValueError(
                f"minimum_samples is {self.minimum_samples}: at most history_per_class, "
                f"{self.history_per_class}, is allowed"
            )
        return self


class IngressSection(Section):
    """The HTTP interface."""

    max_outstanding: Count = 20_000
    """Largest number of submitted inferences of one ingress process that have not ended; more are
    refused with 429 and `Retry-After`."""
    max_body_bytes: Count = 16 * 2**20
    """Longest request body, 16 MiB; a longer one is refused with 413."""
    max_body_bytes_held: Count = 512 * 2**20
    """Largest total of the bodies above 64 KiB that one ingress process holds before counting their
    tokens, 512 MiB; more are refused with 429. They wait unparsed, and are parsed 24 MiB at a time,
    in fair turns between tenants: parsing a body takes up to ten times its size. One tenant may
    hold at most four times the size left free."""
    keepalive_s: Positive = 15.0
    """Longest silence of a stream, from the request to its end: in the queue, in a prefill, between
    tokens, and while it waits for another replica. Proxies and clients take silence as a lost
    connection, many after 60 s."""
    keepalive: Literal["event", "chunk", "comment", "none"] = "event"
    """Keep-alive sent on a silent stream; a call's `X-Justitia-Keepalive` overrides it. `event`:
    the API's own event, which clients count as activity (`ping` of Messages, `response.queued` and
    `keepalive` of Responses), and a comment on chats and completions, which have none, except a
    chunk for harnesses that ignore comments (Qwen Code). `chunk`: on chats and completions a chunk
    without text instead of comments, for clients that read each line as `data: JSON`. `comment`:
    comments everywhere. `none`: nothing."""
    submit_interval_s: NotNegative = 0.0
    """Time over which submissions are joined to a batch; they are also joined while a batch is
    under way."""
    retry_linger_s: NotNegative = 10.0
    """Time for which a request with an `Idempotency-Key` continues after its connection is lost;
    its retry joins it."""
    retry_kept_s: NotNegative = 60.0
    """Time for which the answer to a request with an `Idempotency-Key` can be read again."""
    retry_kept_bytes: Count = 64 * 2**20
    """Memory of all answers kept for retries, 64 MiB; beyond it the oldest that no request reads
    are dropped early, and then new keys are refused with 429."""
    attempts: Count = 20
    """Largest number of leases for one call before its caller gets an error; also the number of
    times that a stream may be cut."""


class MetricsSection(Section):
    """Series of the metrics, and the interval of their updates."""

    enabled: bool = True
    """Whether metrics are exported by Ray; [monitoring/README.md](monitoring/README.md) has a table
    of them."""
    interval_s: Positive = 2.0
    """Interval at which new values are given to Ray's exporter, which exports every 10 s
    (`metrics_report_interval_ms`)."""
    max_classes: LabelCount = 15
    """Largest number of application classes with their own series; callers name classes, and all
    others are `other`. With 15 tenants as well, the three histograms by class and tenant have at
    most 11,520 series per model."""
    max_tenants: LabelCount = 15
    """Largest number of tenants with their own series; all others are `other`."""


class TracingSection(Section):
    """Traces of applications, exported by OpenTelemetry."""

    endpoint: str | None = None
    """Collector to which spans are sent, by OTLP over HTTP: `http://collector:4318/v1/traces`.
    `null`: no tracing. Needs the extra `otel`."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of the applications that are traced, each with all its calls or with none."""
    parent: Literal["application", "caller"] = "application"
    """Trace of a call with a `traceparent`: `application`: that of its application, with a link to
    its caller's span; `caller`: its caller's, sampled if that is, with a link to the application's.
    """
    headers_env: str | None = None
    """Name of the environment variable, on every node, with headers for the collector:
    `name=value,name=value`."""
    headers_file: str | None = None
    """File, on every node, with headers for the collector, one per line."""

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^/\s]+/\S*", value):
            raise ValueError(
                f"{shown_short(value)}: http:// or https://, host and path are allowed, such as"
                " http://collector:4318/v1/traces"
            )
        return value


class TlsSection(Section):
    """Certificates of connections between the service's processes; both sides present one."""

    certificate: str
    """PEM file of this node's certificate chain, without the root."""
    key: str
    """PEM file of the private key of this node's certificate."""
    authority: str
    """PEM file of the authority that has signed the certificates of all nodes. Any holder of a
    certificate of this authority may connect, but also needs the scheduler's secret: use a private
    authority. Host names are not compared, because nodes are addressed by IP."""


Port = Annotated[int, Field(ge=1024, le=65_535)]


class TransportSection(Section):
    """Connections between ingress, scheduler and replica."""

    ports: tuple[Port, Port] | None = None
    """First and last port on which schedulers and replicas listen, for firewalls: each takes the
    first free one on its node, at the node's address in Ray. `null`: any free port."""
    tls: TlsSection | None = None
    """Encryption of the connections. Without it the handshake still proves the peer's identity, but
    data can be read and changed in transit: only for trusted networks."""
    standstill_s: Positive = 60.0
    """Time for which a replica or an ingress with a silent process (its event loop is busy, or it
    is stopped) keeps its connections and leases, while its machine answers. A peer whose process
    has ended is lost at once, one whose machine does not answer after 5 s."""

    @field_validator("ports")
    @classmethod
    def _rising(cls, ports: tuple[Port, Port] | None) -> tuple[Port, Port] | None:
        if ports is not None and ports[0] > ports[1]:
            raise ValueError(f"the first port, {ports[0]}, is above the last, {ports[1]}")
        return ports


class JwtIssuerSection(Section):
    """An issuer of JSON Web Tokens."""

    issuer: Annotated[str, Field(min_length=1)]
    """Exact value of a token's `iss`."""
    audience: Annotated[str, Field(min_length=1)]
    """Audience that a token's `aud` must contain."""
    jwks_url: str | None = None
    """URL of the issuer's public keys, `https://…`; `null`: from its discovery document,
    `ISSUER/.well-known/openid-configuration`. `http://` is allowed for this machine only."""
    jwks_ca_file: str | None = None
    """File of certificates trusted for `jwks_url`, on every node; `null`: those of the system."""
    algorithms: Annotated[tuple[JwtAlgorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    """Accepted signature algorithms; only asymmetric ones are allowed."""
    tenant_claim: str = "tenant"
    """Claim with the tenant: a path of names separated by dots, `org.team`. A token without it is
    refused."""
    tenant_below: str | None = None
    """Tenant above those of this issuer: `acme` makes `acme/search` of `search`. `null`: the issuer
    may name any tenant."""
    user_claim: str = "sub"
    """Claim with the user."""
    scope_claim: str = "scope"
    """Claim with the scopes, separated by blanks or as a list. Scopes that do not begin with
    `scope_prefix` are ignored."""
    scope_prefix: str = "justitia."
    """Prefix of the scopes: `justitia.infer justitia.own` grant `infer` and `own`."""
    max_weight: Positive = 1.0
    """Largest weight that a token's applications may request."""
    leeway_s: NotNegative = 30.0
    """Allowed difference between clocks."""


class AccessSection(Section):
    """Credentials of callers; see [access](#who-may-call)."""

    keys_file: str | None = None
    """A file of API keys, as `justitia keys create` writes it, on every node of the ingress. It is
    read again when it changes; if it cannot be read, the last version stays in force."""
    keys_in_redis: bool = False
    """Whether API keys are also read from the Redis of `store.redis_url`."""
    reload_s: Positive = 5.0
    """Interval at which keys are reloaded: the longest time that a revoked key is still accepted,
    and a new one is not."""
    jwt: tuple[JwtIssuerSection, ...] = ()
    """Issuers whose JSON Web Tokens are accepted."""
    anonymous: str = "deny"
    """`deny`: a call without a credential is answered with 401. Otherwise the tenant of these
    calls, which get the scopes `infer` and `own`."""
    anonymous_max_weight: Positive = 1.0
    """Largest weight that applications of calls without a credential may request."""

    @property
    def default_tenant(self) -> str | None:
        """Tenant of calls without a credential; None: they are refused."""
        return None if self.anonymous == "deny" else self.anonymous

    @model_validator(mode="after")
    def _somebody_may_call(self) -> "AccessSection":
        for name, tenant in [
            ("anonymous", self.default_tenant),
            *((f"jwt: {one.issuer}: tenant_below", one.tenant_below) for one in self.jwt),
        ]:
            if tenant is not None:
                try:
                    check_tenant(tenant)
                except RequestError as error:
                    raise ValueError(f"{name}: {error}") from None
        issuers = [one.issuer for one in self.jwt]
        if len(set(issuers)) != len(issuers):
            raise ValueError("jwt: each issuer is allowed once")
        if self.default_tenant is None and not (self.keys_file or self.keys_in_redis or self.jwt):
            raise ValueError(
                "nobody could call: name keys_file, keys_in_redis or jwt, or a tenant under"
                " anonymous"
            )
        return self


class SessionHeadersSection(Section):
    """Headers in which an operator's own agents name their sessions."""

    name: ClassName
    """Name of the rule, in statuses and metrics; ids of its applications begin with it."""
    run: HeaderName | None = None
    """Header with the id of the whole run, sub-agents included."""
    session: HeaderName | None = None
    """Header with the id of the session, if that is one agent of a run."""
    parent: HeaderName | None = None
    """Header with the id of the session that spawned it."""
    final: HeaderName | None = None
    """Header that is `true` at the session's last call."""
    application_class: ClassName | None = None
    """Class of the applications recognised by these headers; `null`: `default`."""

    @model_validator(mode="after")
    def _names_a_session(self) -> "SessionHeadersSection":
        if self.run is None and self.session is None:
            raise ValueError("run or session is required: the header that names the application")
        return self

    def harness(self) -> Harness:
        """Return the headers in the form that recognition reads."""
        return Harness(
            self.name,
            _as_names(self.run),
            _as_names(self.session),
            _as_names(self.parent),
            _as_names(self.final),
            self.application_class,
        )


def _as_names(header: str | None) -> tuple[str, ...]:
    return () if header is None else (header,)


class RecognitionSection(Section):
    """Rules by which a call's application is recognised; see [recognition](#which-application)."""

    rules: tuple[Literal[RULES], ...] = DEFAULT_RULES  # type: ignore[valid-type]
    """Rules in the order in which they are tried: `header` (`X-Justitia-Application`), `metadata`
    (`application_id` or `session_id` in the body's), `headers` (below), `harness` (headers of known
    harnesses; Qwen Code and pi also by conversation), `baggage`. Used only if listed: `user`,
    `prompt_cache_key` and `safety_identifier`, which name a person or a cache, and, at the end,
    `conversation`."""
    headers: tuple[SessionHeadersSection, ...] = ()
    """Headers of your own agents."""
    baggage_key: str = "justitia.application"
    """Key of the W3C header `baggage`."""
    conversation_idle_s: Positive = 60.0
    """Time without a call after which an application recognised by its conversation ends; each
    first call opens one, and all of them count as open."""

    @property
    def by_conversation(self) -> bool:
        """Whether the conversation identifies the application if no other rule does."""
        return CONVERSATION in self.rules

    @model_validator(mode="after")
    def _rules_are_in_order(self) -> "RecognitionSection":
        if len(set(self.rules)) != len(self.rules):
            raise ValueError("rules: each is allowed once")
        if CONVERSATION in self.rules[:-1]:
            raise ValueError(f"rules: {CONVERSATION} is allowed at the end only")
        names = [one.name for one in self.headers]
        taken = {*RULES, *(harness.name for harness in HARNESSES)}
        if len(set(names)) != len(names) or not taken.isdisjoint(names):
            raise ValueError(
                "headers: each name is allowed once, and none of a rule or a known harness"
            )
        return self


class SharedSections(Section):
    """Settings that all models of an application share."""

    name: Name = "justitia"
    """Part of the scheduler's name, of the keys in Redis and of the data directory. 1 to 64 of `A-Z
    a-z 0-9 . _ -`."""
    log_encoding: Literal["TEXT", "JSON"] | None = None
    """Log format of the Ingress, the Predictor and the replicas: `TEXT` or `JSON`. `null`: Serve's
    default; a `logging_config` of the Serve application then applies only to the Ingress, because
    the others have their own, without an access log. The scheduler always writes JSON lines, to its
    worker's log."""
    engine: EngineSection = EngineSection()
    replica: ReplicaSection = ReplicaSection()
    autoscaling: AutoscalingSection | None = None
    """Autoscaling of each model. `null`: the deployment's `num_replicas`."""
    scheduler: SchedulerSection = SchedulerSection()
    store: StoreSection = StoreSection()
    prediction: PredictionSection = PredictionSection()
    ingress: IngressSection = IngressSection()
    metrics: MetricsSection = MetricsSection()
    tracing: TracingSection = TracingSection()
    transport: TransportSection = TransportSection()
    recognition: RecognitionSection = RecognitionSection()
    access: AccessSection | None = None
    """Credentials of callers. `null`: all calls are allowed, for the tenant that the call names."""

    @model_validator(mode="after")
    def _keys_have_a_redis(self) -> Self:
        if self.access is not None and self.access.keys_in_redis and self.store.redis_url is None:
            raise ValueError("access.keys_in_redis is for a store.redis_url; none is given")
        return self

    @model_validator(mode="after")
    def _leases_are_reported_before_they_expire(self) -> Self:
        self._check_report_interval("replica", self.replica)
        return self

    def _check_report_interval(self, where: str, replica: ReplicaSection) -> None:
        most_s = self.scheduler.lease_timeout_s / 2
        if replica.report_interval_s > most_s:
            raise ValueError(
                f"{where}.report_interval_s is {replica.report_interval_s:g}: at most half of"
                f" scheduler.lease_timeout_s, {most_s:g}, is allowed, for a lease that runs has to"
                " be reported before it expires"
            )


class AppConfig(SharedSections):
    """Settings of one model with its queue; the arguments of an application with one model."""

    model: ModelSection

    @property
    def scheduler_name(self) -> str:
        """Name of the scheduler actor: one for each model of an application."""
        return f"scheduler/{self.name}/{self.model.name}"

    @property
    def store_name(self) -> str:
        """Prefix of the keys in Redis."""
        return f"{self.name}/{self.model.name}"

    @property
    def data_dir(self) -> Path:
        """Directory of the embedded Redis of this application and model."""
        flat = self.store_name.replace("/", "_")
        return Path(self.store.data_dir).expanduser() / flat

    @property
    def accounts_dir(self) -> Path:
        """Directory of the embedded Redis of the application's accounts."""
        return Path(self.store.data_dir).expanduser() / f"{self.name}__accounts"


Share = Annotated[float, Field(ge=0, le=1)]


class KvShareSection(Section):
    """A tenant's or a tier's share of the KV memory of each model, over all its replicas."""

    guaranteed: Share = 0.0
    """Share reserved for the tenant or the tier. The shares of sibling tenants add up to at most
    the parent's, those of tiers and of top-level tenants to at most 1. The part that is not lent is
    kept free from others."""
    max: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Largest share that may be held."""
    lends: Share = 1.0
    """Fraction of the guaranteed share that others may use while it is unused: 0 keeps it free."""


class QuotaSection(Section):
    """A limit on a tenant's usage in a period, over all models."""

    unit: Unit
    """`kv_token_time` (token·iterations), `tokens` (prompt and output), `computed_tokens` (without
    prompt tokens found in the engine's prefix cache), `inferences` or `applications`."""
    limit: Positive
    per: Period
    """`second`, `minute`, `hour`, `day` or `month` (30 days, if it is rolling)."""
    window: Window = Window.ROLLING
    """`rolling`, or `calendar`: the day or month of UTC."""
    on_exhausted: OnExhausted = OnExhausted.REJECT
    """Effect of an exhausted quota. `reject`: applications are refused. `deprioritise`: they run
    only when no application with quota waits. `shadow`: none, but metrics count what would have
    been rejected."""
    reserve_quantile: Annotated[float, Field(ge=0.5, le=1)] = 1.0
    """Tokens and `kv_token_time` reserved for a running inference, as a quantile of its prediction.
    1: the most that its `max_tokens` allow, so that the limit is exceeded by at most the error of
    one prediction; a lower quantile lets more inferences run at once."""

    @model_validator(mode="after")
    def _calendar_has_days(self) -> "QuotaSection":
        if self.window is Window.CALENDAR and self.per not in (Period.DAY, Period.MONTH):
            raise ValueError(f"window: calendar is for per: day or month, not {self.per.value}")
        if self.unit in (Unit.INFERENCES, Unit.APPLICATIONS) and self.limit != int(self.limit):
            raise ValueError(f"limit: a whole number of {self.unit.value} is allowed")
        return self


class CapsSection(Section):
    """Limits on one application of a tenant; further usage is refused."""

    inferences: Count | None = None
    """Largest number of inferences that the application may submit."""
    kv_token_time: Positive | None = None
    """Largest KV token-time that the application may be served, in token·iterations."""
    seconds: Positive | None = None
    """Time from the application's opening in which it may submit inferences."""


class TenantSection(Section):
    """A node of the tree of tenants."""

    weight: Positive | None = None
    """Weight among its siblings. `null`: that of its applications; for a node with children 1, or
    `max_weight` if that is less."""
    max_weight: Positive | None = None
    """Largest weight that applications of the tenant may request; at most the parent's."""
    kv_share: KvShareSection = KvShareSection()
    quotas: tuple[QuotaSection, ...] = ()
    """Limits over periods, one for each unit and period. The quotas of all nodes above apply to an
    application too."""
    caps: CapsSection = CapsSection()
    deadline_s: Positive | None = None
    """Longest waiting time of an inference, after which it is refused, if the call sets no
    deadline."""

    def node(self) -> TenantNode:
        """Return the node in the form that the scheduler uses."""
        return TenantNode(
            self.weight,
            self.max_weight,
            KvShare(self.kv_share.guaranteed, self.kv_share.max, self.kv_share.lends),
            tuple(Quota(**dict(quota)) for quota in self.quotas),
            ApplicationCaps(**dict(self.caps)),
            self.deadline_s,
        )


class TierSection(Section):
    """A service tier."""

    weight_factor: Positive | None = None
    """Factor on the weight of the tier's applications. `null`: 0.1 for `flex`, 1 for `default`, 4
    for `priority`."""
    kv_share: KvShareSection = KvShareSection()
    """Share of the KV memory for the tier's applications, over all tenants."""

    def tier(self, name: str) -> Tier:
        """Return the tier in the form that the scheduler uses."""
        factor, share = self.weight_factor, self.kv_share
        return Tier(
            TIERS[name].weight_factor if factor is None else factor,
            KvShare(share.guaranteed, share.max, share.lends),
        )


def _tree_of(
    sections: Mapping[str, TenantSection], weights: Mapping[str, float] | None = None
) -> TenantTree:
    return TenantTree({path: section.node() for path, section in sections.items()}, weights or {})


class SchedulingConfig(Section):
    """Scheduling order of one model's queue, which can change while the application runs."""

    policy: str = "justitia"
    """Policy: a name in the table below, or the import path of your own, `package.module:Class`."""
    policy_options: dict[str, Any] = Field(default={})
    """Options of the policy: those of every policy and its own, both listed below. An unknown
    option is an error."""
    admission: str = "peak"
    """`peak`: the predicted largest KV of all running inferences must fit the memory, so that vLLM
    recomputes nothing (a difference of 0.2 points of mean completion time in the design's study).
    `prompt`: the prompt must fit now, as in vLLM and the paper."""
    tenant_weights: dict[str, Positive] = Field(default={})
    """Weight of a tenant's applications that request none, from the nearest named node above them;
    1 otherwise. Applies to applications opened from then on. Also the weight of that tenant among
    its siblings once it has tenants below it."""
    tenants: dict[str, TenantSection] = Field(default={})
    """The tree of tenants, by path: `acme`, `acme/search`. `acme/*` applies to children of `acme`
    that are not named, `*` to top-level tenants that are not named; see below."""
    tiers: dict[Literal["flex", "default", "priority"], TierSection] = Field(default={})
    """Settings of a request's `service_tier`, by tier."""

    @property
    def tenant_tree(self) -> TenantTree:
        """Tree of tenants, with their weights."""
        return _tree_of(self.tenants, self.tenant_weights)

    @property
    def service_tiers(self) -> dict[str, Tier]:
        """Service tiers by name, with defaults."""
        own = {str(name): section.tier(name) for name, section in self.tiers.items()}
        return {**TIERS, **own}

    @model_validator(mode="after")
    def _tree_holds_together(self) -> "SchedulingConfig":
        for path in self.tenants:
            parent, _, last = path.rpartition("/")
            try:
                check_tenant(parent or "any" if last == ANY else path)
            except RequestError as error:
                raise ValueError(f"tenants: {error}") from None
        both = sorted(set(self.tenants) & set(self.tenant_weights))
        if both:
            raise ValueError(f"tenant_weights: {both[0]!r} is in tenants, too; name it there only")
        try:
            check_guaranteed(_tree_of(self.tenants), self.service_tiers)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def advice(self) -> str | None:
        """Advice for a policy or an option that has moved; None: there is none."""
        return advice(self.policy, self.policy_options)

    @model_validator(mode="after")
    def _known_names(self) -> "SchedulingConfig":
        if self.admission not in ADMISSIONS:
            raise ValueError(f"admission: {self.admission!r} is not one of {', '.join(ADMISSIONS)}")
        try:
            parse_options(*in_force(self.policy, self.policy_options))
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


class ModelEntry(ModelSection):
    """An entry of `models`."""

    engine: EngineSection | None = None
    """Engine of this model; `null`: the application's."""
    replica: ReplicaSection | None = None
    """Replica settings of this model; `null`: the application's."""
    autoscaling: AutoscalingSection | None = None
    """Autoscaling of this model; `null`: the application's."""


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model, and the deployments that serve it."""

    config: AppConfig
    replicas: str
    """Name of the deployment of the model's engines."""
    predictor: str
    """Name of the deployment of the model's predictor."""


class AppArgs(SharedSections):
    """Arguments of `justitia_ray.serve.app:build`: `model`, or `models`."""

    model: ModelSection | None = None
    models: tuple[ModelEntry, ...] = ()
    """Several models instead of `model`; exactly one of the two is required; see below."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the models, without those of their adapters."""
        return tuple(model.name for model in self._all())

    def each_model(self) -> tuple[PlacedModel, ...]:
        """Return the settings and deployments of each model, in the order of the arguments."""
        shared = {name: getattr(self, name) for name in SharedSections.model_fields}
        if self.model is not None:
            only = AppConfig(**shared, model=self.model)
            return (PlacedModel(only, "Replica", "Predictor"),)
        placed = []
        for entry in self.models:
            own = {
                "model": ModelSection(**entry.model_dump(include=set(ModelSection.model_fields))),
                "engine": entry.engine or self.engine,
                "replica": entry.replica or self.replica,
                "autoscaling": entry.autoscaling or self.autoscaling,
            }
            suffix = _suffix(entry.name)
            config = AppConfig(**(shared | own))
            placed.append(PlacedModel(config, f"Replica-{suffix}", f"Predictor-{suffix}"))
        return tuple(placed)

    def _all(self) -> Sequence[ModelSection]:
        return self.models if self.model is None else (self.model,)

    @model_validator(mode="after")
    def _models_are_told_apart(self) -> "AppArgs":
        if (self.model is None) == (not self.models):
            given = "both are given" if self.models else "neither is given"
            raise ValueError(f"model, or models with at least one, is required ({given})")
        owners: dict[str, str] = {}
        alike: dict[str, str] = {}
        for model in self._all():
            if isinstance(model, ModelEntry) and model.replica is not None:
                self._check_report_interval(f"models: {model.name}: replica", model.replica)
            for name in (*model.names, *model.aliases):
                if name in owners:
                    raise ValueError(
                        f"models: {name!r} is a name of {owners[name]!r} and of {model.name!r}:"
                        " each name, of an adapter or an alias too, is allowed once"
                    )
                owners[name] = model.name
            suffix = _suffix(model.name)
            other = alike.setdefault(suffix.replace("_", "-"), model.name)
            if other != model.name:
                raise ValueError(
                    f"models: {other!r} and {model.name!r} differ in punctuation only, which names"
                    " of deployments and directories leave out: give one of them another name"
                )
            if self.models and len(f"Predictor-{suffix}") > _LONGEST_DEPLOYMENT:
                raise ValueError(
                    f"models: the name {shown_short(model.name)} is too long for a deployment:"
                    f" {_LONGEST_DEPLOYMENT - len('Predictor-')} characters are allowed"
                )
        return self


class AppSettings(SchedulingConfig):
    """`user_config` of the Ingress deployment: settings for all models, and differences of some."""

    models: dict[str, dict[str, Any]] = Field(default={})
    """With several models: the keys of this table that differ for a model, by its name."""

    def fair_between_tenants(self) -> "AppSettings":
        """Return the settings for authenticated tenants: `justitia` shares between them first.

        Settings with another `fairness`, or with a clock that does not support it, stay as they
        are.
        """
        options = self.policy_options
        if self.policy != "justitia" or "fairness" in options or "clock" in options:
            return self
        return self.model_copy(update={"policy_options": options | {"fairness": "tenant"}})

    def each_model(self, names: Sequence[str]) -> dict[str, SchedulingConfig]:
        """Return the settings of each of these models.

        Raises:
            ConfigError: If there are settings for another model, or some are not allowed.
        """
        for name in self.models:
            if "tenants" in self.models[name]:
                raise ConfigError(
                    f"models.{name}: tenants is for all models: name it outside of models"
                )
            if name not in names:
                raise ConfigError(
                    f"models: there is no model {shown_short(name)}; {', '.join(names)}"
                    f" {'are' if len(names) > 1 else 'is'} served"
                )
        return {name: self._of_model(name) for name in names}

    def _of_model(self, name: str) -> SchedulingConfig:
        own = self.models.get(name, {})
        shared = self.model_dump(include=set(SchedulingConfig.model_fields))
        if own.get("policy", self.policy) != self.policy:
            shared["policy_options"] = {}  # options of one policy are not valid for another
        return SchedulingConfig.parse(shared | own, f"models.{name}: ")


def describe(error: ValidationError) -> str:
    """Return a sentence for each mistake: key, value, allowed values."""
    lines = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"]) or "configuration"
        value = "" if isinstance(item["input"], dict) else f" (got {shown_short(item['input'])})"
        lines.append(f"{key}: {item['msg']}{value}")
    return "; ".join(lines)


def _suffix(name: str) -> str:
    return _NOT_IN_DEPLOYMENTS.sub("-", name)
