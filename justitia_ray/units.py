"""The quantities and ids of the project, named once.

The aliases document; they are not enforced, so that exact arithmetic (`fractions.Fraction`) can be
put in wherever a `KvTokenTime` or a `VirtualTime` is expected, as the oracle tests do.
"""

from typing import TypeAlias

Seconds: TypeAlias = float
"""A duration, or an instant on the caller's monotonic clock (`…_at`)."""

Tokens: TypeAlias = int
"""A count of tokens; of KV memory too, where one token fills one KV slot in every layer."""

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
"""Id of a client, whose service a policy compares: an application's id, or a tenant's name."""
Epoch: TypeAlias = int
