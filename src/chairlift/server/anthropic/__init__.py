"""Anthropic's Messages API, said in chat completions."""
