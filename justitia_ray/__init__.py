"""Fair, fast serving of LLM applications on Ray Serve and vLLM."""

__version__ = "0.3.0.dev0"
