"""OpenAI's Responses API, over the one chat path and the store."""
