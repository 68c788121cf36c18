"""Prolong a new replica's start until its prefix cache is filled.

Serve's rolling update stops further old replicas as soon as new ones have started. Each stopped
replica loses the cached contexts of its agents, so a fast update would lose all of them at once.
"""

import asyncio

from justitia_ray.serve.replica.lease_table import LeaseTable
from justitia_ray.units import Seconds, Tokens

IDLE_S: Seconds = 2.0
"""Seconds without a lease after which no call is expected to fill the prefix cache."""
_LOOK_S: Seconds = 0.25


async def wait_until_filled(leases: LeaseTable, kv_tokens: Tokens, limit_s: Seconds) -> bool:
    """Wait until a replica has computed a KV memory's size of prompt tokens.

    Args:
        leases: Leases of the replica, which already pulls.
        kv_tokens: KV memory of the replica in tokens.
        limit_s: Maximum wait.

    Returns:
        Whether the cache is filled; False after the maximum wait, or if no lease comes for
            `IDLE_S`.
    """
    clock = asyncio.get_running_loop().time
    began_at = busy_at = clock()
    read = 0
    while clock() < began_at + limit_s:
        if _is_filled(leases, kv_tokens):
            return True
        if leases.held_leases or leases.prompt_tokens != read:
            read, busy_at = leases.prompt_tokens, clock()
        elif clock() >= busy_at + IDLE_S:
            return False
        await asyncio.sleep(_LOOK_S)
    return _is_filled(leases, kv_tokens)


def _is_filled(leases: LeaseTable, kv_tokens: Tokens) -> bool:
    return leases.prompt_tokens - leases.cached_tokens >= kv_tokens
