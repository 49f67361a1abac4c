"""The longest-prefix-match benchmark: the same programs against the scheduler in virtual time, or against a server.

Where does my class go?  What a program is, and which of its calls may start: ``program``.  A family of seeded programs:
``workloads``.  Recorded requests as files: ``trace``.  The scheduler without a model: ``offline``; a server over HTTP:
``online``.  The best that any cache could do: ``optimal``.  Figures from records: ``figures``; tables, JSON and pictures of
them: ``report``, ``pictures``.  Which settings to try: ``sweep``.  The command line: ``command``.
"""
