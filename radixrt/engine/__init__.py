"""The engine: the core that computes, the process link, and the fronts that people call."""
