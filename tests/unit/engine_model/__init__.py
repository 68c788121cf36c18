"""Tests of the model of vLLM's scheduler, without vLLM."""
