"""``python -m turing_engine``."""

from turing_engine.main import main

main()
