"""Independent models that the tests compare with."""
