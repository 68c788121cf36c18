"""The schema of the one YAML: Serve's `args` of an application, and its Ingress's `user_config`.

`AppArgs` and `AppSettings` are read from the file. Both come apart into what each model goes by,
`AppConfig` and `SchedulingConfig`, so that nothing below the ingress knows how many models there
are. A change of `args` restarts deployments; a change of `user_config` reaches the running
scheduler, and the queue stays.

The text below a key is its description for operators: `scripts/write_tables` makes the tables of
deployments/README.md of it. Units are in the keys.
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
"""Serve takes `#` for a separator, and makes names of log files from names of deployments."""
_LONGEST_DEPLOYMENT = 128
_LONGEST_CONTEXT = 10**9
"""A file's name has 255 characters, the application's name and the replica's id among them."""

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
    """A frozen part of the schema; a key that is not in it is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str = "") -> Self:
        """Return values as the schema has them.

        Args:
            values: As they were given.
            where: Put before what is wrong.

        Raises:
            ConfigError: If a key is unknown or a value is not allowed; names every one of them.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{where}{describe(error)}") from error


# --- sections of `args`


class ModelSection(Section):
    """A served model."""

    name: ModelName
    """Name that callers put in `model`."""
    path: str
    """A local directory, a hub name, or a model of random weights that is built on the spot:
    `random:tiny-llama`, `random:small-llama`, `random:tiny-embedding`, `random:tiny-reranker`, and
    `random:llama-2-7b` and `random:llama-3-8b`, which have no weights and need `load_format:
    dummy`. The fake engine does not look at it."""
    cache_dir: str = "~/.cache/justitia_ray/models"
    """Where a `random:` model is built."""
    adapters: dict[ModelName, str] = Field(default={})
    """LoRA adapters: the name that callers put in `model`, and a local directory or hub name
    (`random:tiny-adapter` for the tiny Llama). They run on the model's replicas and wait in its
    queue. vLLM gets `enable_lora` and a slot for each (`max_loras`); one of a rank above 16 needs
    `max_lora_rank` in `engine.vllm_args`."""
    aliases: tuple[ModelName, ...] = ()
    """Other names that callers may put in `model`, and patterns of such with `*`, `?` and `[…]`:
    `gpt-4o`, `claude-haiku-*`; `*` is every name that no model has. A name goes before a pattern, a
    longer pattern before a shorter. Answers name the model itself. None: harnesses ask for models
    that are not served, and should learn that."""
    reasoning_efforts: dict[str, str] = Field(default={})
    """The effort to ask the model for, by that which callers name (`reasoning_effort`,
    `reasoning.effort`, `output_config.effort`): `minimal: low, max: high` for a template that knows
    low, medium and high. Others are passed on."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that callers may put in `model`: all of them share one queue."""
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
    """An engine that sleeps as a GPU would: for tests and for measuring the rest of the path."""

    kv_tokens: Count = 7_344
    """KV memory M in tokens: 459 blocks of 16, the paper's A10 (v1, Sec. V-A)."""
    block_size: Count = 1
    """KV is given out in blocks of so many tokens."""
    max_num_seqs: Count = 256
    """Sequences that run at once; as vLLM's option."""
    max_model_len: Count = 4_096
    """Longest prompt plus output of one sequence."""
    iteration_s: NotNegative = 0.03
    """Time of a decode iteration; about a 7B model on an A10 (v1, Sec. V)."""
    prefill_s_per_token: NotNegative = 0.0
    """Time an iteration takes longer for each prompt token computed in it."""
    max_num_batched_tokens: Count = 8_192
    """Tokens that an iteration computes at most, of longer prompts a chunk; as vLLM's option."""
    enable_prefix_caching: bool = True
    """Whether the beginning of a prompt that was computed before is not computed again, by vLLM's
    rules; as vLLM's option. Salts are those of `cache_isolation`."""
    enable_prompt_tokens_details: bool = False
    """Whether `usage` tells how many prompt tokens were in the cache; as vLLM's option."""


class EngineSection(Section):
    """The engine inside each replica."""

    kind: Literal["vllm", "fake"] = "vllm"
    """`vllm`, or `fake`: an engine that sleeps as a GPU would, and answers chats, completions and
    `/tokenize`, `/detokenize` only."""
    vllm_args: dict[str, str | int | float | bool] = Field(default={})
    """Options of `vllm serve`, with underscores and without dashes: `max_model_len: 2048`.
    `scheduling_policy` is always `priority`, `data_parallel_size` 1, `sse_keep_alive_interval` 0
    (waiting streams are kept alive by `ingress.keepalive_s`). Options of vLLM's HTTP server
    (`port`, `api_key`, `root_path`, `middleware`, `ssl_*`) are the service's and are refused. The
    ingress goes by `max_model_len` until a replica has told the context of its engine: without one
    it cannot refuse what is too long before that. Tools that a model may choose to call need
    `enable_auto_tool_choice: true` and `tool_call_parser`; reasoning needs `reasoning_parser`.
    With `enable_prompt_tokens_details: true` callers see what was cached of their prompts.
    `long_prefill_token_threshold` is always 0: prompts that begin alike share their memory.
    `lora_modules` stands under `model.adapters`."""
    cache_isolation: Literal["tenant", "top", "shared"] = "tenant"
    """Which callers may find each other's prompts in vLLM's prefix cache: those of one tenant, the
    whole path (`tenant`), of one tree (`top`: the first part of the path), or all (`shared`: a
    caller learns from `cached_tokens` and the time to the first token what others have sent). A
    system prompt that all tenants send is computed and kept for each. A caller's own `cache_salt`
    divides further."""
    max_cache_salts: Count = 1_000
    """Salts (`cache_salt`) that the callers of one tenant may use at a time; a replica forgets one
    ten minutes after its last use. Each holds a copy of what it caches. Another one is refused with
    400."""
    grammar_timeout_s: Positive | None = 5.0
    """Longest time that a grammar (a JSON schema, a regex, a list of choices, forced tools) may
    take to compile. A process beside the replica compiles each first, and what takes longer is
    refused with 400: vLLM compiles on its event loop, where a schema of alternatives that nest
    stops all streams for minutes. The process starts with the first grammar. `null`: none does, as
    in vLLM."""
    grammar_memory_bytes: Count = 2**30
    """Most memory that compiling a grammar may take, 1 GiB; what takes more is refused with 400."""
    env: dict[str, str] = Field(default={})
    """Environment of the replica, set before vLLM is imported. Variables that change vLLM's HTTP
    application (`VLLM_API_KEY`, `VLLM_SERVER_DEV_MODE`, …) are refused; where a node has them they
    are dropped, with a warning."""
    metrics: bool = True
    """Whether vLLM's own metrics are in Ray's exporter, as `ray_vllm_…`, for Ray's dashboard of
    LLMs; see [observability.md](observability.md#the-engines-metrics) for their cost."""
    start_timeout_s: Positive = 3_600.0
    """An engine that has not started after this time, its model loaded, is given up: its process
    ends, and Serve starts another. vLLM itself waits without end for one that hangs."""
    fake: FakeEngineSection = FakeEngineSection()

    @model_validator(mode="after")
    def _has_a_context(self) -> "EngineSection":
        _ = self.declared_context
        return self

    @property
    def declared_context(self) -> Tokens | None:
        """Context of the model as it is declared; None: vLLM finds it, by itself or as `auto`.

        Raises:
            ValueError: If vLLM does not take it.
        """
        if self.kind == "fake":
            return self.fake.max_model_len
        given = {name.replace("-", "_"): value for name, value in self.vllm_args.items()}
        value = given.get("max_model_len")
        return None if value is None else _context_of(value)


def _context_of(value: str | int | float | bool) -> Tokens | None:
    """Return a `max_model_len` as vLLM reads it: `2k` are 2,000 and `2K` 2,048; None for `auto`."""
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
    """Running inferences are reported that often, ends of inferences at once; virtual time moves
    with both. At most half of `scheduler.lease_timeout_s`, for this report says that a lease
    runs."""
    pull_interval_s: NotNegative = 0.01
    """Ends of inferences are gathered over this time after a pull: one costs about 2 ms of CPU."""
    heartbeat_s: Positive = 1.0
    """Longest pull while nothing runs; well below `scheduler.replica_timeout_s`."""
    chunk_interval_s: NotNegative = 0.0
    """Stream chunks are joined over this time after the first: a chunk costs CPU on its way, its
    tokens hardly any. 0 joins those of one turn of the event loop."""
    cache_fill_s: NotNegative = 0.0
    """Longest time for which a new replica, which serves already, counts as starting for Serve,
    until the prompt tokens that it has computed would fill its KV memory, or no call has come for
    2 s. A rolling update waits for it before it stops more old replicas, each with the contexts of
    its agents; so does a deployment under load. 0: Serve goes on at once."""
    lease_grace_s: Positive = 1.0
    """A payload may come so long before its lease, whose message may be on its way."""
    stall_factor: NotNegative = 5.0
    """An engine that has work and has made no step for so many times its longest step of late, plus
    `stall_allowance_s`, is stalled: its leases go on elsewhere, and it gets no new ones until it
    makes a step. Steps differ: the last piece of a long prompt takes several times the first."""
    stall_allowance_s: Positive = 15.0
    """Time that a step may take longer because it compiles a kernel or loads an adapter; the first
    16 steps may take four times as long. More for an engine whose single steps take longer than
    this (a large `max_num_batched_tokens` on a CPU)."""
    stall_replace_s: Positive = 60.0
    """An engine that has been stalled for so long is killed with its process, and Serve starts
    another: which takes minutes with a large model, so that one that goes on by itself is waited
    for."""


_LEAST_PATIENCE_S = 120.0


class AutoscalingSection(Section):
    """How many replicas a model has: as many as its queue asks for."""

    min_replicas: Annotated[int, Field(ge=0)] = 1
    """Replicas at least. 0: none while nothing is open; the first call then waits for one to
    load."""
    max_replicas: Count
    """Replicas at most: what the cluster has engines' worth of GPUs for, or what may be spent."""
    initial_replicas: Annotated[int, Field(ge=0)] | None = None
    """Replicas after a deployment; `null`: `min_replicas`."""
    target_drain_s: Positive = 60.0
    """All that waits, runs, and is expected of open applications is to be served within this time:
    shorter is faster and dearer."""
    load_s: Positive = 120.0
    """Time that a replica takes to load, until some have been seen to: work that will have been
    served by then starts none."""
    hold_s: NotNegative = 60.0
    """An application of which nothing waits or runs (a tool gap) counts for so long: a replica
    stays for it."""
    upscale_delay_s: NotNegative = 10.0
    """More replicas are started when they have been wanted for so long; from 0, at once. Serve's
    own default is 30 s, for a count of requests that says less."""
    downscale_delay_s: NotNegative | None = None
    """Replicas are drained when fewer have been wanted for so long. `null`: twice `load_s`, 120 s
    at least, for one that goes too soon has to load again. Serve's own default is 600 s."""
    downscale_to_zero_delay_s: NotNegative | None = None
    """Delay before the last one is drained; `null`: as `downscale_delay_s`."""
    poll_s: Positive = 1.0
    """Ray Serve's controller asks the scheduler so often."""
    external: bool = False
    """Whether something else starts and stops replicas, by the metric `justitia_wanted_replicas`:
    Serve then does not. See autoscaling.md."""

    @property
    def patience_s(self) -> float:
        """Time for which fewer are wanted before replicas are drained, in seconds."""
        if self.downscale_delay_s is None:
            return max(_LEAST_PATIENCE_S, 2 * self.load_s)
        return self.downscale_delay_s

    @property
    def rules(self) -> SizingRules:
        """Rules that the scheduler sizes replicas by."""
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
    """Time-outs and limits of the scheduler actor."""

    num_cpus: Annotated[float, Field(gt=0)] = 0.1
    """CPUs that Ray sets aside for the actor. Above 0, so that a head node that offers none does
    not get it."""
    namespace: Name = "justitia"
    """Ray namespace of the actor."""
    lease_timeout_s: Positive = 5.0
    """A lease whose payload has not come by then expires; its inference waits again."""
    replica_timeout_s: Positive = 4.0
    """A silent replica without a connection is taken for lost, so that its work is leased again
    within 5 s; one that has a connection lives (`transport.standstill_s`), and is leased nothing
    more."""
    ingress_timeout_s: Positive = 30.0
    """A silent ingress is taken for lost, and its inferences are ended. Above the 20 s of a
    long-poll."""
    application_idle_s: Positive = 600.0
    """An application with nothing waiting or running ends by itself after this time; tool gaps are
    shorter."""
    recovery_s: Positive = 3.0
    """A new scheduler grants nothing before every known replica has reported, but waits no longer
    than this."""
    quota_timeout_s: Positive = 10.0
    """Where quotas are configured: how long an application, or an inference, waits for the accounts
    to grant it, or for others in flight to leave it enough. Then it is refused, or let in if no
    quota of its tenant rejects."""
    engine_deaths_allowed: Annotated[int, Field(ge=0)] = 2
    """Engines that may die of one call: then it is refused with 502, if no other ran on all of
    them. 1 blames whatever ran alone on an engine that died of something else. 0 blames nothing:
    what ran on a dead engine is leased again at once, up to `ingress.attempts` times. See
    [troubleshooting.md](troubleshooting.md#a-call-that-kills-its-engine)."""
    abandoned_s: Positive = 600.0
    """The actor ends itself when nobody has called for so long."""
    max_waiting_inferences: Count = 200_000
    """Inferences that wait or run; more are refused with 429. They take 0.2 to 0.6 GB. One tenant
    may have at most four times what is left free."""
    max_open_applications: Count = 50_000
    """Applications that have not ended, idle ones too; more are refused with 429, with the same
    share of a tenant. They take 0.2 GB; saving all of them keeps the scheduler for 0.3 to 0.5 s.
    Calls that name no application are one each: raise it where so many of those wait."""


class StoreSection(Section):
    """Redis: an embedded server, or one that is there."""

    durability: Literal["batched", "strict", "none"] = "batched"
    """`batched`, `strict` (a tag is stored before it is given out) or `none` (no Redis, nothing is
    kept); see below."""
    strict_timeout_s: Positive = 5.0
    """With `strict`: how long an application may wait to be stored before it is refused with
    503."""
    redis_url: str | None = None
    """A server `redis://host:6379/0` or `unix:///path`, Sentinel
    `redis+sentinel://h1:26379,h2:26379/service/0`, a cluster `redis+cluster://h1:6379,h2:6379`;
    `rediss` in place of `redis` for TLS. No user, no password. `null`: a Redis server of our own,
    for one node; a cluster of several nodes is refused."""
    redis_username: str | None = None
    """User of Redis's access control list."""
    redis_password_env: str | None = None
    """Name of the environment variable that holds the password, on every node."""
    redis_password_file: str | None = None
    """In place of `redis_password_env`: a file on every node that holds the password. It is read at
    each connect, so that a password may change while the service runs; a variable may not."""
    redis_sentinel_password_env: str | None = None
    """Name of the variable with the Sentinels' own password."""
    redis_sentinel_password_file: str | None = None
    """In place of it: a file, read at each connect."""
    redis_tls_ca_file: str | None = None
    """Certificates that are trusted, a file on every node; `null`: those of the system."""
    redis_tls_cert_file: str | None = None
    """Our certificate, where Redis asks for one."""
    redis_tls_key_file: str | None = None
    """Key of that certificate; `null`: in the same file."""
    data_dir: str = "~/.local/share/justitia_ray"
    """Where the embedded server keeps its data, in a directory for each application and model. Not
    on a network file system."""
    save_interval_s: Positive = 0.5
    """Changes are saved that often: a scheduler that dies can lose so much of the accounts. The
    design allows 1 s."""

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
    """The predictor deployment, and what is done without it."""

    deadline_s: Positive = 0.02
    """An application is not held up longer for its estimate; after that the ingress takes its own
    copy of the class means."""
    prior_output_tokens: Count = 256
    """Output expected of a call without `max_tokens`, in a class that nothing is known of (mean of
    the LMSYS sample in the VTC paper's data)."""
    max_classes: Count = 256
    """Classes with means, histories and models of their own. Callers make classes, so their number
    is bounded; the rest share `other`."""
    replicas: Annotated[int, Field(gt=0, le=64)] = 1
    """Replicas of the predictor. One of them learns; all serve the same versions within a second.
    More than one is for when one dies."""
    minimum_samples: Annotated[int, Field(ge=LEAST_MINIMUM_SAMPLES)] = 10
    """Finished applications with known inputs from which on a class has a model; 8 at least, for
    three are held back and a model takes five."""
    history_per_class: Annotated[int, Field(ge=100, le=100_000)] = 500
    """Finished applications of a class that are kept and trained on: with so many a training takes
    20 s of one core. 100 to 100000."""
    models_dir: str | None = None
    """A directory of `justitia predictor train` to begin with, on every node of the predictor. Each
    model in it is brought once; from then on trainings go on from it."""
    store_inputs: bool = False
    """Whether the texts of inputs are kept in Redis with the history. Their features (hashed word
    counts, measures) always are."""
    training_timeout_s: Positive = 900.0
    """A training that takes longer is given up and tried again later. It runs in a process of its
    own with the least priority."""

    @model_validator(mode="after")
    def _history_holds_what_a_model_takes(self) -> "PredictionSection":
        if self.minimum_samples > self.history_per_class:
            raise ValueError(
                f"minimum_samples is {self.minimum_samples}: at most history_per_class, "
                f"{self.history_per_class}, is allowed"
            )
        return self


class IngressSection(Section):
    """The HTTP side."""

    max_outstanding: Count = 20_000
    """Inferences that one ingress process has submitted and not ended; more are refused with 429
    and `Retry-After`."""
    max_body_bytes: Count = 16 * 2**20
    """Longest request body, 16 MiB; a longer one is 413."""
    max_body_bytes_held: Count = 512 * 2**20
    """Bytes of the bodies above 64 KiB that one ingress process has and has not counted yet, 512
    MiB; more are refused with 429. They wait as they came, and are read 24 MiB at a time, in fair
    turns between tenants: a body that is read takes up to ten times its bytes. One tenant may hold
    at most four times what is left free."""
    keepalive_s: Positive = 15.0
    """A stream is silent for so long at most, from the request to its end: in the queue, in a
    prefill, between tokens, and while it waits for another replica. Proxies and clients take
    silence for a lost connection, many after 60 s."""
    keepalive: Literal["event", "chunk", "comment", "none"] = "event"
    """What a silent stream gets; a call's `X-Justitia-Keepalive` goes before it. `event`: the API's
    own event, which clients count as activity (`ping` of Messages, `response.queued` and
    `keepalive` of Responses), and a comment on chats and completions, which have none, but a chunk
    for harnesses that count no comments (Qwen Code). `chunk`: on these a chunk without text, and no
    comments, for clients that take each line for `data: JSON`.
    `comment`: comments everywhere. `none`: nothing."""
    submit_interval_s: NotNegative = 0.0
    """Submissions are joined over this time, and while a batch is on its way in any case."""
    retry_linger_s: NotNegative = 10.0
    """A request with an `Idempotency-Key` goes on for so long after its connection is gone; its
    retry joins it."""
    retry_kept_s: NotNegative = 60.0
    """The answer to such a request can be read again for so long."""
    retry_kept_bytes: Count = 64 * 2**20
    """Memory of all answers kept for retries, 64 MiB; beyond it the oldest that nobody reads go
    before their time, and then new keys are refused with 429."""
    attempts: Count = 20
    """Leases that one call may use up before its caller gets an error; a stream may be cut so
    often."""


class MetricsSection(Section):
    """The series of the metrics, and how often they are brought up to date."""

    enabled: bool = True
    """Whether Ray's exporter is given metrics; [monitoring/README.md](monitoring/README.md) has a
    table of them."""
    interval_s: Positive = 2.0
    """How often the exporter is given what is new. Ray exports it every 10 s
    (`metrics_report_interval_ms`)."""
    max_classes: LabelCount = 15
    """Application classes that have series of their own; callers make them, and the rest is
    `other`. With 15 tenants too, the three histograms by class and tenant have at most 11,520
    series a model."""
    max_tenants: LabelCount = 15
    """Tenants that have series of their own; the rest is `other` here, too."""


class TracingSection(Section):
    """Traces of applications, exported by OpenTelemetry."""

    endpoint: str | None = None
    """Collector that is sent the spans, by OTLP over HTTP: `http://collector:4318/v1/traces`.
    `null`: nothing is traced. Needs the extra `otel`."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of the applications that are traced, each with all its calls or with none."""
    parent: Literal["application", "caller"] = "application"
    """Whose trace a call belongs to if it brings a `traceparent`: that of its application, with a
    link to its caller's span; or its caller's, and traced if that is, with a link to the
    application's."""
    headers_env: str | None = None
    """Name of the environment variable, on every node, with headers for the collector:
    `name=value,name=value`."""
    headers_file: str | None = None
    """File, on every node, with such headers, one a line."""

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
    """Certificates of the connections between the service's own processes; both sides show one."""

    certificate: str
    """PEM file of this node's certificate, and those between it and the authority's."""
    key: str
    """PEM file of its private key."""
    authority: str
    """PEM file of the authority that has signed the certificates of all nodes. Whoever has a
    certificate of it may connect, and still has to know the scheduler's secret: use a private one.
    Host names are not compared, for nodes are called by their addresses."""


Port = Annotated[int, Field(ge=1024, le=65_535)]


class TransportSection(Section):
    """The connections between ingress, scheduler and replica."""

    ports: tuple[Port, Port] | None = None
    """First and last port at which schedulers and replicas listen, for firewalls: each takes the
    first that is free on its node, on the address that Ray knows the node by. `null`: any free
    port."""
    tls: TlsSection | None = None
    """Encrypts the connections. Without it the handshake still proves who connects, but what is
    sent can be read and changed on the way: only for networks that can be trusted."""
    standstill_s: Positive = 60.0
    """A replica or an ingress whose process is silent (its event loop is busy, or it is stopped)
    keeps its connections and leases for so long, while its machine answers. One whose process has
    ended is lost at once, one whose machine does not answer after 5 s."""

    @field_validator("ports")
    @classmethod
    def _rising(cls, ports: tuple[Port, Port] | None) -> tuple[Port, Port] | None:
        if ports is not None and ports[0] > ports[1]:
            raise ValueError(f"the first port, {ports[0]}, is above the last, {ports[1]}")
        return ports


class JwtIssuerSection(Section):
    """An issuer of JSON Web Tokens."""

    issuer: Annotated[str, Field(min_length=1)]
    """Value of a token's `iss`, exactly."""
    audience: Annotated[str, Field(min_length=1)]
    """A token's `aud` has to name it."""
    jwks_url: str | None = None
    """Where the issuer's public keys are, `https://…`; `null`: as its discovery document says,
    `ISSUER/.well-known/openid-configuration`. `http://` is allowed for this machine only."""
    jwks_ca_file: str | None = None
    """Certificates that are trusted there, a file on every node; `null`: those of the system."""
    algorithms: Annotated[tuple[JwtAlgorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    """Signatures that are accepted, of the asymmetric ones."""
    tenant_claim: str = "tenant"
    """Claim with the tenant: a path of names with dots between, `org.team`. A token without it is
    refused."""
    tenant_below: str | None = None
    """Tenant that those of this issuer are below: `acme` makes `acme/search` of `search`. `null`:
    its word is taken for any tenant."""
    user_claim: str = "sub"
    """Claim with the user."""
    scope_claim: str = "scope"
    """Claim with the scopes, with blanks between or as a list. Those that do not begin with
    `scope_prefix` are others' business."""
    scope_prefix: str = "justitia."
    """`justitia.infer justitia.own` give `infer` and `own`."""
    max_weight: Positive = 1.0
    """Largest weight that a token's applications may ask for."""
    leeway_s: NotNegative = 30.0
    """Clocks may differ by so much."""


class AccessSection(Section):
    """Credentials of callers; see [access](#who-may-call)."""

    keys_file: str | None = None
    """A file of API keys, as `justitia keys create` writes it, on every node of the ingress. It is
    read again when it changes; one that cannot be read leaves the last one in force."""
    keys_in_redis: bool = False
    """Whether API keys are in the Redis of `store.redis_url`, too."""
    reload_s: Positive = 5.0
    """How often keys are looked at: a revoked key is good for so long, and a new one unknown."""
    jwt: tuple[JwtIssuerSection, ...] = ()
    """Issuers whose JSON Web Tokens are accepted."""
    anonymous: str = "deny"
    """`deny`: a call without a credential is answered with 401. Or the tenant that such calls are
    for, with the scopes `infer` and `own`."""
    anonymous_max_weight: Positive = 1.0
    """Largest weight that applications of such calls may ask for."""

    @property
    def default_tenant(self) -> str | None:
        """The tenant of calls without a credential; None: they are refused."""
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
    """The rule's name, in statuses and metrics; ids of its applications begin with it."""
    run: HeaderName | None = None
    """Header of the whole run, sub-agents included."""
    session: HeaderName | None = None
    """Header of the session, if that is one agent of a run."""
    parent: HeaderName | None = None
    """Header of the session that spawned it."""
    final: HeaderName | None = None
    """Header that is `true` at the session's last call."""
    application_class: ClassName | None = None
    """Class of its applications; `null`: `default`."""

    @model_validator(mode="after")
    def _names_a_session(self) -> "SessionHeadersSection":
        if self.run is None and self.session is None:
            raise ValueError("run or session is required: the header that names the application")
        return self

    def harness(self) -> Harness:
        """Return the headers as recognition reads them."""
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
    """How a call's application is recognised; see [recognition](#which-application)."""

    rules: tuple[Literal[RULES], ...] = DEFAULT_RULES  # type: ignore[valid-type]
    """The rules, in the order in which they are tried: `header` (`X-Justitia-Application`),
    `metadata` (`application_id` or `session_id` in the body's), `headers` (below), `harness`
    (headers of known ones; Qwen Code and pi also by what was said), `baggage`. Only where they are
    named here: `user`, `prompt_cache_key` and `safety_identifier`, which name a person or a cache,
    and, at the end, `conversation`."""
    headers: tuple[SessionHeadersSection, ...] = ()
    """Headers of agents of your own."""
    baggage_key: str = "justitia.application"
    """Key of the W3C header `baggage`."""
    conversation_idle_s: Positive = 60.0
    """An application that was recognised by its conversation ends when nothing was asked for so
    long; each first call begins one, and all of them count as open."""

    @property
    def by_conversation(self) -> bool:
        """Whether what was said decides where nothing else does."""
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


# --- one model


class SharedSections(Section):
    """The settings that all models of an application have in common."""

    name: Name = "justitia"
    """Part of the scheduler's name, of the keys in Redis and of the data directory. 1 to 64 of
    `A-Z a-z 0-9 . _ -`."""
    log_encoding: Literal["TEXT", "JSON"] | None = None
    """`TEXT` or `JSON`: of what the Ingress, the Predictor and the replicas log. `null` is Serve's
    own; a `logging_config` of the Serve application then reaches the Ingress only, for the others
    have one of their own, to write no access log. The scheduler always writes JSON lines, to its
    worker's log."""
    engine: EngineSection = EngineSection()
    replica: ReplicaSection = ReplicaSection()
    autoscaling: AutoscalingSection | None = None
    """How many replicas each model has. `null`: as many as the deployment's `num_replicas`."""
    scheduler: SchedulerSection = SchedulerSection()
    store: StoreSection = StoreSection()
    prediction: PredictionSection = PredictionSection()
    ingress: IngressSection = IngressSection()
    metrics: MetricsSection = MetricsSection()
    tracing: TracingSection = TracingSection()
    transport: TransportSection = TransportSection()
    recognition: RecognitionSection = RecognitionSection()
    access: AccessSection | None = None
    """Who may call. `null`: everybody, for the tenant that the call names."""

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
    """The settings of one model with its queue; the arguments of an application of one model."""

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
    """A tenant's or a tier's share of the KV memory of each model, of all its replicas together."""

    guaranteed: Share = 0.0
    """Share that is the tenant's own, or the tier's. In sum those of tenants are at most the
    parent's, and those of tiers and of tenants at the top at most 1. What is not lent of it is kept
    free from others."""
    max: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The most that may be held."""
    lends: Share = 1.0
    """Fraction of the guaranteed share that others may use while it is not used: 0 keeps it
    free."""


class QuotaSection(Section):
    """A limit on what a tenant uses in a period, over all models."""

    unit: Unit
    """`kv_token_time` (token·iterations), `tokens` (prompt and output), `computed_tokens` (without
    those of prompts that were in the engine's prefix cache), `inferences` or `applications`."""
    limit: Positive
    per: Period
    """`second`, `minute`, `hour`, `day` or `month` (30 days, if it is rolling)."""
    window: Window = Window.ROLLING
    """`rolling`, or `calendar`: the day or month of UTC."""
    on_exhausted: OnExhausted = OnExhausted.REJECT
    """`reject`: applications are refused. `deprioritise`: they run when nobody with quota wants to.
    `shadow`: nothing happens, and metrics say what would have."""
    reserve_quantile: Annotated[float, Field(ge=0.5, le=1)] = 1.0
    """What is reserved of tokens and `kv_token_time` for an inference that runs: this quantile of
    its prediction. 1: the most that it may use by its `max_tokens`, so that the limit is exceeded
    by the error of one prediction at most; less lets more of them run at once."""

    @model_validator(mode="after")
    def _calendar_has_days(self) -> "QuotaSection":
        if self.window is Window.CALENDAR and self.per not in (Period.DAY, Period.MONTH):
            raise ValueError(f"window: calendar is for per: day or month, not {self.per.value}")
        if self.unit in (Unit.INFERENCES, Unit.APPLICATIONS) and self.limit != int(self.limit):
            raise ValueError(f"limit: a whole number of {self.unit.value} is allowed")
        return self


class CapsSection(Section):
    """The most that one application of a tenant may use: what is beyond is refused."""

    inferences: Count | None = None
    """Inferences that it may submit."""
    kv_token_time: Positive | None = None
    """KV token-time that it may be served, token·iterations."""
    seconds: Positive | None = None
    """Time from its opening in which it may submit."""


class TenantSection(Section):
    """A node of the tree of tenants."""

    weight: Positive | None = None
    """Weight among its siblings. `null`: that of its applications; 1 for one that has children,
    or less if `max_weight` is."""
    max_weight: Positive | None = None
    """Largest weight that its applications may ask for; at most the parent's."""
    kv_share: KvShareSection = KvShareSection()
    quotas: tuple[QuotaSection, ...] = ()
    """Limits over periods, one for each unit and period. An application needs something left in
    those of all nodes above, too."""
    caps: CapsSection = CapsSection()
    deadline_s: Positive | None = None
    """An inference that has waited so long is refused, if the call names no deadline."""

    def node(self) -> TenantNode:
        """Return the node as the scheduler knows it."""
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
    """Factor of the weight of applications of the tier. `null`: 0.1 for `flex`, 1 for `default`, 4
    for `priority`."""
    kv_share: KvShareSection = KvShareSection()
    """Share of the KV memory for applications of the tier, of all tenants together."""

    def tier(self, name: str) -> Tier:
        """Return the tier as the scheduler knows it."""
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
    """The order of one model's queue, which can change while the application runs."""

    policy: str = "justitia"
    """The order: a name of the table below, or the import path of your own,
    `package.module:Class`."""
    policy_options: dict[str, Any] = Field(default={})
    """Options of the order: those of every policy and those of this one, both below. An unknown one
    is an error."""
    admission: str = "peak"
    """`peak`: the KV that everything running is predicted to reach stays within memory, so that
    vLLM recomputes nothing; 0.2 points of mean completion time in the design's study. `prompt`: the
    prompt fits now, as vLLM and the paper do."""
    tenant_weights: dict[str, Positive] = Field(default={})
    """Weight of the applications of a tenant that ask for none, by the nearest node above them that
    is named; 1 otherwise. Applies to applications opened from then on. And weight of that tenant
    among its siblings once it has tenants below it."""
    tenants: dict[str, TenantSection] = Field(default={})
    """The tree of tenants, by path: `acme`, `acme/search`. `acme/*` is for the children of `acme`
    that are not named, `*` for tenants at the top that are not; below."""
    tiers: dict[Literal["flex", "default", "priority"], TierSection] = Field(default={})
    """Meaning of a request's `service_tier`."""

    @property
    def tenant_tree(self) -> TenantTree:
        """The tree of tenants."""
        return _tree_of(self.tenants, self.tenant_weights)

    @property
    def service_tiers(self) -> dict[str, Tier]:
        """The tiers by name."""
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
        """What to write in place of a policy or an option that has moved; None: nothing."""
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


# --- one model or several


class ModelEntry(ModelSection):
    """An entry of `models`."""

    engine: EngineSection | None = None
    """`null`: the application's."""
    replica: ReplicaSection | None = None
    """`null`: the application's."""
    autoscaling: AutoscalingSection | None = None
    """`null`: the application's."""


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model, and the deployments that serve it."""

    config: AppConfig
    replicas: str
    """Name of the deployment of its engines."""
    predictor: str
    """Name of the deployment of its predictor."""


class AppArgs(SharedSections):
    """Arguments of `justitia_ray.serve.app:build`: `model`, or `models`."""

    model: ModelSection | None = None
    models: tuple[ModelEntry, ...] = ()
    """Several models in place of `model`, of which one or the other is required; see below."""

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
    """`user_config` of the Ingress deployment: for all models, and where some differ."""

    models: dict[str, dict[str, Any]] = Field(default={})
    """With several models: by a model's name, the keys of this table in which it differs."""

    def fair_between_tenants(self) -> "AppSettings":
        """Return the settings where tenants are who they say: `justitia` shares between them first.

        Settings that name another `fairness`, or a clock that cannot do it, stay as they are.
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
            shared["policy_options"] = {}  # those of one policy mean nothing to another
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
