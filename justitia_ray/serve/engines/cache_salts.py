"""Salts of the engine's prefix cache: what one tenant has sent is not found by another.

vLLM hashes a request's `cache_salt` into the first block of its prompt, so that requests of
different salts share no blocks. Here every request gets one that is made of its tenant and of the
salt that its caller named. Both go through one digest: no salt that a caller may name gives that
of another tenant.
"""

import hashlib
from collections import OrderedDict

from justitia_ray.errors import RequestError, shown_short
from justitia_ray.protocol.cache_scope import Isolation, cache_scope
from justitia_ray.units import Seconds

_IDLE_S: Seconds = 600.0
"""A caller's salt that was not used for so long does not count any more."""
_LONGEST = 128
"""Characters of a caller's salt; as in vLLM."""


class CacheSalts:
    """The salts of the requests of one engine.

    Args:
        isolation: Which callers share what is cached: those of one tenant, of one tree, or all.
        most: Maximum salts that the callers of one tenant, or tree, use at a time.
    """

    def __init__(self, isolation: Isolation, most: int) -> None:
        self._isolation = isolation
        self._most = most
        self._used: OrderedDict[str, OrderedDict[str, Seconds]] = OrderedDict()
        """For each tenant, the salts that its callers named; of both, the latest used last."""

    def salt(self, tenant: str, own: str | None, now: Seconds) -> str | None:
        """Return the salt of a request; None: it shares with everybody.

        Args:
            tenant: The request's.
            own: The salt that its caller named, if any.
            now: Instant of any monotonic clock.

        Raises:
            RequestError: If the caller's salt is too long, or one too many.
        """
        scope = cache_scope(self._isolation, tenant)
        if own is None:
            return self._digest(scope) if scope else None
        if len(own) > _LONGEST:
            raise RequestError(
                f"cache_salt is {shown_short(own)}: at most {_LONGEST} characters are allowed",
                "cache_salt",
            )
        self._note(scope, own, now)
        return self._digest(scope, own)

    def _note(self, scope: str, own: str, now: Seconds) -> None:
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
    def _digest(*parts: str) -> str:
        """Return a digest from which no part can be told, nor parts be moved into each other."""
        framed = b"".join(b"%d:%b" % (len(raw), raw) for raw in (part.encode() for part in parts))
        return hashlib.sha256(framed).hexdigest()
