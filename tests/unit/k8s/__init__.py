"""Tests of the Kubernetes manifests and of the image, read without a cluster."""
