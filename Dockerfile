# The one image of the demo: coordinator, silos and the one-shot jobs differ by their command alone.
#
# Build arguments, for a machine that needs others than the usual:
#   BASE                    a Debian-like image with Python 3.11; name@sha256:... for one that cannot change
#   TORCH                   what to ask pip for; a build for the CPU is taken where the index has one
#   PIP_INDEX_URL, PIP_EXTRA_INDEX_URL   package indexes, as pip itself understands them
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS packages
ARG TORCH=torch==2.13.0
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv /opt/userdp
ENV PATH=/opt/userdp/bin:$PATH
COPY constraints.txt requirements.lock ./
# Every dependency but Ray, which only simulations need, for nodes are containers here; and of the extras those of a
# deployment: numba saves time where data are large, but weighs 200 MB. The package itself is installed without code, for
# its entry points; its code is in /app. Nothing that the lock names can be another file than when it was made.
RUN pip install --quiet --no-deps --require-hashes -r requirements.lock \
    && pip install --quiet -c constraints.txt ${TORCH}
COPY pyproject.toml setup.py README.md LICENSE ./
RUN pip install --quiet --no-deps --no-build-isolation .
# What a container has no use for that compiles nothing, tests no libraries and reads no remote file systems.
RUN python -m pip uninstall --quiet --yes pip \
    && cd /opt/userdp/lib/python3*/site-packages \
    && rm -rf torch/include torch/share torch/test torch/bin/test_* torch/bin/*Test torch/bin/protoc* pyarrow/include \
    && rm -f pyarrow/*flight* pyarrow/libarrow_s3* pyarrow/_s3fs* \
    && for name in matplotlib networkx pandas pyarrow scipy sympy; do \
           find "$name" -type d -name tests -prune -exec rm -rf {} +; \
       done \
    && find . \( -name '*.a' -o -name '*.pyi' \) -delete

FROM ${BASE}
ENV PATH=/opt/userdp/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONPATH=/app \
    HOME=/tmp FLWR_HOME=/tmp/flwr MPLCONFIGDIR=/tmp/matplotlib \
    FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
# Volumes take over the owner of the folder that they are first mounted on. SILOS: the most silos there may be.
ARG SILOS=9
RUN useradd --system --no-create-home --uid 10001 userdp \
    && mkdir -p /keys/superlink /keys/gate /keys/coordinator /keys/accounts /keys/authority /names /results \
    && for k in $(seq ${SILOS}); do mkdir -p "/keys/node-$k" "/keys/app-$k" "/data/silo-$k"; done \
    && chown -R userdp /keys /data /names /results \
    && chmod -R go= /keys /data /names /results
COPY --from=packages /opt/userdp /opt/userdp
WORKDIR /app
COPY pyproject.toml LICENSE README.md ./
COPY userdp userdp
COPY strategies strategies
COPY simulations simulations
COPY apps/userdp-run apps/userdp-run
USER userdp
CMD ["python", "-m", "simulations.deployment"]
