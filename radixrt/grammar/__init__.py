"""Constraints on what a request may generate.  ``base`` is the seam; ``bitmask`` the packed form of a token mask."""
