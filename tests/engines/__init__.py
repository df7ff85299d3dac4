"""Servers that speak the wire protocol of clouds of which nothing real runs here."""
