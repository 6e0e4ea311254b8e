"""What `docs/make.py` makes, one module a page."""
