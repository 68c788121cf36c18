"""All code that imports Ray or vLLM: actors, deployments, engines."""
