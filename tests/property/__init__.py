"""Property tests of the scheduling core over random inputs."""
