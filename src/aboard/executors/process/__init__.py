"""Boards and tasks on processes of the hub's machine."""
