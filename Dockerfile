# An image with the pinned versions; docs/installation.md says how to use it.
FROM python:3.11-slim

# OpenMP, which XGBoost and TVM load; the slim image is without it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*

ARG EXTRAS=""
COPY . /opt/tessel
RUN cd /opt/tessel \
    && python -m pip install --no-cache-dir --no-compile -c constraints.txt ".${EXTRAS:+[$EXTRAS]}" \
    && tessel --help > /dev/null

# Nothing is run as root, and compiled kernels are kept where that user may write.
RUN useradd --create-home tessel && mkdir /work && chown tessel /work
USER tessel
WORKDIR /work
ENTRYPOINT ["tessel"]
CMD ["--help"]
