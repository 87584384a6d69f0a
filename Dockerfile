# syntax=docker/dockerfile:1
# Any image with Python 3.11 or newer and its venv module, the same for both stages. Give it with its digest: the release
# does, and records it in the image's labels.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
# Hashes decide what is installed, and nothing is resolved anew: the same commit gives the same packages.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements.lock requirements-build.lock ./
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --no-deps -r requirements-build.lock \
    && python3 -m venv /opt/stepscope \
    && /opt/stepscope/bin/pip install --no-compile --require-hashes --no-deps -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
# Nothing installs packages in the finished image, so it needs no installer. The root filesystem is read-only there, so
# bytecode is made here, by hash and not by time: the same sources give the same files.
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/stepscope/bin/pip install --no-compile --no-deps --no-index /wheels/*.whl \
    && /opt/stepscope/bin/pip uninstall --yes setuptools pip \
    && rm -f /opt/stepscope/bin/Activate.ps1 /opt/stepscope/bin/activate* \
    && /opt/stepscope/bin/python -m compileall -q -f --invalidation-mode unchecked-hash /opt/stepscope/lib

FROM ${BASE}
ARG BASE
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="stepscope" \
      org.opencontainers.image.description="Is the decode step of an LLM engine as slow as physics says it must be, and if not, why?" \
      org.opencontainers.image.source="https://github.com/stepscope/stepscope" \
      org.opencontainers.image.documentation="https://github.com/stepscope/stepscope/tree/main/docs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The base image's own installer goes too.
RUN if python3 -m pip --version >/dev/null 2>&1; then \
      python3 -m pip uninstall --yes --root-user-action=ignore setuptools wheel pip; fi
COPY --from=build /opt/stepscope /opt/stepscope
ENV PATH=/opt/stepscope/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 SOURCE_REVISION=${REVISION}
# A number, not a name: Kubernetes can only verify runAsNonRoot for a number.
USER 65532:65532
EXPOSE 10094
# Kubernetes probes it (liveness at /-/healthy); a second judge would only disagree.
HEALTHCHECK NONE
ENTRYPOINT ["/opt/stepscope/bin/stepscope"]
CMD ["serve"]
