"""Training samples from a data directory: recorded runs joined to their inputs."""

from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.predictor.observation import Sample
from justitia_ray.sim.suites.inputs import load_inputs
from justitia_ray.sim.suites.recorded import inferences_of, load_runs


def recorded_classes(data_dir: Path) -> list[str]:
    """Return the classes with a file in `data_dir/recorded/`, by name.

    Raises:
        ConfigError: If there is no such directory, or no file in it.
    """
    folder = data_dir / "recorded"
    try:
        names = sorted(path.stem for path in folder.iterdir() if path.suffix == ".jsonl")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from error
    if not names:
        raise ConfigError(f"{folder}: must hold a file CLASS.jsonl, has none")
    return names


def load_samples(
    data_dir: Path, application_class: str, runs_dir: Path | None = None
) -> list[Sample]:
    """Return a class's recorded runs as training samples, with their texts.

    A run's cost is what the simulator computes from its inferences. Runs without an `item_id` have
    no known input and are left out.

    Args:
        data_dir: Directory with the inputs, in `apps/`.
        application_class: The class; it may have no runs.
        runs_dir: Directory with the runs, in `recorded/`; None: `data_dir`.

    Raises:
        ConfigError: If a file is wrong, or a run's input is not among the inputs.
    """
    runs = load_runs(runs_dir or data_dir, application_class)
    if all(run.item_id is None for run in runs):
        return []
    texts = {item.item_id: item.text for item in load_inputs(data_dir, application_class)}
    samples = []
    for run in runs:
        if run.item_id is None:
            continue
        if run.item_id not in texts:
            raise ConfigError(
                f"{(runs_dir or data_dir) / 'recorded' / application_class}.jsonl: item_id"
                f" {run.item_id!r} must be among those of"
                f" {data_dir / 'apps' / application_class}.jsonl, is not"
            )
        calls = ((i.prompt_tokens, i.output_tokens) for i in inferences_of(run))
        samples.append(Sample.of_calls(calls, texts[run.item_id]))
    return samples
