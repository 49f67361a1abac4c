"""Deciding what each step computes.

Where does my class go?  State of one request: ``request``.  The order of waiting requests: ``policy``.  What a step
computes and what its results mean: ``scheduler``.  A decision turned into tensors: ``batching``.
"""
