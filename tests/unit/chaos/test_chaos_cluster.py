"""What the application that is broken is configured with."""

from pathlib import Path

from justitia_ray.serve.chaos_cluster import merge
from justitia_ray.serve.local_cluster import read_serve_config


def test_arguments_change_what_they_name_and_keep_the_rest_of_the_file() -> None:
    """An engine that lost the file's other settings would not be the one that is deployed."""
    file = Path("deployments/local-cpu.yaml")
    before, after = (read_serve_config(file)["applications"][0]["args"] for _ in range(2))
    merge(after, {"engine": {"vllm_args": {"max_num_seqs": 2}}, "replica": {"heartbeat_s": 2.0}})

    before["engine"]["vllm_args"]["max_num_seqs"] = 2
    assert before | {"replica": {"heartbeat_s": 2.0}} == after
