"""Types of the project's quantities and ids.

The aliases are not distinct types, so that exact arithmetic (`fractions.Fraction`) can replace
floats wherever a `KvTokenTime` or a `VirtualTime` is expected, as in the oracle tests.
"""

from typing import TypeAlias

Seconds: TypeAlias = float
"""A duration, or a time on a monotonic clock (`…_at`), in seconds."""

Tokens: TypeAlias = int
"""A number of tokens, also of KV memory: a token takes one KV slot in every layer."""

KvTokenTime: TypeAlias = float
"""KV memory held over decode iterations, in token·iterations (Justitia v1, Sec. IV-A, Eq. 1)."""

VirtualTime: TypeAlias = float
"""Service that one unit of weight has received under GPS, in token·iterations per weight."""

ApplicationId: TypeAlias = str
InferenceId: TypeAlias = str
RequestId: TypeAlias = str
LeaseId: TypeAlias = str
ReplicaId: TypeAlias = str
IngressId: TypeAlias = str
ClientId: TypeAlias = str
"""Id of an application or a tenant, whichever the policy shares the service between."""
Epoch: TypeAlias = int
