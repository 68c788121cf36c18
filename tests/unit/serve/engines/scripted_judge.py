"""A judge of grammars that does what they say, for workers without vLLM."""

import os
import pickle
import time
from collections.abc import Callable

from justitia_ray.serve.engines.grammar_worker import Judge


def scripted_judge(config: str) -> Callable[[], Judge]:
    """Return a maker of judges; `config` may say that there is none."""
    if config == "broken":
        raise RuntimeError("no such model")

    def judge(raw: bytes) -> bytes:
        word, _, argument = pickle.loads(raw).partition(" ")
        if word == "sleep":
            time.sleep(float(argument))
        elif word == "eat":
            bytearray(int(argument))
        elif word == "crash":
            os.abort()
        elif word == "refuse":
            raise ValueError(argument)
        return pickle.dumps(f"checked {word}, {os.getpid()}")

    return lambda: judge
