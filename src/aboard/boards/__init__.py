"""Boards as the hub remembers them: what they are, where they stand, and who may have how many.

The registry needs the extra `hub` (SQLAlchemy); import what you need from its module.
"""
