"""Programs on other people's libraries, each run as one: what they are told goes to stdout as JSON.

Processes of their own, because these libraries leave connections to the garbage collector, which
would find them in whichever test is running then.
"""

from pydantic import BaseModel


class Weather(BaseModel):
    """How it is there."""

    warm: bool
