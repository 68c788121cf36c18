"""Which stores the configuration asks for, and what they need from the environment."""

import os
from typing import Literal

from justitia_ray.config import AppConfig
from justitia_ray.errors import ConfigError
from justitia_ray.store.connection import Credentials
from justitia_ray.store.embedded import EmbeddedRedis
from justitia_ray.store.no_store import NoStore
from justitia_ray.store.office import Holder
from justitia_ray.store.prediction_memory import PredictionMemory
from justitia_ray.store.prediction_store import PredictionStore
from justitia_ray.store.predictions import Predictions
from justitia_ray.store.scheduler_store import DurableState, SchedulerStore


def store_kind(config: AppConfig) -> Literal["embedded", "redis", "none"]:
    """Return whose Redis the state is kept in."""
    if config.store.durability == "none":
        return "none"
    return "embedded" if config.store.redis_url is None else "redis"


def embedded_server(config: AppConfig) -> EmbeddedRedis | None:
    """Return the Redis server that is ours to start, not started; None if there is none."""
    if config.store.redis_url is not None or config.store.durability == "none":
        return None
    return EmbeddedRedis(config.data_dir)


def scheduler_store(config: AppConfig, holder: Holder | None = None) -> DurableState:
    """Return the scheduler's store; no server is started, and nothing is connected yet.

    Args:
        config: The application's arguments.
        holder: Who takes office with it; this process if None.

    Raises:
        ConfigError: If a variable that the configuration names is not set.
    """
    if config.store.durability == "none":
        return NoStore()
    return SchedulerStore(store_url(config), config.store_name, store_credentials(config), holder)


def prediction_store(config: AppConfig, url: str | None) -> Predictions:
    """Return the predictor's store; nothing is connected yet.

    Args:
        config: The application's arguments.
        url: Where the scheduler keeps its state; None if nowhere.

    Raises:
        ConfigError: If a variable that the configuration names is not set.
    """
    if url is None:
        return PredictionMemory()
    return PredictionStore(url, config.store_name, store_credentials(config))


def store_url(config: AppConfig) -> str:
    """Return where Redis is, or is going to be: of an embedded one only this node knows."""
    if config.store.redis_url is not None:
        return config.store.redis_url
    return EmbeddedRedis(config.data_dir).url


def store_credentials(config: AppConfig) -> Credentials:
    """Return what it takes to be let in, secrets from the environment.

    Raises:
        ConfigError: If the configuration names a variable that is not set.
    """
    section = config.store
    return Credentials(
        username=section.redis_username,
        password=_secret("redis_password_env", section.redis_password_env),
        sentinel_password=_secret(
            "redis_sentinel_password_env", section.redis_sentinel_password_env
        ),
        tls_ca_file=section.redis_tls_ca_file,
        tls_cert_file=section.redis_tls_cert_file,
        tls_key_file=section.redis_tls_key_file,
    )


def _secret(key: str, name: str | None) -> str | None:
    if name is None:
        return None
    if name not in os.environ:
        raise ConfigError(f"store.{key}: variable {name} is not set on this node")
    return os.environ[name]
