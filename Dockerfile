# nightquant: worker, `nightquant serve`, one night, or a run that a Docker or Kubernetes work pool begins in it.
# docker build --tag nightquant:0.1.0 .          See docs/containers.md.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

# The compiler is for the nights: OpenMP kernels and `aot-inductor` packages are compiled for the processor they run on.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*

# Its own user, who owns the store, the cache and nothing else. Kubernetes wants the number to know that it is not root.
RUN useradd --uid 10001 --create-home nightquant \
 && install --directory --owner=nightquant /store /cache
WORKDIR /srv/nightquant

# Dependencies first: a change of the code builds only what comes after them. Debian's own Python asks whether pip may
# install beside its packages; nothing else lives in this image.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN for name in flows storage tasks; do mkdir $name && touch $name/__init__.py; done \
 && PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --constraint constraints.txt --editable '.[all,s3]'
COPY prefect.yaml ./
COPY storage storage
COPY tasks tasks
COPY flows flows
RUN python3 -m compileall -q flows storage tasks

ENV NIGHTQUANT_ROOT=/srv/nightquant \
    NIGHTQUANT_STORE=/store \
    XDG_CACHE_HOME=/cache \
    DO_NOT_TRACK=1 \
    PREFECT_CLIENT_MAX_RETRIES=8
USER 10001
VOLUME /store /cache
CMD ["nightquant", "serve"]
