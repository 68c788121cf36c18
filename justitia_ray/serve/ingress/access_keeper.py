"""Access control of an ingress: API keys and token issuers, refreshed regularly."""

import asyncio
import logging
from pathlib import Path
from typing import Any

from justitia_ray.access.gate import Gate
from justitia_ray.access.identity import Identity, Scope
from justitia_ray.access.key_file import KeyFile
from justitia_ray.access.keys import KeyTable, records_from_json
from justitia_ray.access.tokens import Issuer, TokenVerifier
from justitia_ray.config import AccessSection, AppArgs
from justitia_ray.errors import AdmissionError, StoreError
from justitia_ray.observability.log_events import is_logged, log_event
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door
from justitia_ray.serve.ingress.replica_calls import in_fresh_context
from justitia_ray.serve.stores import key_store
from justitia_ray.store.key_store import KeyStore

logger = logging.getLogger("ray.serve")


class RedisKeys:
    """API keys of tenants in Redis, as last read from it."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._table: KeyTable | None = None
        self._trouble: str | None = None

    def table(self) -> KeyTable:
        """Return the API keys as last read from Redis.

        Raises:
            AdmissionError: If the keys were never read, so that no key can be checked.
        """
        if self._table is None:
            raise AdmissionError("the API keys cannot be read from Redis now")
        return self._table

    async def refresh(self) -> None:
        """Read the API keys from Redis; after a failure the keys of the last read stay valid."""
        try:
            stored = await self._store.load()
        except StoreError as error:
            self._note_trouble(str(error))
            return
        records, damage = records_from_json(stored.records)
        self._table = KeyTable(records)
        self._note_trouble("; ".join([*stored.damage, *damage]) or None)

    async def aclose(self) -> None:
        await self._store.aclose()

    def _note_trouble(self, reason: str | None) -> None:
        if reason != self._trouble and reason is not None:
            log_event(logger, logging.ERROR, "access.keys_unreadable", source="redis", why=reason)
        self._trouble = reason


class AccessKeeper:
    """Keeps the API keys and token issuers of an ingress up to date.

    Raises:
        ConfigError: If the file of keys cannot be read, or an issuer's settings are wrong.
    """

    def __init__(self, args: AppArgs) -> None:
        section = args.access
        self._file: KeyFile | None = None
        self._redis: RedisKeys | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._failures = 0
        if section is None:
            self.door = Door(None, DEFAULT_TENANT)
            return
        self._reload_s = section.reload_s
        tables: list[Any] = []
        if section.keys_file is not None:
            self._file = file = KeyFile(Path(section.keys_file).expanduser(), _log_unreadable_file)
            tables.append(lambda: file.table)
        if section.keys_in_redis:
            self._redis = RedisKeys(key_store(args))
            tables.append(self._redis.table)
        issuers = [Issuer(**one.model_dump()) for one in section.jwt]
        tokens = TokenVerifier(issuers, _log_failing_issuer) if issuers else None
        gate = Gate(tables, tokens, _anonymous_identity(section), on_failure=self._note_failure)
        self.door = Door(gate, section.default_tenant)

    async def start(self) -> None:
        """Read the API keys in Redis, and start to refresh all keys periodically."""
        if self._redis is not None:
            await self._redis.refresh()
        if self._file is not None or self._redis is not None:
            self._refreshing = in_fresh_context(self._keep_refreshing())

    async def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
        if self._redis is not None:
            await self._redis.aclose()

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(self._reload_s)
            if self._file is not None:
                await asyncio.to_thread(self._file.refresh)
            if self._redis is not None:
                await self._redis.refresh()

    def _note_failure(self, shown: str) -> None:
        self._failures += 1
        if is_logged(self._failures):
            log_event(
                logger,
                logging.WARNING,
                "access.refused",
                credential=shown,
                failures=self._failures,
            )


def _anonymous_identity(section: AccessSection) -> Identity | None:
    if section.default_tenant is None:
        return None
    return Identity(
        section.default_tenant,
        frozenset({Scope.INFER, Scope.OWN}),
        "anonymous",
        max_weight=section.anonymous_max_weight,
    )


def _log_unreadable_file(reason: str) -> None:
    log_event(logger, logging.ERROR, "access.keys_unreadable", source="file", why=reason)


def _log_failing_issuer(issuer: str, reason: str) -> None:
    log_event(logger, logging.ERROR, "access.issuer_fails", issuer=issuer, why=reason)
