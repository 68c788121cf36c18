"""Independent models with which tests compare the code."""
