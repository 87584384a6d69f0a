"""The benchmarks are programs in a folder of their own; their helpers are found as they find each other."""

from __future__ import annotations

import sys

from shared_data import REPOSITORY

sys.path.append(str(REPOSITORY / "benchmarks"))
