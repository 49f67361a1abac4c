"""The peers suite: the same workloads against any OpenAI-compatible servers, side by side.

``words`` makes prompts of exact lengths, ``workloads`` says what is asked, ``exchange`` and ``client`` ask it, ``session`` is
one repetition, ``figures`` what came out of it, ``machine`` what the machine could do meanwhile, ``suite`` the order of
repetitions, ``report`` and ``pictures`` what people see.  Nothing here knows what kind of server answers.
"""
