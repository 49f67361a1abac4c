"""The HTTP side: routes, their bodies and answers, and the life of the server process.  It knows no slots and no steps."""
