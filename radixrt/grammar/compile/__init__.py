"""Specs to grammars without holding anybody up: ``CompileService`` and what it is made of.

``engines`` runs one compiler; ``child`` is the process that runs it where it may explode, ``pool`` keeps such processes and
kills them; ``cache`` remembers by bytes; ``service`` puts them together.  Nothing here waits on behalf of the step loop.
"""

from radixrt.grammar.compile.service import CompileService, Job

__all__ = ["CompileService", "Job"]
