# Any image with Python 3.11 or newer and its venv module, the same for both stages.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
RUN python3 -m venv /opt/stepscope
COPY requirements.lock ./
RUN /opt/stepscope/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
# Nothing installs packages in the finished image, so it needs no installer.
RUN /opt/stepscope/bin/pip install --no-cache-dir --no-deps . \
    && /opt/stepscope/bin/pip uninstall --yes pip setuptools

FROM ${BASE}
COPY --from=build /opt/stepscope /opt/stepscope
# Nothing is written to disk: the root filesystem may be read-only.
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A number, not a name: Kubernetes can only verify runAsNonRoot for a number.
USER 65532:65532
EXPOSE 10094
ENTRYPOINT ["/opt/stepscope/bin/stepscope"]
CMD ["serve"]
