"""Boards and tasks on Docker and Podman."""
