"""The measuring of scripts/bench_serve, without a service."""
