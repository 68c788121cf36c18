"""Properties of the scheduling core, over random inputs."""
