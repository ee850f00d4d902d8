"""Numerical backends behind one interface.  Knows arrays, nothing of requests or text."""
