"""Ollama's API, said in chat and text completions."""
