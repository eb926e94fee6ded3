# syntax=docker/dockerfile:1
# The planner service, for CPUs. Build: docker build -t taot-planner .   Run: docker run -p 127.0.0.1:50051:50051 taot-planner
# EXTRAS=agent is the example trainer of deploy/compose.yaml, EXTRAS=server,gpu the planner with torch (3 GB with CUDA).
# Behind a mirror: --secret id=pip-config,src=pip.conf --secret id=ca-certificates,src=ca.crt; neither stays in the image.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG EXTRAS=server,tracing
# Another index to take wheels from, such as the one of torch's CPU builds.
ARG EXTRA_INDEX_URL=
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY proto proto
COPY service service
COPY client client
COPY examples/train_moe.py examples/train_moe.py
COPY deploy/prometheus/rules deploy/prometheus/rules
# Nothing in the image installs packages or runs the tests of others.
RUN --mount=type=secret,id=pip-config,target=/etc/pip.conf \
    --mount=type=secret,id=ca-certificates,target=/etc/ssl/certs/ca-certificates.crt \
    python3 -m venv /opt/taot \
    && PIP_EXTRA_INDEX_URL="${EXTRA_INDEX_URL}" /opt/taot/bin/pip install --no-cache-dir --disable-pip-version-check \
        -c constraints.txt ".[${EXTRAS}]" \
    && /opt/taot/bin/pip freeze --exclude taot-planner > /opt/taot/packages.txt \
    && /opt/taot/bin/pip uninstall --yes --quiet pip setuptools \
    && find /opt/taot/lib -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="taot-planner" \
      org.opencontainers.image.description="Placement planner for mixture-of-experts training" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/taot /opt/taot
# Kernels are compiled for the processor at hand: they are kept here, the only place that is written to.
RUN mkdir /var/cache/taot && chown 10001:10001 /var/cache/taot
# Inside a container the network is the container's own: what is published decides who can reach it.
ENV PATH=/opt/taot/bin:$PATH \
    NUMBA_CACHE_DIR=/var/cache/taot \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TAOT_HOST=0.0.0.0 \
    TAOT_HTTP_PORT=8080
USER 10001:10001
VOLUME /var/cache/taot
EXPOSE 50051 8080
# Under TLS the certificate is not checked: it is for the name that trainers use.
HEALTHCHECK --interval=10s --timeout=3s --start-period=180s CMD ["python3", "-c", "import os, ssl, urllib.request; \
    context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE; \
    scheme = 'https' if os.environ.get('TAOT_TLS_CERT') else 'http'; \
    urllib.request.urlopen(scheme + '://127.0.0.1:' + os.environ['TAOT_HTTP_PORT'] + '/readyz', timeout=2, context=context)"]
ENTRYPOINT ["taot"]
CMD ["serve"]
