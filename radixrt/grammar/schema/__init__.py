"""JSON schemas rewritten to what grammar engines enforce: ``normalise`` is the way in.

``document`` finds what references name; ``shapes`` are conjunctions of plain constraints; ``expand`` turns keywords into a
choice of shapes, also where they are negated; ``write`` turns shapes back into a schema of plain keywords; ``whitelist``
says which of those xgrammar enforces.  A rewrite keeps the set of instances or makes it smaller, never larger; what cannot
be rewritten so is refused, with the keyword and the JSON pointer to it.
"""

from radixrt.grammar.schema.write import normalise

__all__ = ["normalise"]
