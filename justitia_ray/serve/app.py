"""Build the Serve application from the configuration."""

import logging
from dataclasses import asdict
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from justitia_ray.config import AppArgs, AppConfig, PlacedModel, SharedSections
from justitia_ray.errors import ConfigError
from justitia_ray.serve.drain_policy import DrainTimePolicy
from justitia_ray.serve.engines.argument_checks import engine_mistake
from justitia_ray.serve.engines.factory import build_engine, load_prompt_counter
from justitia_ray.serve.front import read_front
from justitia_ray.serve.http_options import read_http_options
from justitia_ray.serve.ingress.deployment import Ingress
from justitia_ray.serve.predictor.deployment import Predictor
from justitia_ray.serve.replica.deployment import EngineReplica
from justitia_ray.serve.span_exporter import check_otel_is_installed
from justitia_ray.serve.stores import embedded_server

logger = logging.getLogger("ray.serve")  # the logger of Ray Serve's controller

_UNBOUNDED = 100_000
"""Maximum ongoing calls of a Serve deployment, so high that requests wait in the scheduler's queue,
never in Serve's.
"""


def build(args: dict[str, Any]) -> Application:
    """Return the Ray Serve application; a Serve configuration file names this as its `import_path`.

    Args:
        args: `justitia_ray.config.AppArgs` as parsed from YAML. Serve's own settings
            (`num_replicas`, `ray_actor_options`, `user_config`) belong under `deployments`.

    Raises:
        ConfigError: If a key is unknown, a value is not allowed, or this cluster cannot serve the
            application safely.
    """
    parsed = AppArgs.parse(args)
    placed = parsed.each_model()
    for place in placed:
        mistake = engine_mistake(place.config)
        if mistake is not None:
            raise ConfigError(f"model {place.config.model.name!r}: {mistake}")
    _refuse_embedded_store_on_many_nodes(placed[0].config)
    _refuse_tls_behind_haproxy()
    if parsed.tracing.endpoint is not None:
        check_otel_is_installed()
    if parsed.access is None:
        logger.warning(
            "%s is OPEN: everybody who reaches it may call it, for any tenant and with any weight."
            " `access` in its arguments asks for keys",
            parsed.name,
        )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="Ingress",
        max_ongoing_requests=_UNBOUNDED,
        graceful_shutdown_timeout_s=600,
        user_config={},
        logging_config=_log_settings(parsed),
    )
    parts = [_deployments_of_model(place) for place in placed]
    return ingress.bind(parsed.model_dump(), parts, load_prompt_counter)


def _deployments_of_model(place: PlacedModel) -> tuple[Application, Application]:
    """Return the engine deployment and the predictor deployment of one model."""
    values = place.config.model_dump()
    # The ingress already writes an access line for each request.
    quiet = {"enable_access_log": False, **(_log_settings(place.config) or {})}
    replicas = serve.deployment(
        EngineReplica,
        name=place.replicas,
        max_ongoing_requests=_UNBOUNDED,
        graceful_shutdown_timeout_s=600,  # longer than the longest generation of text
        # The health check finds engines that hang; a process with a dead engine ends by itself.
        health_check_period_s=2,
        logging_config=quiet,
        **_autoscaling_options(place.config),
    ).bind(values, build_engine)
    predictor = serve.deployment(
        Predictor,
        name=place.predictor,
        num_replicas=place.config.prediction.replicas,
        max_ongoing_requests=_UNBOUNDED,
        logging_config=quiet,
    ).bind(values)
    return replicas, predictor


def _autoscaling_options(config: AppConfig) -> dict[str, Any]:
    """Return Serve's autoscaling options for a model's engines; empty: the Serve file has them."""
    section = config.autoscaling
    if section is None or section.external:
        return {}
    policy = AutoscalingPolicy(
        policy_function=DrainTimePolicy,
        policy_kwargs={
            "scheduler": config.scheduler_name,
            "namespace": config.scheduler.namespace,
            "rules": asdict(section.rules),
            "poll_s": section.poll_s,
        },
    )
    scaling = AutoscalingConfig(
        min_replicas=section.min_replicas,
        max_replicas=section.max_replicas,
        initial_replicas=section.initial_replicas,
        upscale_delay_s=section.upscale_delay_s,
        downscale_delay_s=section.patience_s,
        downscale_to_zero_delay_s=section.downscale_to_zero_delay_s,
        policy=policy,
    )
    return {"autoscaling_config": scaling}


def _log_settings(sections: SharedSections) -> dict[str, Any] | None:
    """Return the log settings of a deployment; None if Serve's own settings apply."""
    return None if sections.log_encoding is None else {"encoding": sections.log_encoding}


def _refuse_embedded_store_on_many_nodes(config: AppConfig) -> None:
    if embedded_server(config) is None or not ray.is_initialized():
        return
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    if nodes > 1:
        raise ConfigError(
            f"store.redis_url: the cluster has {nodes} nodes, and the embedded Redis serves one;"
            " run a Redis server that all nodes reach and name it here"
        )


def _refuse_tls_behind_haproxy() -> None:
    """Raise an error if HAProxy is the front end and Serve's HTTP options have certificates.

    Serve would pass the certificates to the ingresses only, while HAProxy talks plaintext to
    ingresses and callers. If the options are unknown, because Serve has not started or its
    controller does not answer, nothing is refused; `justitia doctor` finds the mistake later.
    """
    if read_front().kind != "haproxy":
        return
    http_options = read_http_options(
        "with ssl_certfile among them HAProxy, which has no TLS, would get no answers from the"
        " ingresses"
    )
    if http_options is None:
        return
    if http_options.ssl_certfile and http_options.ssl_keyfile:
        raise ConfigError(
            "http_options.ssl_certfile: HAProxy, the front of this cluster, has no TLS. Start Ray"
            " without RAY_SERVE_ENABLE_HA_PROXY, so that Serve's own proxy has it, or leave"
            " http_options.ssl_* out and let what stands before the cluster (the ingress of"
            " Kubernetes, a load balancer) end TLS"
        )
