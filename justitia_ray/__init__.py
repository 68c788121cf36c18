"""Fair, fast serving of LLM applications on Ray Serve and vLLM."""

__version__ = "0.2.0"
