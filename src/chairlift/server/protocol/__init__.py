"""What travels over HTTP: requests, checked strictly, and answers."""
