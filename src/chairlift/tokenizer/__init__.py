"""Text to token ids and back: tokenizer, detokenizer, stop strings, chat template.

Knows neither weight files nor models: metadata arrives as a plain mapping.  Nothing is imported
here, so that importing the package costs nothing; import the file that you need.
"""
