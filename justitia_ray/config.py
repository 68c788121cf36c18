"""The one schema of the one YAML: Serve's `args` of the application, and its `user_config`.

`AppConfig` is what one model of an application goes by; a change of it restarts deployments.
`SchedulingConfig` is how its queue is ordered; a change of it reaches the running scheduler, and
the queue stays. `justitia_ray.app_args` reads both where an application has several models. Units
are in the keys; the reason of each default stands beside it.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.policies import parse_options
from justitia_ray.errors import ConfigError, shown_short
from justitia_ray.predictor.least_samples import LEAST_MINIMUM_SAMPLES
from justitia_ray.store.redis_url import Setup, read_redis_url

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSection(_Section):
    """What is served."""

    name: ModelName
    """The name that callers put in `model`."""
    path: str
    """A local directory, a hub name, or a `random:` model (random weights, built on the spot)."""
    cache_dir: str = "~/.cache/justitia_ray/models"
    """Where a random model is built."""
    adapters: dict[ModelName, str] = {}
    """LoRA adapters: the name that callers put in `model`, and a directory or hub name."""

    @property
    def names(self) -> tuple[str, ...]:
        """What callers may put in `model`: all of it shares one queue."""
        return (self.name, *self.adapters)

    @model_validator(mode="after")
    def _names_differ(self) -> "ModelSection":
        if self.name in self.adapters:
            raise ValueError(f"adapters: {self.name!r} is the model's own name; name it otherwise")
        return self


class FakeEngineSection(_Section):
    """An engine that sleeps as a GPU would: for tests and for measuring the rest of the path."""

    kv_tokens: Annotated[int, Field(gt=0)] = 7_344
    """459 blocks of 16, the paper's A10 (v1, Sec. V-A)."""
    block_size: Annotated[int, Field(gt=0)] = 1
    max_num_seqs: Annotated[int, Field(gt=0)] = 256
    max_model_len: Annotated[int, Field(gt=0)] = 4_096
    iteration_s: Annotated[float, Field(ge=0)] = 0.03
    """About what a 7B model takes on an A10 (v1, Sec. V)."""
    prefill_s_per_token: Annotated[float, Field(ge=0)] = 0.0


class EngineSection(_Section):
    """The engine inside each replica."""

    kind: Literal["vllm", "fake"] = "vllm"
    vllm_args: dict[str, str | int | float | bool] = {}
    """vLLM's own command-line options, with underscores: `max_model_len: 2048`."""
    env: dict[str, str] = {}
    """Environment of the replica, set before vLLM is imported."""
    fake: FakeEngineSection = FakeEngineSection()


class ReplicaSection(_Section):
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


class SchedulerSection(_Section):
    """The scheduler actor."""

    num_cpus: Annotated[float, Field(gt=0)] = 0.1
    """Above 0, so that KubeRay keeps it off a head node that offers no CPUs."""
    namespace: Name = "justitia"
    lease_timeout_s: Positive = 5.0
    replica_timeout_s: Positive = 4.0
    """Work of a silent replica is re-leased within 5 s."""
    ingress_timeout_s: Positive = 30.0
    """Above the 20 s of a long-poll."""
    application_idle_s: Positive = 600.0
    """Ends applications that are never closed; tool gaps are shorter."""
    recovery_s: Positive = 3.0
    abandoned_s: Positive = 600.0
    """The actor ends itself when nobody has called for so long."""
    max_waiting_inferences: Annotated[int, Field(gt=0)] = 200_000
    """Waiting or running; more are refused with 429. They take 0.2 GB."""
    max_open_applications: Annotated[int, Field(gt=0)] = 50_000
    """More are refused with 429. They take 0.2 GB, and a save of all of them about a second."""


class StoreSection(_Section):
    """Redis: an embedded server, or one that is there."""

    durability: Literal["batched", "strict", "none"] = "batched"
    """`batched`: what changed is saved every `save_interval_s`. `strict`: a tag is in Redis before
    it is given out, which costs an application about a millisecond. `none`: no Redis at all; what
    the scheduler knows of order ends with it, what the predictor learned with that."""
    redis_url: str | None = None
    """One server, Sentinel or a cluster (`store.redis_url.FORMS`), no password; None: embedded."""
    redis_username: str | None = None
    """Of Redis's access control list; None: its default user."""
    redis_password_env: str | None = None
    """Name of the environment variable that holds the password."""
    redis_sentinel_password_env: str | None = None
    """Name of the variable with the Sentinels' own password."""
    redis_tls_ca_file: str | None = None
    """Certificates that are trusted, on every node; None: those of the system."""
    redis_tls_cert_file: str | None = None
    """Our own certificate, where Redis asks for one."""
    redis_tls_key_file: str | None = None
    """Its key; None: in the same file."""
    data_dir: str = "~/.local/share/justitia_ray"
    """Where the embedded server keeps its data."""
    save_interval_s: Positive = 0.5
    """State at risk if scheduler and machine die together; the design allows 1 s."""
    strict_timeout_s: Positive = 5.0
    """With `strict`: new applications are refused with 503 when Redis takes longer."""

    @model_validator(mode="after")
    def _fits_together(self) -> "StoreSection":
        try:
            url = None if self.redis_url is None else read_redis_url(self.redis_url)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if self.durability == "none" and url is not None:
            raise ValueError("durability is none: no redis_url is allowed, nothing is stored")
        for name in ("username", "password_env"):
            if getattr(self, f"redis_{name}") is not None and url is None:
                raise ValueError(f"redis_{name} is for a redis_url; none is given")
        if self.redis_sentinel_password_env is not None and (
            url is None or url.setup is not Setup.SENTINEL
        ):
            raise ValueError(
                "redis_sentinel_password_env is for a redis_url that begins with redis+sentinel://"
                " or rediss+sentinel://"
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


class PredictionSection(_Section):
    """The predictor deployment, and what is done without it."""

    deadline_s: Positive = 0.02
    """An application is not held up longer than this for its estimate."""
    prior_output_tokens: Annotated[int, Field(gt=0)] = 256
    """Output expected of a call that says no `max_tokens` (LMSYS mean: data of the VTC paper)."""
    max_classes: Annotated[int, Field(gt=0)] = 256
    """Classes made by callers are bounded; the rest share `other`."""
    replicas: Annotated[int, Field(gt=0, le=64)] = 1
    """One answers thousands a second; more are for when one dies."""
    minimum_samples: Annotated[int, Field(ge=LEAST_MINIMUM_SAMPLES)] = 10
    """Applications with known inputs from which on a class has a model."""
    history_per_class: Annotated[int, Field(ge=100, le=100_000)] = 500
    """What models are trained on: with so many a training takes 20 s of one core, and a class of
    long inputs some 10 MB."""
    models_dir: str | None = None
    """Models of `justitia predictor train` to begin with; on every node of the predictor."""
    store_inputs: bool = False
    """Whether the texts of inputs are kept in Redis; their features always are."""
    training_timeout_s: Positive = 900.0
    """A training that takes longer is given up. It has the least priority: one of 20 s takes
    minutes on cores that are never idle."""

    @model_validator(mode="after")
    def _history_holds_what_a_model_takes(self) -> "PredictionSection":
        if self.minimum_samples > self.history_per_class:
            raise ValueError(
                f"minimum_samples is {self.minimum_samples}: at most history_per_class, "
                f"{self.history_per_class}, is allowed"
            )
        return self


class IngressSection(_Section):
    """The HTTP side."""

    max_outstanding: Annotated[int, Field(gt=0)] = 20_000
    """Inferences that one ingress process submits and has not ended; more are refused with 429."""
    max_body_bytes: Annotated[int, Field(gt=0)] = 16 * 2**20
    keepalive_s: Positive = 15.0
    """A waiting stream gets an SSE comment so often, so that proxies keep it."""
    submit_interval_s: Annotated[float, Field(ge=0)] = 0.0
    """Submissions are joined over this time, and while a batch is on its way in any case."""
    retry_linger_s: Annotated[float, Field(ge=0)] = 10.0
    """A request with an `Idempotency-Key` goes on for so long after its connection is gone."""
    retry_kept_s: Annotated[float, Field(ge=0)] = 60.0
    """Its answer can be read again for so long."""
    retry_kept_bytes: Annotated[int, Field(gt=0)] = 64 * 2**20
    """Memory of all these answers; beyond it the oldest go before their time."""
    attempts: Annotated[int, Field(gt=0)] = 20
    """Leases that one call may use up before its caller gets an error."""


class SharedSections(_Section):
    """What all models of an application have in common."""

    name: Name = "justitia"
    """Serve application name; part of the scheduler's name."""
    engine: EngineSection = EngineSection()
    replica: ReplicaSection = ReplicaSection()
    scheduler: SchedulerSection = SchedulerSection()
    store: StoreSection = StoreSection()
    prediction: PredictionSection = PredictionSection()
    ingress: IngressSection = IngressSection()


class AppConfig(SharedSections):
    """One model of an application with its queue: what every part of it goes by.

    The arguments of an application that serves one model have this form;
    `justitia_ray.app_args` reads those of several.
    """

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


class SchedulingConfig(_Section):
    """`user_config` of the Ingress deployment: what can change while the application runs."""

    policy: str = "justitia"
    policy_options: dict[str, Any] = {}
    admission: str = "peak"
    """`peak` keeps future KV within memory: no recomputation, 0.2 points of mean JCT."""
    tenant_weights: dict[str, Positive] = {}
    """Weight of a tenant's applications that ask for none; 1 otherwise."""

    @model_validator(mode="after")
    def _known_names(self) -> "SchedulingConfig":
        if self.admission not in ADMISSIONS:
            raise ValueError(f"admission: {self.admission!r} is not one of {', '.join(ADMISSIONS)}")
        try:
            parse_options(self.policy, self.policy_options)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


def parse_app_config(values: dict[str, Any]) -> AppConfig:
    """Check the application's arguments.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed; names every one of them.
    """
    try:
        return AppConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(describe(error)) from error


def parse_scheduling_config(values: dict[str, Any]) -> SchedulingConfig:
    """Check the Ingress deployment's `user_config`.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed; names every one of them.
    """
    try:
        return SchedulingConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(describe(error)) from error


def describe(error: ValidationError) -> str:
    """Return one line for each thing that is wrong: key, value, what is allowed."""
    lines = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"]) or "configuration"
        value = "" if isinstance(item["input"], dict) else f" (got {shown_short(item['input'])})"
        lines.append(f"{key}: {item['msg']}{value}")
    return "; ".join(lines)
