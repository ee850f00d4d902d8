"""One ASGI endpoint per file."""
