"""The REST API, one module for each noun, put together in `app`."""
