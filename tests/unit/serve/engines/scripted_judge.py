"""A grammar judge without vLLM that returns the verdict written in the grammar itself."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from justitia_ray.serve.engines.grammar_worker import Judge


def scripted_judge(config: str) -> Callable[[], Judge]:
    """Return a factory of fake grammar compilers, which fail as `config` says."""
    if config == "broken":
        raise RuntimeError("no such model")

    def make_judge() -> Judge:
        word, _, path = config.partition(" ")
        if word == "needs" and not Path(path).exists():
            raise OSError("no room for a judge")
        return judge

    def judge(raw: bytes) -> bytes:
        word, _, argument = json.loads(raw)["do"].partition(" ")
        if word == "sleep":
            time.sleep(float(argument))
        elif word == "eat":
            bytearray(int(argument))
        elif word == "crash":
            os.abort()
        elif word == "refuse":
            raise ValueError(argument)
        elif word == "panic":
            raise BaseException(argument)
        elif word == "once":
            mark, _, kind = argument.partition(" ")
            if not Path(mark).exists():
                Path(mark).touch()
                if kind == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise {"disk": OSError, "package": ImportError}[kind]("it is full")
        return json.dumps({"do": f"checked {word}, {os.getpid()}"}).encode()

    return make_judge
