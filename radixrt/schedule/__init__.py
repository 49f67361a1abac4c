"""Deciding what each step computes.

Where does my class go?  State of one request: ``request``.  The order of waiting requests: ``policy``, over ``order``; the
queue that keeps it, and ageing: ``queue``.  Who may start: ``admission``; with which slots: ``room``, by what ``estimate``
expects.  Who is sent back: ``retraction``.  The tokens of a step: ``budget``; what those that run get of them: ``extension``.
The life of requests: ``scheduler``.  What results mean: ``verify``.  A decision turned into tensors: ``batching``, over the
values in ``step``.
"""
