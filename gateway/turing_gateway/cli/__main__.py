"""``python -m turing_gateway.cli`` is ``turing``."""

from turing_gateway.cli.main import main

main()
