"""Inference engines behind `protocol.engine.Engine`, and the factory that builds them."""
