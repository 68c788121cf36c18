"""Programs that use third-party libraries; each runs as a process and prints JSON.

They run in separate processes because these libraries leave connections to the garbage collector,
which would close them during another test.
"""

from pydantic import BaseModel


class Weather(BaseModel):
    warm: bool
