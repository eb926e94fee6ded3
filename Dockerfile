# syntax=docker/dockerfile:1
# The planner service. Build: docker build -t taot-planner .   Run: docker run -p 127.0.0.1:50051:50051 taot-planner
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY proto proto
COPY service service
COPY client client
COPY examples examples
RUN python3 -m venv /opt/taot \
    && /opt/taot/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[server]'

FROM ${BASE}
LABEL org.opencontainers.image.title="taot-planner" \
      org.opencontainers.image.description="Placement planner for mixture-of-experts training" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/taot /opt/taot
# Kernels are compiled for the processor at hand: they are kept here, the only place that is written to.
ENV PATH=/opt/taot/bin:$PATH NUMBA_CACHE_DIR=/var/cache/taot PYTHONDONTWRITEBYTECODE=1
RUN mkdir /var/cache/taot && chown 10001:10001 /var/cache/taot
USER 10001:10001
VOLUME /var/cache/taot
EXPOSE 50051 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=2)"]
# Inside a container the network is the container's own: what is published decides who can reach it.
ENTRYPOINT ["taot", "serve", "--host", "0.0.0.0"]
