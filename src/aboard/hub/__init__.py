"""The hub: boards of many users behind one authenticated address."""
