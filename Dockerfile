# PRIMS over HTTP. How to run it, and which walls hold inside a container: docs/containers.md
FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements/run.txt requirements/
RUN python -m venv /opt/prims && \
    /opt/prims/bin/python -m pip install --no-cache-dir --requirement requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY prims prims/
COPY kernelspecs kernelspecs/
RUN /opt/prims/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.13-slim
RUN apt-get update && \
    apt-get install --yes --no-install-recommends bubblewrap tini && \
    rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 --create-home prims && \
    install -d -o prims -g prims /var/cache/prims /var/lib/prims
COPY --from=build /opt/prims /opt/prims
# The state folder itself is made at the first start, by whichever user that has.
ENV PATH=/opt/prims/bin:$PATH \
    PRIMS_TRANSPORT=http \
    PRIMS_HOST=0.0.0.0 \
    PRIMS_PORT=8000 \
    PRIMS_TOKEN_FILE=/run/secrets/prims_token \
    PRIMS_CACHE_DIR=/var/cache/prims \
    PRIMS_STATE_DIR=/var/lib/prims/state \
    UV_CACHE_DIR=/var/cache/prims/uv
USER prims
# Builds the package layers, so that runs of the default packages need no network. Without walls, because a build has
# none; no code of any package runs. Installed files stay when uv's cache, which they were linked from, is removed.
# The second is the layer of the helper that looks at pictures; meanwhile its bytecode is compiled.
RUN prims doctor --isolation none --state-dir /tmp/prims-build && \
    echo "import time; time.sleep(3)" | \
    prims run --isolation none --state-dir /tmp/prims-build --with pillow --with resvg-py - && \
    rm -rf /var/cache/prims/uv /tmp/prims-build
VOLUME ["/var/cache/prims", "/var/lib/prims"]
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s CMD python -c "import http.client, os; \
    c = http.client.HTTPConnection('127.0.0.1', int(os.environ['PRIMS_PORT']), timeout=4); \
    c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"
ENTRYPOINT ["tini", "--"]
CMD ["prims", "serve"]
