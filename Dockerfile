# An image of the service. It has the steps of `make setup`, without those for tests: the builder, a virtual
# environment, and the project itself, all pinned by constraints.txt.
#
#   docker build --tag ptq-bot .
#   docker run --publish 8080:8080 --volume ./etc:/etc/ptq:ro --volume ptq:/var/lib/ptq ptq-bot

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE app.yml ./
COPY bot bot
COPY docs docs
COPY github_standin github_standin
COPY handlers handlers
COPY runner runner
COPY prompts prompts
RUN pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling
RUN pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .
# No pip in the image: the service never installs anything.
RUN python3 -m venv --without-pip /opt/ptq
RUN pip --python /opt/ptq/bin/python install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl

# Machines are reached over asyncssh and pull requests are made through the API: neither ssh nor git is needed here.
# Only `kind = "local"` needs git, and that kind is not for an image.
FROM python:3.11-slim-bookworm
COPY --from=build /opt/ptq /opt/ptq
RUN useradd --system --uid 10001 --home-dir /var/lib/ptq --create-home ptq && chmod 0700 /var/lib/ptq
USER ptq
WORKDIR /var/lib/ptq
VOLUME /var/lib/ptq
# The address inside is fixed, so that the health check works with any ptq.toml. Persistent data is in the volume.
ENV PATH=/opt/ptq/bin:$PATH PYTHONUNBUFFERED=1 PTQ_SERVER__HOST=0.0.0.0 PTQ_SERVER__PORT=8080 \
    PTQ_SERVER__DATABASE_URL=sqlite+aiosqlite:////var/lib/ptq/ptq.db PTQ_SERVER__DATA_DIR=/var/lib/ptq/var
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["ptq-bot"]
CMD ["serve", "--config", "/etc/ptq/ptq.toml"]
