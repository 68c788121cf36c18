"""Parameters by which an inference tells vLLM's connector which context to hold, and how long.

The parameters travel in vLLM's `SamplingParams.extra_args`. A caller's own `kv_transfer_params` are
removed: otherwise any caller could hold contexts.
"""

import json
from collections.abc import Mapping
from copy import copy
from typing import Any

from justitia_ray.protocol.engine import Hold

_NAME = "kv_transfer_params"
TRANSFER_CONFIG = json.dumps(
    {
        "kv_connector": "ContextHoldConnector",
        "kv_connector_module_path": "justitia_ray.serve.engines.hold_connector",
        "kv_role": "kv_producer",
    }
)
"""vLLM's option `kv_transfer_config` for the connector that holds contexts. With the role
`kv_both`, vLLM would free blocks one step later.
"""


def read_hold(given: Mapping[str, Any] | None) -> Hold | None:
    """Return the time to hold a vLLM request's context, from its `kv_transfer_params`."""
    if not given:
        return None
    return Hold(given["application_id"], given["for_s"], tuple(given["ended"]))


def with_hold(params: Any, hold: Hold | None) -> Any:
    """Return vLLM's `SamplingParams` with a context hold, and without the caller's KV parameters.

    Args:
        params: vLLM's parameters, which callers may share; None for prompts without generation.
        hold: The hold; None: the context is not held.
    """
    if params is None:
        return None
    own = dict(params.extra_args or {})
    if hold is None and _NAME not in own:
        return params
    own.pop(_NAME, None)
    if hold is not None:
        own[_NAME] = hold._asdict()
    params = copy(params)
    params.extra_args = own or None
    return params
