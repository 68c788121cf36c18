"""Create the stores of a configuration, with their secrets from the environment."""

import os
from typing import Literal

from justitia_ray.config import AppConfig, SharedSections, StoreSection
from justitia_ray.errors import ConfigError
from justitia_ray.store.accounts_store import AccountsStore
from justitia_ray.store.connection import Credentials
from justitia_ray.store.embedded import EmbeddedRedis
from justitia_ray.store.key_store import KeyStore
from justitia_ray.store.leader import LeaderRecord
from justitia_ray.store.prediction_store import (
    AnyPredictionStore,
    PredictionMemory,
    PredictionStore,
)
from justitia_ray.store.scheduler_store import DurableState, NoStore, SchedulerStore


def store_kind(config: AppConfig) -> Literal["embedded", "redis", "none"]:
    """Return the kind of the configured store: an embedded Redis, a Redis by URL, or no store."""
    if config.store.durability == "none":
        return "none"
    return "embedded" if config.store.redis_url is None else "redis"


def embedded_server(config: AppConfig) -> EmbeddedRedis | None:
    """Return the embedded Redis server, not started; None if the configuration needs none."""
    if config.store.redis_url is not None or config.store.durability == "none":
        return None
    return EmbeddedRedis(config.data_dir)


def scheduler_store(config: AppConfig, leader: LeaderRecord | None = None) -> DurableState:
    """Return the scheduler's store; starts no server and opens no connection.

    Args:
        config: The application's arguments.
        leader: Record of the process that becomes leader; None: this process.

    Raises:
        ConfigError: If an environment variable named in the configuration is not set.
    """
    if config.store.durability == "none":
        return NoStore()
    return SchedulerStore(store_url(config), config.store_name, store_credentials(config), leader)


def accounts_server(config: AppConfig) -> EmbeddedRedis | None:
    """Return the embedded Redis of the quota accounts, not started; None if they need none."""
    if config.store.redis_url is not None or config.store.durability == "none":
        return None
    return EmbeddedRedis(config.accounts_dir)


def accounts_store(config: AppConfig, leader: LeaderRecord | None = None) -> AccountsStore:
    """Return the store of an application's quota accounts; opens no connection.

    Args:
        config: The arguments of any of the application's models.
        leader: Record of the process that begins a term; None: this process.

    Raises:
        ConfigError: If an environment variable named in the configuration is not set.
    """
    url = config.store.redis_url
    if config.store.durability == "none":
        return AccountsStore(None, config.name)
    if url is None:
        url = EmbeddedRedis(config.accounts_dir).url
    return AccountsStore(url, config.name, store_credentials(config), leader)


def prediction_store(config: AppConfig, url: str | None) -> AnyPredictionStore:
    """Return the predictor's store; opens no connection.

    Args:
        config: The application's arguments.
        url: URL of the scheduler's store; None if the scheduler has none.

    Raises:
        ConfigError: If an environment variable named in the configuration is not set.
    """
    if url is None:
        return PredictionMemory()
    return PredictionStore(url, config.store_name, store_credentials(config))


def key_store(config: SharedSections) -> KeyStore:
    """Return the store of API keys, for `access.keys_in_redis`; opens no connection.

    Args:
        config: The application's arguments, or those of one of its models.

    Raises:
        ConfigError: If an environment variable named in the configuration is not set.
    """
    url = config.store.redis_url
    assert url is not None, "the schema asks for one where keys_in_redis is set"
    return KeyStore(url, config.name, store_credentials(config))


def store_url(config: AppConfig) -> str:
    """Return the URL of Redis, running or not; an embedded Redis's is valid on this node only."""
    if config.store.redis_url is not None:
        return config.store.redis_url
    return EmbeddedRedis(config.data_dir).url


def store_credentials(config: SharedSections) -> Credentials:
    """Return user, passwords and certificates for Redis; secrets come from the environment.

    Raises:
        ConfigError: If the configuration names a variable that is not set.
    """
    section = config.store
    return Credentials(
        username=section.redis_username,
        password=_secret_from_environment(section, "redis_password_env"),
        sentinel_password=_secret_from_environment(section, "redis_sentinel_password_env"),
        tls_ca_file=section.redis_tls_ca_file,
        tls_cert_file=section.redis_tls_cert_file,
        tls_key_file=section.redis_tls_key_file,
        password_file=section.redis_password_file,
        sentinel_password_file=section.redis_sentinel_password_file,
    )


def _secret_from_environment(section: StoreSection, key: str) -> str | None:
    name: str | None = getattr(section, key)
    if name is None:
        return None
    if name not in os.environ:
        raise ConfigError(f"store.{key}: variable {name} is not set on this node")
    return os.environ[name]
