"""A real federation in containers: keys, the SuperLink and the gate in front of it, silos' data, and submitting a run.

``python -m simulations.deployment --help`` lists the jobs; docker-compose.yml puts them together. Everything here
stands beside Flower's own programs and leaves server and client app as they are in simulations.
"""
