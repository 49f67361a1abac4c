"""Tool calls in the text of models: how each family writes them, and how tools are shown to a model.

A family is a reader over a ``Source`` (``json_calls``, ``xml_calls``, ``pythonic``, ``harmony``) and a row of the table in
``formats``.  ``render`` shows tools, calls and results to models whose template knows none.
"""
