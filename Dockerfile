# The service with the default encoder on a CPU, without torch; packages come from the package registry, weights from weights/.
#   docker build -t msdscore .
#   docker run --read-only --tmpfs /tmp -p 8000:8000 -e MSDSCORE_TOKEN=… msdscore
# For an NVIDIA GPU:
#   docker build -t msdscore-cuda --build-arg EXTRAS=serve,hf --build-arg PARTS=./backbones .
#   docker run --gpus all … msdscore-cuda --device cuda
FROM python:3.11-slim AS build
ARG EXTRAS=serve
# Further folders of this repository that the extras need.
ARG PARTS=
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY weights ./weights
COPY backbones ./backbones
COPY serve ./serve
COPY src ./src
# With bytecode: without it, every start of a container takes 1.4 s more of CPU time.
RUN python -m venv /opt/msdscore \
 && PIP_CONSTRAINT=constraints.txt /opt/msdscore/bin/pip install --no-cache-dir ./weights ./serve $PARTS ".[$EXTRAS]" \
 && /opt/msdscore/bin/pip uninstall --yes setuptools pip

FROM python:3.11-slim
# 1000 is the user of a Hugging Face Space.
RUN useradd --create-home --uid 1000 msdscore
COPY --from=build /opt/msdscore /opt/msdscore
USER msdscore
ENV PATH=/opt/msdscore/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
# 0.0.0.0 is reachable from outside of the container, so MSDSCORE_TOKEN is required.
ENTRYPOINT ["msdscore", "serve", "--host", "0.0.0.0"]
