"""Inside the training process: runs that claim their name, log what happens and lose nothing."""
