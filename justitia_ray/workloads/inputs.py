"""The texts that users submit."""

from dataclasses import dataclass
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.workloads.household_games import opening
from justitia_ray.workloads.json_lines import read_records
from justitia_ray.workloads.python_texts import python_texts

_GAMES = 40
"""As many as there are texts of another class."""


@dataclass(frozen=True, slots=True)
class Input:
    """One text that a user submits."""

    item_id: str
    text: str


def load_inputs(data_dir: Path | None, application_class: str) -> list[Input]:
    """Return the inputs of a class, at least one, always in the same order.

    Args:
        data_dir: Where `apps/CLASS.jsonl` lies. Without one, real texts come from the installed
            Python distribution (`python_texts`), and openings of games from `household_games`.
        application_class: The class.

    Raises:
        ConfigError: If the file is missing, empty or wrong (file, line and field are named), or
            there is no directory and the class is not one that Python's texts serve.
    """
    if data_dir is None:
        texts = (
            [opening(seed) for seed in range(_GAMES)]
            if application_class == "ALFWI"
            else python_texts(application_class)
        )
        return [
            Input(f"{application_class}-{number:03d}", text) for number, text in enumerate(texts)
        ]
    path = data_dir / "apps" / f"{application_class}.jsonl"
    inputs = [Input(record.text("id"), record.text("input")) for record in read_records(path)]
    if not inputs:
        raise ConfigError(f"{path}: must hold at least one input, is empty")
    return inputs
