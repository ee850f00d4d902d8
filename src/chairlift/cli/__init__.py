"""The command line: composes the other rooms.  Commands load what they need when they run."""
