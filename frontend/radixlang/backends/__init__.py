"""Where programs run: embedded, over HTTP, at other providers, or from a script of answers."""
