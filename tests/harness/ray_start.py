"""Start of Ray on a busy machine: up to three attempts if its node starts too late."""

from typing import Any
from unittest import mock

import ray
from ray._private.node import Node

_ATTEMPTS = 3
_LATE = "timed out during startup"
"""Part of Ray's error message if a node's agent, a Python program, imports too slowly on busy
cores.
"""


def start_ray(**options: Any) -> None:
    """Call `ray.init`; if a node starts too late, end its processes and call again.

    Ray has settings for other waits of its start, but none for this.
    """
    nodes: list[Any] = []
    start_node = Node.__init__

    def start_node_and_record(node: Any, *args: Any, **kwargs: Any) -> None:
        nodes.append(node)
        start_node(node, *args, **kwargs)

    with mock.patch.object(Node, "__init__", start_node_and_record):
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                ray.init(**options)
                return
            except Exception as error:  # Ray raises this general type
                if _LATE not in str(error) or not attempts_left:
                    raise
                nodes[-1].kill_all_processes(check_alive=False, wait=True)
