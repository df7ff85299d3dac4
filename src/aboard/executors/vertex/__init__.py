"""Boards and tasks on Vertex AI."""
