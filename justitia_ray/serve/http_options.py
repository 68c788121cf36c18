"""Read Serve's HTTP options from its controller."""

import logging

import ray
from ray.exceptions import RayError
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.config import HTTPOptions

from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")

_CONTROLLER_S = 5.0
"""Timeout in seconds for an answer of Ray Serve's controller, which usually answers within
milliseconds.
"""


def read_http_options(consequence: str) -> HTTPOptions | None:
    """Return Ray Serve's HTTP options; None if Serve does not run or its controller is silent.

    Args:
        consequence: Effect of not knowing the options; logged if the controller does not answer.
    """
    if not ray.is_initialized():  # a call would start a cluster
        return None
    try:
        # Serve's own client would wait for the controller without a timeout.
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        options: HTTPOptions = ray.get(controller.get_http_config.remote(), timeout=_CONTROLLER_S)
    except ValueError:  # Serve does not run
        return None
    except RayError as error:
        logger.warning(
            "Serve's controller does not say its http_options (%s): %s",
            type(error).__name__,
            consequence,
        )
        return None
    return options


def read_request_limit() -> Seconds | None:
    """Return `request_timeout_s` of Ray Serve's HTTP options; None: no timeout."""
    options = read_http_options("its request_timeout_s, which callers can lift, is not enforced")
    limit_s = None if options is None else options.request_timeout_s
    return limit_s if limit_s is not None and limit_s > 0 else None
