"""The native library: how it is found, and the backend bound to it."""
