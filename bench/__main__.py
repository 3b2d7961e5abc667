"""``python -m bench`` (or ``make bench``): compare servers, by default our two CPU runners."""

import sys

from bench.compare import main

sys.exit(main())
