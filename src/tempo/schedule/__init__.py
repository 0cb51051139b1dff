"""From a graph to the loops that compute it."""
