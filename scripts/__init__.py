"""The repository's verbs: one short bash file each, with its Python entry beside it.

Not part of the wheel. Imported from the repository's root, as `scripts.bench_core`.
"""
