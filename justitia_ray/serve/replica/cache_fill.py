"""A new replica's start, prolonged until its prefix cache is worth something.

Serve's rolling update stops further old replicas when the new ones have started. The contexts of
agents are lost with each, so that an update that goes on at once loses all of them together.
"""

import asyncio

from justitia_ray.serve.replica.lease_table import LeaseTable
from justitia_ray.units import Seconds, Tokens

IDLE_S: Seconds = 2.0
"""Without a lease for so long, nothing comes that could fill the cache."""
_LOOK_S: Seconds = 0.25


async def wait_until_filled(leases: LeaseTable, kv_tokens: Tokens, limit_s: Seconds) -> bool:
    """Wait until the prompt tokens that a replica has computed would fill its KV memory.

    Args:
        leases: Of the replica, which pulls already.
        kv_tokens: Its KV memory.
        limit_s: Longest wait.

    Returns:
        Whether they would; False after the longest wait, or if no lease has come for a while.
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
