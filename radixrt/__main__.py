"""``python -m radixrt``: the same as the command ``radixrt``."""

from __future__ import annotations

import sys

from radixrt.cli import main

if __name__ == "__main__":
    sys.exit(main())
