"""The scheduler without a model: a deterministic simulator that looks for a history that breaks a promise.

The scheduler, the tree, the allocator, the grammar seam and the order of a step's lines are the real ones; the model is a
hash of the context as it is read back through the KV slots, so that one wrong slot changes the text.  Time is virtual.
``python -m radixrt.sim`` runs it.

Where does my class go?  What the right text is: ``model``.  What a step computes: ``runner``, and how long it takes:
``cost``; what becomes of a grammar: ``compiler``.  What a history is made of and how it is drawn: ``history``; what its
operations mean: ``people``.  The system they use and every promise checked: ``world``, ``answer``, ``fairness``; breaking it
on purpose: ``faults``.  Many histories, and the shortest that still breaks: ``search``.
"""
