"""Load over HTTP: knows servers by their OpenAI-compatible API only, and imports no engine."""
