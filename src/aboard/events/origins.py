"""Where the values of a tag are stored in their events, and what its metadata says of it.

The numbers are those of scan.h.
"""

ORIGIN_NONE = 0
ORIGIN_SIMPLE, ORIGIN_IMAGE, ORIGIN_HISTOGRAM, ORIGIN_AUDIO, ORIGIN_TENSOR = 2, 4, 5, 6, 8
"""The number of the field in Summary.Value."""
ORIGIN_GRAPH, ORIGIN_RUN_METADATA = 104, 108
"""Two kinds of event that become a tag of their own."""

CLASS_UNKNOWN, CLASS_SCALAR, CLASS_OTHER = 0, 1, 2
