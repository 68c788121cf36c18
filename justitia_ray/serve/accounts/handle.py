"""Find, create, replace and end the detached accounts actor, and call it."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError, RayTaskError

from justitia_ray.accounts.messages import Answer, Exchange
from justitia_ray.config import AppConfig
from justitia_ray.errors import AdmissionError
from justitia_ray.observability.log_events import log_event
from justitia_ray.serve.accounts.actor import AccountsActor
from justitia_ray.serve.detached import end_detached, get_detached, is_older
from justitia_ray.units import Epoch

logger = logging.getLogger("ray.serve")

ACCOUNTS_PREFIX = "accounts/"
"""Prefix of the quota accounts actor's name in Ray; the Serve application's name follows."""
_MAX_CONCURRENCY = 1_000


class AccountsLink:
    """Connection from a scheduler to the quota accounts actor of its Serve application.

    The first call finds the actor, or starts it.

    Args:
        config: The application's arguments.
        find: Returns the actor's handle; None: `get_accounts`.
    """

    def __init__(self, config: AppConfig, find: Callable[[AppConfig], Any] | None = None) -> None:
        self._config = config
        self._find = find or get_accounts
        self._actor: Any = None

    async def configure(self, tenants: Mapping[str, Any]) -> Epoch:
        """Send the tree of tenants with their quotas; return the epoch of the accounts actor.

        Raises:
            AdmissionError: If the accounts are unreachable.
        """
        try:
            self._actor = self._find(self._config)
            running: str = await self._actor.version.remote()
            if is_older(running):
                log_event(logger, logging.INFO, "accounts.replaced", version=running)
                await self._actor.retire.remote()
                ray.kill(self._actor, no_restart=True)
                self._actor = self._find(self._config)
            epoch: Epoch = await self._actor.configure.remote(dict(tenants))
        except (RayError, ValueError) as error:
            raise _unreachable_error(error) from None
        return epoch

    async def exchange(self, told: Exchange) -> Answer:
        """Send a scheduler's usage and reservations of quotas; return the accounts' answer.

        Raises:
            AdmissionError: If the accounts are unreachable.
        """
        assert self._actor is not None, "configured first"
        try:
            answer: Answer = await self._actor.exchange.remote(told)
        except RayError as error:
            raise _unreachable_error(error) from None
        return answer


def get_accounts(config: AppConfig) -> ActorHandle:
    """Return a Serve application's quota accounts actor; start it if it does not run."""
    name = f"{ACCOUNTS_PREFIX}{config.name}"
    return get_detached(AccountsActor, name, config, _MAX_CONCURRENCY)


def end_accounts(application: str, namespace: str) -> bool:
    """End a Serve application's quota accounts actor and its Redis; return whether it ran."""
    return end_detached(f"{ACCOUNTS_PREFIX}{application}", namespace, "accounts.killed_unsaved")


def _unreachable_error(error: Exception) -> AdmissionError:
    if isinstance(error, RayActorError):
        return AdmissionError("the accounts are being started again")
    cause = error.cause if isinstance(error, RayTaskError) else error
    return AdmissionError(f"the accounts cannot answer now: {cause}")
