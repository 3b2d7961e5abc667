"""``python -m turing_gateway``."""

from turing_gateway.main import main

main(prog_name="turing-gateway")
