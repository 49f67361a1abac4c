"""Other spellings of a chat: each route here translates its body into that of ``/v1/chat/completions`` and the parsed pieces of the
answer into its own objects and events.  What a chat is, and every check of it, stays in ``radixrt.server.chat``.

A dialect is two modules: ``*_input`` (pure: body to chat body) and its routes with the writer of its events.
"""
