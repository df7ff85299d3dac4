"""What a run is, apart from its events: how it is called."""
