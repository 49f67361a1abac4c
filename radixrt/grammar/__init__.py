"""Constraints on what a request may generate.

A way to ask for one goes to ``spellings``; a rule about what may be asked, to ``spec``; an engine is a module with ``compile``
that ``select`` names; what a JSON schema means goes to ``schema``; what all states have in common (drafts, closing, the end of
the budget, sleeping through reasoning) is a module of its own over the seam in ``base``.
"""
