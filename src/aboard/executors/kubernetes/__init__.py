"""Boards and tasks on a Kubernetes cluster."""
