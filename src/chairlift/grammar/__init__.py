"""Grammars: from what a text must look like to masks over the vocabulary, through llguidance."""
