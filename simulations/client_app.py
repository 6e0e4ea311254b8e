"""The Flower ClientApp of simulations and deployments: it answers for the users of its node."""

from simulations.flower import node_of
from strategies.wire.client import client_app

app = client_app(node_of)
