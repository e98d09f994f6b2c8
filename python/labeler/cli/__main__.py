"""`python -m labeler.cli`: the command line where no script is installed."""

from labeler.cli import main

main()
