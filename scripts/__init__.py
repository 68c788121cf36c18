"""Commands of the repository: each a short bash file with a Python module of the same name.

Not part of the wheel. Imported from the repository's root, as `scripts.bench_core`.
"""
