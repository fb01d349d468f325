"""Entry point of ``python -m millstream``."""

from millstream.cli import main

main()
