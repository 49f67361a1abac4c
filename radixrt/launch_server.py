"""``python -m radixrt.launch_server``: the same as ``radixrt serve``, under the name SGLang's users know."""

from __future__ import annotations

import sys

from radixrt.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
