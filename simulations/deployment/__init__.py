"""A real federation in containers: keys, the SuperLink and the gate before it, silos' data, and submitting a run.

``python -m simulations.deployment --help`` lists the jobs; docker-compose.yml combines them. Flower's programs and the
server and client apps are those of simulations.
"""
