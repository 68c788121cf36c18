"""Strikes what an application runs on: its Redis, Ray's GCS; and changes it under load by Serve."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from justitia_ray.chaos.kinds import Kind
from justitia_ray.chaos.notes import Hit
from justitia_ray.chaos.plan import Strike
from justitia_ray.serve.chaos_cluster import ChaosCluster, gcs_answers
from justitia_ray.serve.chaos_patience import in_thread, until
from justitia_ray.serve.chaos_strikes import Way, hit_of
from justitia_ray.serve.stores import scheduler_store
from justitia_ray.units import Seconds


class Upheavals:
    """Breaks and changes one cluster."""

    def __init__(
        self, cluster: ChaosCluster, away_s: Seconds, killed_s: Seconds, *, everything: bool
    ) -> None:
        """Prepare; nothing is broken yet.

        Args:
            cluster: Running.
            away_s: How long Redis is stopped.
            killed_s: How long a killed server stays away.
            everything: Whether another version is of all deployments, or of the replicas.
        """
        self._cluster = cluster
        self._away_s = away_s
        self._killed_s = killed_s
        self._everything = everything

    @property
    def ways(self) -> Mapping[Kind, Way]:
        """How each kind is carried out."""
        return {
            Kind.REDIS_KILLED: self._kill_redis,
            Kind.REDIS_STOPPED: self._stop_redis,
            Kind.REDIS_EMPTIED: self._empty_redis,
            Kind.GCS_KILLED: self._kill_gcs,
            Kind.SCALED: self._scale,
            Kind.REDEPLOYED: self._redeploy,
        }

    # --- Redis

    async def _kill_redis(self, strike: Strike) -> Hit:
        return await self._restart_redis(Kind.REDIS_KILLED, strike, keep=True)

    async def _empty_redis(self, strike: Strike) -> Hit:
        hit = await self._restart_redis(Kind.REDIS_EMPTIED, strike, keep=False)
        await until(self._state_is_back, "the state is in Redis again")
        return _done(hit)

    async def _restart_redis(self, kind: Kind, strike: Strike, *, keep: bool) -> Hit:
        store = self._cluster.store
        struck_at = time.monotonic()
        store.kill()
        if not keep:
            store.empty()
        await asyncio.sleep(self._killed_s)
        store.start()  # in this thread: the server ends with the thread that has started it
        return hit_of(kind, strike, struck_at)

    async def _stop_redis(self, strike: Strike) -> Hit:
        store = self._cluster.store
        struck_at = time.monotonic()
        store.suspend()
        try:
            await asyncio.sleep(self._away_s)
        finally:
            store.resume()
        return hit_of(Kind.REDIS_STOPPED, strike, struck_at)

    async def _state_is_back(self) -> bool:
        store = scheduler_store(self._cluster.target.config)
        try:
            stored = await store.load()
        finally:
            await store.aclose()
        status = await self._cluster.target.status()
        return stored.clock is not None and len(stored.applications) >= status["applications"]

    # --- GCS, and what Serve changes

    async def _kill_gcs(self, strike: Strike) -> Hit:
        struck_at = time.monotonic()
        await asyncio.to_thread(self._cluster.kill_gcs)
        await asyncio.sleep(self._killed_s)
        self._cluster.start_gcs()
        hit = hit_of(Kind.GCS_KILLED, strike, struck_at)
        await until(in_thread(gcs_answers), "the GCS and Serve's controller answer")
        return _done(hit)

    async def _scale(self, strike: Strike) -> Hit:
        struck_at = time.monotonic()
        whole = self._cluster.target.wanted["Replica"]
        for replicas in (whole - 1, whole):
            await asyncio.to_thread(self._cluster.scale, replicas)
            await until(in_thread(self._cluster.target.is_whole), f"{replicas} replicas run")
        hit = hit_of(Kind.SCALED, strike, struck_at, struck_at)
        return _done(hit)

    async def _redeploy(self, strike: Strike) -> Hit:
        struck_at = time.monotonic()
        before = {
            member.pid
            for member in await asyncio.to_thread(self._cluster.target.running, "Replica")
        }
        change = self._cluster.change_version
        await asyncio.to_thread(change, everything=self._everything)
        await until(in_thread(self._is_replaced, before), "the new version is whole")
        return _done(hit_of(Kind.REDEPLOYED, strike, struck_at, struck_at))

    def _is_replaced(self, before: set[int]) -> bool:
        now = {member.pid for member in self._cluster.target.members("Replica")}
        return not before & now and self._cluster.target.is_whole()


def _done(hit: Hit) -> Hit:
    return replace(hit, done_at=time.monotonic())
