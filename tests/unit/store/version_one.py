"""Records in the form of the first releases, with schema version 1."""

CLOCK = {"virtual_time": 12.5, "kind": "served", "sequence": 9}
APPLICATION = {
    "finish": 1_012.5,
    "weight": 1.0,
    "sequence": 3,
    "application_class": "report",
    "tenant": "t",
    "predicted_kv_token_time": 1_000.0,
    "ingress_id": "i",
    "arrived_at": 900.0,
    "inferences": 2,
    "output_tokens": 20,
    "first_dispatched_at": 901.0,
    "failed": 0,
    "unfinished_kv_token_time": 0.0,
    "charged": 1_000.0,
    "attained": 640.0,
    "withdrawn": False,
    "settlements": 0,
    "state": "open",
}
SESSION = {"finish": 20.0, "weight": 2.0, "sequence": 1}
"""Session of an application that ended before GPS would have finished it."""
