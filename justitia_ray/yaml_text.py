"""Read YAML that an operator writes; a key that is given twice in one mapping is an error."""

from typing import Any

import yaml

from justitia_ray.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"


class _UniqueKeyLoader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a YAML mapping, and refuse equal keys, of which PyYAML would take the last."""
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name = (key.tag, key.value)
            if name in seen:
                reason = f"the key {key.value!r} is given twice in one mapping"
                raise yaml.constructor.ConstructorError(None, None, reason, key.start_mark)
            seen.add(name)
        return node


def read_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML document.

    Args:
        text: The document.
        where: Its file or option, for messages.

    Raises:
        ConfigError: If it is not valid, also by its dates, numbers, depth and doubled keys.
    """
    try:
        return yaml.load(text, _UniqueKeyLoader)
    except RecursionError:
        reason = "it nests too deep"
    except (yaml.YAMLError, ValueError) as error:  # such as the date 2026-02-30
        reason = " ".join(str(error).split())
    raise ConfigError(f"{where}: is not YAML: {reason}")
