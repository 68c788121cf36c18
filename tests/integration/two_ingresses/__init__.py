"""Tests of one application behind two ingresses: recognised conversations, and traces."""
