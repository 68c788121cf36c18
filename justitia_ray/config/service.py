"""Sections of the other processes: scheduler, store, predictor, ingress, metrics, connections."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from justitia_ray.config.schema import Count, LabelCount, Name, NotNegative, Positive, Section
from justitia_ray.errors import ConfigError, shown_short
from justitia_ray.predictor.observation import LEAST_MINIMUM_SAMPLES
from justitia_ray.store.redis_url import Setup, read_redis_url
from justitia_ray.units import Seconds

LONG_POLL_S: Seconds = 20.0
"""Time for which a poll of an ingress waits for a message of the scheduler (seconds)."""


class SchedulerSection(Section):
    """Timeouts and limits of the scheduler actor."""

    num_cpus: Annotated[float, Field(gt=0)] = 0.1
    """CPUs that Ray reserves for the actor. Above 0, so that Ray does not place it on a head node
    without CPUs for actors."""
    namespace: Name = "justitia"
    """Ray namespace of the actor."""
    lease_timeout_s: Positive = 5.0
    """Time within which the payload of a lease must arrive; otherwise the lease expires and its
    inference is queued again."""
    replica_timeout_s: Positive = 4.0
    """Time after which a silent replica without a connection counts as lost; its work is then
    leased again within 5 s. A silent replica with a connection counts as alive
    (`transport.standstill_s`), but gets no new leases."""
    ingress_timeout_s: Positive = 30.0
    """Time after which a silent ingress counts as lost, and its inferences are ended. Above 20 s,
    the duration of a long-poll."""
    application_idle_s: Positive = 600.0
    """Time after which an application without waiting or running inferences ends. Longer than any
    tool call."""
    recovery_s: Positive = 3.0
    """Longest time that a new scheduler waits for reports of all known replicas before it grants
    leases."""
    quota_timeout_s: Positive = 10.0
    """Longest time that an application or inference of a tenant with quotas waits until its usage
    is reserved. After that it is refused, or admitted if no quota of its tenant rejects.
    """
    engine_deaths_allowed: Annotated[int, Field(ge=0)] = 2
    """Number of engine deaths after which a call that ran on all of these engines is refused with
    502, unless another call also ran on all of them. 1 also refuses a call that ran alone on an
    engine that died for another reason. 0 refuses no call: calls of a dead engine are leased again
    at once, up to `ingress.attempts` times. See
    [troubleshooting.md](troubleshooting.md#a-call-that-kills-its-engine)."""
    cost: Literal["kv_token_time", "with_prefill"] = "kv_token_time"
    """Cost of an inference, by which applications are charged and ordered, and the usage of tenants
    is counted. `kv_token_time`: the KV memory that it holds while it decodes, as in the paper;
    computing its prompt costs nothing. `with_prefill` (experimental): also the computation of the
    prompt tokens that were not cached, by `engine.prefill_cost` or as a replica measures it; an
    application that is opened before a cost is known is charged as in the paper."""
    lag_meter: bool = False
    """Whether the scheduler measures the bound on every application's lag from all starts and
    reports, and compares it with the application's lag at its end:
    `justitia_bounded_applications_total`, `justitia_bound_violations_total` with its alert,
    `gps_lag_bound_kv_token_time` in `application.ended`. It also measures lags under `clock:
    nominal` and in accounts of another `cost`. Off, because it takes a fifth of the calls of a
    submission and a third of those of a report. Lags, and promises to applications that wait, are
    computed on request in both cases.
    """
    abandoned_s: Positive = 600.0
    """Time without any call after which the scheduler actor exits."""
    max_waiting_inferences: Count = 200_000
    """Largest number of waiting and running inferences; further ones are refused with 429. They
    take 0.2 to 0.6 GB. One tenant may have at most four times as many as the number that is left
    free."""
    max_open_applications: Count = 50_000
    """Largest number of open applications, idle ones included; more are refused with 429, and one
    tenant is limited as above. They take 0.2 GB; saving all of them blocks the scheduler for 0.3 to
    0.5 s. Each call that names no application counts as an application: increase the limit if many
    of these calls wait."""


class StoreSection(Section):
    """Settings of the store: an embedded Redis server, or an existing Redis."""

    durability: Literal["batched", "strict", "none"] = "batched"
    """How the state of the scheduler is stored: `batched`, `strict` (a tag is stored before it is
    returned) or `none` (no Redis, nothing is stored); see below.
    """
    strict_timeout_s: Positive = 5.0
    """With `strict`: longest time that an application waits to be stored before it is refused with
    503."""
    redis_url: str | None = None
    """URL of an existing Redis: a server `redis://host:6379/0` or `unix:///path`, Sentinel
    `redis+sentinel://h1:26379,h2:26379/service/0`, a cluster `redis+cluster://h1:6379,h2:6379`;
    `rediss` instead of `redis` for TLS. Without user and password. `null`: an embedded Redis
    server, for one node; a cluster of several nodes is refused.
    """
    redis_username: str | None = None
    """User name in Redis's access control list."""
    redis_password_env: str | None = None
    """Name of the environment variable that holds the password, on every node."""
    redis_password_file: str | None = None
    """File on every node that holds the password, instead of `redis_password_env`. It is read at
    each connect, so the password may change while the service runs; an environment variable may
    not."""
    redis_sentinel_password_env: str | None = None
    """Name of the environment variable that holds the Sentinels' own password."""
    redis_sentinel_password_file: str | None = None
    """File with the Sentinels' own password, read at each connect, instead of an environment
    variable."""
    redis_tls_ca_file: str | None = None
    """File of trusted certificates, on every node; `null`: the system's."""
    redis_tls_cert_file: str | None = None
    """File of the client certificate, if Redis requires one."""
    redis_tls_key_file: str | None = None
    """File of the client certificate's private key; `null`: in the certificate's file."""
    data_dir: str = "~/.local/share/justitia_ray"
    """Directory of the embedded server's data, with a subdirectory for each application and model.
    Not on a network file system."""
    save_interval_s: Positive = 0.5
    """Interval at which changes are saved; a scheduler that dies can lose the service counted in
    this time. The design allows 1 s."""

    @model_validator(mode="after")
    def _store_settings_are_consistent(self) -> "StoreSection":
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
    """Settings of the predictor deployment, and of predictions that do not need it."""

    deadline_s: Positive = 0.02
    """Longest wait of an application for its estimate; after that the ingress uses its own copy of
    the mean costs of classes."""
    prior_output_tokens: Count = 256
    """Expected output of a call without `max_tokens` in an unknown class; the default is the mean
    of the LMSYS sample in the VTC paper's data."""
    max_classes: Count = 256
    """Largest number of classes with their own means, histories and models. Callers name the
    classes, so their number is bounded; all others share `other`."""
    replicas: Annotated[int, Field(gt=0, le=64)] = 1
    """Replicas of the predictor. One of them learns; all serve the same versions within a second.
    Use more than one to survive the loss of one."""
    minimum_samples: Annotated[int, Field(ge=LEAST_MINIMUM_SAMPLES)] = 10
    """Finished applications with known inputs that a class needs before a model is trained; at
    least 8, because three are held back and a model needs five."""
    history_per_class: Annotated[int, Field(ge=100, le=100_000)] = 500
    """Finished applications of a class that are kept and trained on; with the default, training
    takes 20 s of one core. 100 to 100000."""
    models_dir: str | None = None
    """Directory of initial models from `justitia predictor train`, on every node of the predictor.
    Each model in it is imported once; later trainings start from it."""
    store_inputs: bool = False
    """Whether the texts of inputs are stored in Redis with the history. Their features (hashed word
    counts, measures) are always stored."""
    training_timeout_s: Positive = 900.0
    """Time after which a training is stopped, to be retried later. It runs in a separate process
    with the lowest priority."""

    @model_validator(mode="after")
    def _history_is_large_enough(self) -> "PredictionSection":
        if self.minimum_samples > self.history_per_class:
            raise ValueError(
                f"minimum_samples is {self.minimum_samples}: at most history_per_class, "
                f"{self.history_per_class}, is allowed"
            )
        return self


class IngressSection(Section):
    """Settings of the HTTP interface."""

    max_outstanding: Count = 20_000
    """Largest number of submitted inferences of one ingress process that have not ended; more are
    refused with 429 and `Retry-After`."""
    max_body_bytes: Count = 16 * 2**20
    """Longest request body, 16 MiB; a longer one is refused with 413."""
    max_body_bytes_held: Count = 512 * 2**20
    """Largest total of the bodies above 64 KiB that one ingress process holds before counting their
    tokens, 512 MiB; more are refused with 429. They wait unparsed, and are parsed 24 MiB at a time,
    in fair turns between tenants: parsing a body takes up to ten times its size. One tenant may
    hold at most four times the size that is left free."""
    keepalive_s: Positive = 15.0
    """Longest silence of a stream, from the request to its end: in the queue, in a prefill, between
    tokens, and while the call waits for another replica. Proxies and clients take silence for a
    lost connection, many after 60 s."""
    keepalive: Literal["event", "chunk", "comment", "none"] = "event"
    """Keep-alive sent on a silent stream; a call's `X-Justitia-Keepalive` overrides it. `event`:
    the API's own event, which clients count as activity (`ping` of Messages, `response.queued` and
    `keepalive` of Responses), and on chats and completions, which have no such event, a comment, or
    a chunk for harnesses that ignore comments (Qwen Code). `chunk`: on chats and completions a
    chunk without text instead of comments, for clients that read each line as `data: JSON`.
    `comment`: comments everywhere. `none`: nothing."""
    submit_interval_s: NotNegative = 0.0
    """Time within which submissions are joined to a batch; submissions that arrive while a batch is
    under way are joined too."""
    retry_linger_s: NotNegative = 10.0
    """Time for which a request with an `Idempotency-Key` continues after its connection is lost; a
    retry of the request joins it."""
    retry_kept_s: NotNegative = 60.0
    """Time for which a retry can read the answer to a request with an `Idempotency-Key`."""
    retry_kept_bytes: Count = 64 * 2**20
    """Memory for answers that retries may read, 64 MiB. Beyond it the oldest unread answers are
    dropped early; if that is not enough, calls with new keys are refused with 429."""
    attempts: Count = 20
    """Largest number of leases for one call before its caller gets an error; also the number of
    times that a stream may be cut."""

    @model_validator(mode="after")
    def _longest_body_can_be_held(self) -> "IngressSection":
        if self.max_body_bytes > self.max_body_bytes_held:
            raise ValueError(
                f"max_body_bytes is {self.max_body_bytes}: at most max_body_bytes_held,"
                f" {self.max_body_bytes_held}, is allowed"
            )
        return self


class MetricsSection(Section):
    """Settings of metrics and of their series."""

    enabled: bool = True
    """Whether metrics are exported by Ray; [monitoring/README.md](monitoring/README.md) has a table
    of them."""
    interval_s: Positive = 2.0
    """Interval at which new values are passed to Ray's exporter, which exports every 10 s
    (`metrics_report_interval_ms`)."""
    max_classes: LabelCount = 15
    """Largest number of application classes with their own series; callers name classes, and
    further ones share the series `other`. With 15 tenants as well, the three histograms by class
    and tenant have at most 11,520 series per model."""
    max_tenants: LabelCount = 15
    """Largest number of tenants with their own series; further ones share the series `other`."""


class TracingSection(Section):
    """Traces of applications, exported with OpenTelemetry."""

    endpoint: str | None = None
    """Collector to which spans are sent, by OTLP over HTTP: `http://collector:4318/v1/traces`.
    `null`: no tracing. Needs the extra `otel`."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of the applications that are traced; an application is traced with all its calls or not
    at all."""
    parent: Literal["application", "caller"] = "application"
    """Trace to which a call with a `traceparent` belongs. `application`: the trace of its
    application, with a link to the caller's span. `caller`: the caller's trace, sampled if the
    caller's span is, with a link to the application's span."""
    trace_url: str | None = None
    """Link from the console to a trace, with `{trace_id}` for its id:
    `https://tempo.example/trace/{trace_id}`. `null`: only the id is shown."""
    headers_env: str | None = None
    """Name of the environment variable, on every node, with headers for the collector:
    `name=value,name=value`."""
    headers_file: str | None = None
    """File, on every node, with headers for the collector, one per line."""

    @field_validator("trace_url")
    @classmethod
    def _trace_url_has_placeholder(cls, value: str | None) -> str | None:
        if value is not None and not (
            re.fullmatch(r"https?://[^/\s]+/\S*", value) and value.count("{trace_id}") == 1
        ):
            raise ValueError(
                f"{shown_short(value)}: http:// or https:// with {{trace_id}} once is allowed, such"
                " as https://tempo.example/trace/{trace_id}"
            )
        return value

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_http(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^/\s]+/\S*", value):
            raise ValueError(
                f"{shown_short(value)}: http:// or https://, host and path are allowed, such as"
                " http://collector:4318/v1/traces"
            )
        return value


class TlsSection(Section):
    """Certificates for connections between the service's processes; both sides present one."""

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
    """Connections between ingresses, schedulers and replicas."""

    ports: tuple[Port, Port] | None = None
    """First and last port on which schedulers and replicas listen, for firewalls: each process
    takes the first free port of its node. `null`: any free port."""
    tls: TlsSection | None = None
    """Encryption of the connections. `null`: the handshake still proves the peer's identity, but
    data can be read and changed in transit; only for trusted networks."""
    standstill_s: Positive = 60.0
    """Time for which a silent replica or ingress process (stopped, or with a busy event loop) keeps
    its connections and leases while its machine answers. A process that has ended counts as lost at
    once, and a process whose machine does not answer counts as lost after 5 s."""

    @field_validator("ports")
    @classmethod
    def _ports_are_in_order(cls, ports: tuple[Port, Port] | None) -> tuple[Port, Port] | None:
        if ports is not None and ports[0] > ports[1]:
            raise ValueError(f"the first port, {ports[0]}, is above the last, {ports[1]}")
        return ports
