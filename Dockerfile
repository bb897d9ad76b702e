# The service with the default encoder; all packages come from the package registry.
#   docker build -t msdscore .
#   docker run --read-only --tmpfs /tmp -p 8000:8000 -e MSDSCORE_TOKEN=… msdscore
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY src ./src
RUN python -m venv /opt/msdscore \
 && PIP_CONSTRAINT=constraints.txt /opt/msdscore/bin/pip install --no-cache-dir '.[serve,mini]'

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 msdscore
COPY --from=build /opt/msdscore /opt/msdscore
USER msdscore
ENV PATH=/opt/msdscore/bin:$PATH PYTHONUNBUFFERED=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
# 0.0.0.0 is reachable from outside of the container, so MSDSCORE_TOKEN is required.
ENTRYPOINT ["msdscore", "serve", "--host", "0.0.0.0"]
