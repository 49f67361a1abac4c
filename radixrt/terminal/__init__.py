"""Commands for people at a terminal: ``chat``, ``doctor`` and ``top``; ``remote`` is how they speak to a running server."""
