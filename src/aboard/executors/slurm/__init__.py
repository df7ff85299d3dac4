"""Boards and tasks on a Slurm cluster."""
