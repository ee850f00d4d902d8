"""How models of different families write calls of tools, one file each."""
