"""`python -m chairlift` is `chairlift`."""

from chairlift.cli.main import main

main()
