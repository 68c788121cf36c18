"""Check that the deployment gives the ranks of an engine on several GPUs their GPUs.

vLLM divides a model by tensors inside a layer (`tensor_parallel_size`) and by layers
(`pipeline_parallel_size`); each part is a rank, a process with its own GPU. The ranks are either
processes beside the engine's process on one node, with the GPUs of the replica's actor
(`distributed_executor_backend: mp`), or Ray actors in the bundles of the replica's placement group,
on any number of nodes (`ray`). A deployment that mixes both would wait forever for ranks without a
GPU, so it is refused before it is deployed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from justitia_ray.config import EngineSection

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")
_BACKEND = "distributed_executor_backend"


def gpu_mistakes(engine: EngineSection, deployment: Mapping[str, Any], key: str) -> Iterator[str]:
    """Yield an error for each setting by which ranks of an engine would not get their own GPUs.

    Args:
        engine: The settings of the engine.
        deployment: The replicas' deployment in Serve's file. A deployment that requests no GPU,
            neither for the actor nor in bundles, is assumed to run on CPUs.
        key: Path of the deployment in the file, with a dot at its end.
    """
    given = {name.replace("-", "_"): value for name, value in engine.vllm_args.items()}
    sizes = [given.get(name, 1) for name in _SIZES]
    if engine.kind != "vllm" or not all(isinstance(size, int) for size in sizes):
        return  # vLLM's own parser reports sizes that are not numbers
    ranks = int(sizes[0]) * int(sizes[1])
    needs = f"{' x '.join(_SIZES)} is {ranks}"
    own = float((deployment.get("ray_actor_options") or {}).get("num_gpus") or 0)
    bundles = [
        float(bundle.get("GPU", 0)) for bundle in deployment.get("placement_group_bundles") or ()
    ]
    if not own and not any(bundles):
        return
    if given.get(_BACKEND) == "ray":
        yield from _bundle_errors(ranks, needs, own, bundles, key)
    elif any(bundles) and not own:
        yield (
            f"{key}placement_group_bundles: only ranks that are actors of Ray reach their GPUs;"
            f" vllm_args needs {_BACKEND}: ray (got {given.get(_BACKEND)!r})"
        )
    elif own != ranks and not (ranks == 1 and 0 < own < 1):
        yield (
            f"{key}ray_actor_options.num_gpus: {ranks} is allowed, one for each rank ({needs});"
            f" got {own:g}. For ranks on several nodes, see placement_group_bundles in"
            " deployments/large-models.md"
        )


def _bundle_errors(
    ranks: int, needs: str, own: float, bundles: list[float], key: str
) -> Iterator[str]:
    if own:
        yield (
            f"{key}ray_actor_options.num_gpus: 0 is allowed with {_BACKEND}: ray, for the ranks are"
            f" actors with the GPUs of placement_group_bundles, and the replica's is none (got"
            f" {own:g})"
        )
    if not bundles:
        yield f"{key}placement_group_bundles: {ranks} of one GPU each are needed ({needs})"
        return
    for index, gpus in enumerate(bundles):
        if gpus not in (0, 1):
            yield (
                f"{key}placement_group_bundles[{index}].GPU: 1 is allowed, vLLM puts one rank into"
                f" a bundle (got {gpus:g})"
            )
    if all(gpus in (0, 1) for gpus in bundles) and sum(bundles) != ranks:
        yield (
            f"{key}placement_group_bundles: {ranks} with a GPU are needed, one for each rank"
            f" ({needs}); got {sum(bundles):g}"
        )
