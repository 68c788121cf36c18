"""The head of an answer says where it was made and how long it waited."""

from justitia_ray.core.actions import Grant
from justitia_ray.serve.answer_headers import served_by


def test_head_names_replica_and_wait_beside_what_the_engine_said() -> None:
    """A caller can tell a slow engine from a full queue; the benchmark's profile rests on it."""
    grant = Grant("r", "i", "lease", "replica-7", 0, 100, waited_s=1.25)
    head = {"content-type": "application/json"}

    assert {
        "content-type": "application/json",
        "x-justitia-replica": "replica-7",
        "x-justitia-waited-s": "1.2500",
    } == served_by(head, grant)
    assert ["content-type"] == list(head)
