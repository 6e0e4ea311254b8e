"""The parts of pages that `docs/make.py` makes, one module for each page."""
