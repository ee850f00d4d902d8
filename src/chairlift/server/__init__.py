"""The OpenAI-compatible HTTP server over `AsyncEngine`.  Knows no array and no scheduler."""
