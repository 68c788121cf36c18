"""The models of the CPU quick start and of the tests: tiny, random, built on the spot.

They need no download and no GPU. What they say is noise; costs, lengths and timings are those of a
real engine.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.serve.tiny_adapter import build_tiny_adapter
from justitia_ray.serve.tiny_bert import build_tiny_embedding, build_tiny_reranker
from justitia_ray.serve.tiny_llama import build_tiny_llama

_PREFIX = "random:"
_BUILDERS: dict[str, Callable[[Path], None]] = {
    "tiny-adapter": build_tiny_adapter,
    "tiny-embedding": build_tiny_embedding,
    "tiny-llama": build_tiny_llama,
    "tiny-reranker": build_tiny_reranker,
}


def materialise_model(path: str, cache_dir: Path) -> str:
    """Return a model path that vLLM and transformers can load, building a `random:` model first.

    A built model stays in `cache_dir/<name>-<python version>`: its tokenizer is trained on the
    standard library, so another Python would build another one. Several processes may do this at
    once; they all get the same complete directory.

    Args:
        path: `random:` and a name of those below, a directory, or a name on the hub; the last two
            are returned unchanged.
        cache_dir: Where built models are kept; created if missing.

    Raises:
        ConfigError: If `path` is an unknown `random:` model.
    """
    if not path.startswith(_PREFIX):
        return path
    name = path.removeprefix(_PREFIX)
    build = _BUILDERS.get(name)
    if build is None:
        allowed = ", ".join(f"{_PREFIX}{known}" for known in sorted(_BUILDERS))
        raise ConfigError(f"model: unknown built-in model {path!r}; allowed: {allowed}")
    directory = cache_dir / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    if not directory.exists():
        _build_atomically(build, directory)
    return str(directory)


def _build_atomically(build: Callable[[Path], None], directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        build(unfinished)
        unfinished.rename(directory)
    except OSError:
        # rename() onto a directory that is not empty fails: another process was faster, and what
        # it built is complete.
        if not directory.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
