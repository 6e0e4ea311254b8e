"""A real federation in containers: keys, the SuperLink and the gate before it, silos' data, and submitting a run.

``python -m simulations.deployment --help`` lists the jobs; docker-compose.yml combines them. The Flower app that
runs is apps/userdp-run.
"""

from pathlib import Path

APP = Path("/app/apps/userdp-run")
"""The Flower app in the image."""
