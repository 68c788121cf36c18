"""Names of prompt prefixes, by which the scheduler finds prompts that share a prefix.

A name is a digest keyed with the scheduler's secret, so that no caller can construct different
prompts of one name: their memory would be counted once, and an engine would get more than it has
room for. All ingress processes have that secret. A restarted scheduler has a new secret, so earlier
and later prompts do not share. The tenant, its salt and the adapter are in every digest, as they
are in the blocks of the engine's cache.
"""

import hashlib
from collections.abc import Iterable

from justitia_ray.core.prefixes import (
    DIGEST_BYTES,
    LONGEST_PREFIX,
    MAXIMUM_PREFIXES,
    Prefix,
    pack_prefixes,
)
from justitia_ray.protocol.cache_scope import Isolation, cache_scope, reads_cache
from justitia_ray.protocol.inference_body import InferenceBody, PromptCount
from justitia_ray.serve.transport.handshake import Keyring
from justitia_ray.units import Tokens

_STEPS = 4
"""Number of prefix lengths that are hashed between a number of KV blocks and its double."""


class PrefixNames:
    """Hashes prefixes of one model's prompts, so that the scheduler recognizes shared prefixes.

    Args:
        isolation: Which callers share cached prefixes (`engine.cache_isolation`).
        keyring: Keys, which include the scheduler's secret.
    """

    def __init__(self, isolation: Isolation, keyring: Keyring) -> None:
        self._isolation = isolation
        self._keyring = keyring
        self.block_size: Tokens = 0
        """KV block size of the engines' prefix caches in tokens; 0 without prefix cache, or while
        unknown.
        """

    def shares(self, body: InferenceBody) -> bool:
        """Return whether prompts of a request may share the memory of prefixes with others.

        A truncated prompt may not, because its start is unknown.
        """
        return bool(self.block_size) and body.keeps is None and reads_cache(body)

    def names(self, count: PromptCount, body: InferenceBody, tenant: str) -> bytes:
        """Return the packed hashes of a prompt's prefixes, at most four, the longest last.

        Args:
            count: Count of the prompt, with its token ids.
            body: Body of the request, with this prompt only.
            tenant: Tenant of the request.
        """
        keys, block = self._keyring.keys, self.block_size
        if count.ids is None or not keys or not block:
            return b""
        whole = min((len(count.ids) - 1) // block, LONGEST_PREFIX // block)
        cuts = {min(cut // block, whole) for cut in count.cuts} or _round_lengths(whole)
        lengths = sorted({length for length in cuts | {whole} if length > 0})
        digest = hashlib.blake2b(key=keys[0].secret, digest_size=DIGEST_BYTES)
        digest.update(_length_prefixed(self._cache_scope(body, tenant)))
        found, begin = [], 0
        for length in lengths[-MAXIMUM_PREFIXES:]:
            digest.update(memoryview(count.ids)[begin : length * block])
            begin = length * block
            found.append(Prefix(begin, digest.digest()))
        return pack_prefixes(found)

    def _cache_scope(self, body: InferenceBody, tenant: str) -> Iterable[str]:
        """Yield values that keep equal text of two requests apart in the engine's prefix cache."""
        if scope := cache_scope(self._isolation, tenant):
            yield scope
        for name in ("cache_salt", "model", "add_special_tokens"):
            yield str(body.fields.get(name))


def _round_lengths(most: int) -> set[int]:
    """Return the longest round numbers of blocks up to `most`, four between n and 2n.

    So texts of different lengths with a common prefix have a name for most of it.
    """
    step = 1
    while step * 2 * _STEPS <= most:
        step *= 2
    last = most // step * step
    return {last - n * step for n in range(MAXIMUM_PREFIXES - 1)}


def _length_prefixed(parts: Iterable[str]) -> bytes:
    return b"".join(b"%d:%b" % (len(raw), raw) for raw in (part.encode() for part in parts))
