"""What the head of an answer says of how its inference was served."""

from collections.abc import Mapping

from justitia_ray.core.actions import Grant
from justitia_ray.protocol.headers import REPLICA_HEADER, WAITED_HEADER


def served_by(head: Mapping[str, str], grant: Grant) -> dict[str, str]:
    """Return the headers of an answer with the replica that made it and the time in the queue.

    Args:
        head: The engine's own.
        grant: The lease that it was made under; of a stream that was cut, the first.
    """
    waited = f"{grant.waited_s:.4f}"
    return {**head, REPLICA_HEADER: grant.replica_id, WAITED_HEADER: waited}
