"""Salts of the engine's prefix cache, which keep one tenant from finding another's prompts.

vLLM hashes a request's `cache_salt` into the first block of its prompt, so requests with different
salts share no blocks. Each request here gets a digest of its tenant and the caller's own salt; no
caller can choose a salt that gives another tenant's digest.
"""

import hashlib
from collections import OrderedDict

from justitia_ray.errors import RequestError, shown_short
from justitia_ray.protocol.cache_scope import Isolation, cache_scope
from justitia_ray.units import Seconds

_IDLE_S: Seconds = 600.0
"""Seconds without use after which a caller's cache salt no longer counts towards the limit."""
_LONGEST = 128
"""Maximum length of a caller's cache salt in characters, as in vLLM."""


class CacheSalts:
    """Computes vLLM's `cache_salt` of requests, which separates the prefix caches of tenants.

    Args:
        isolation: Which callers share cached prompts: those of one tenant, of one tree, or all.
        most: Maximum number of salts that the callers of one tenant, or tree, use at a time.
    """

    def __init__(self, isolation: Isolation, most: int) -> None:
        self._isolation = isolation
        self._most = most
        self._used: OrderedDict[str, OrderedDict[str, Seconds]] = OrderedDict()
        """Cache salts that each tenant's callers have sent, least recently used first."""

    def salt(self, tenant: str, own: str | None, now: Seconds) -> str | None:
        """Return the prefix-cache salt of a request; None if it shares the cache with all tenants.

        Args:
            tenant: The request's tenant.
            own: The salt that the caller sent, if any.
            now: Current time of any monotonic clock.

        Raises:
            RequestError: If the caller's salt is too long, or the tenant has reached the limit of
                salts.
        """
        scope = cache_scope(self._isolation, tenant)
        if own is None:
            return self._digest_of(scope) if scope else None
        if len(own) > _LONGEST:
            raise RequestError(
                f"cache_salt is {shown_short(own)}: at most {_LONGEST} characters are allowed",
                "cache_salt",
            )
        self._note_salt(scope, own, now)
        return self._digest_of(scope, own)

    def _note_salt(self, scope: str, own: str, now: Seconds) -> None:
        while self._used:
            oldest, its_salts = next(iter(self._used.items()))
            if now - next(reversed(its_salts.values())) < _IDLE_S:
                break
            del self._used[oldest]
        used = self._used.get(scope) or OrderedDict()
        used.pop(own, None)
        while used and now - next(iter(used.values())) >= _IDLE_S:
            used.popitem(last=False)
        if len(used) >= self._most:
            raise RequestError(
                f"cache_salt is one more than the {self._most} that the callers of one tenant may"
                f" use within {_IDLE_S:g} s (engine.max_cache_salts)",
                "cache_salt",
            )
        used[own] = now
        self._used[scope] = used
        self._used.move_to_end(scope)

    @staticmethod
    def _digest_of(*parts: str) -> str:
        """Return a digest of texts, each prefixed with its length, that reveals none of them."""
        framed = b"".join(b"%d:%b" % (len(raw), raw) for raw in (part.encode() for part in parts))
        return hashlib.sha256(framed).hexdigest()
