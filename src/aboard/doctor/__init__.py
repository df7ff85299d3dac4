"""Why a board would be empty or odd: `examine` a source, and read the findings."""
