"""Names of this service's own HTTP headers, in lower case as servers give them."""

APPLICATION_HEADER = "x-justitia-application"
CLASS_HEADER = "x-justitia-class"
TENANT_HEADER = "x-justitia-tenant"

REPLICA_HEADER = "x-justitia-replica"
WAITED_HEADER = "x-justitia-waited-s"
RAN_HEADER = "x-justitia-ran-s"
LEASED_HEADER = "x-justitia-leased-s"
"""Set by the replica, if it has the whole answer before its head goes: not in streams."""
