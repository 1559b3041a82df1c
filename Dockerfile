# Images of the recipes: `bert` and `asr` for NVIDIA GPUs, `cpu` for both on any machine, `triton` to serve their models.
# Built by scripts/docker/build.sh.
#
# Every step calls a script that does the same on a bare machine. The environments stand in /opt/recipes, so that a tree
# mounted over the working folder does not hide them; BERT_PYTHON and ASR_PYTHON lead the launchers there.
ARG BERT_BASE=nvcr.io/nvidia/cuda:12.9.1-cudnn-devel-ubuntu24.04
ARG ASR_BASE=nvcr.io/nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04
ARG CPU_BASE=ubuntu:24.04
ARG TRITON_BASE=nvcr.io/nvidia/tritonserver:25.10-py3

# ---------------------------------------------------------------------------------------------------------------- bert
FROM ${BERT_BASE} AS bert
WORKDIR /opt/recipes
COPY scripts/lib.sh scripts/setup.sh scripts/install_horovod.sh scripts/install_system_packages.sh scripts/
COPY scripts/docker/entrypoint.sh scripts/docker/
COPY docker docker
RUN bash scripts/install_system_packages.sh bert
RUN bash scripts/setup.sh data --gpu
RUN bash scripts/install_horovod.sh --gpu
ENV BERT_PYTHON=/opt/recipes/.venv/bert/bin/python CONTAINER=bert
WORKDIR /workspace/bert
COPY . .
ENTRYPOINT ["bash", "/opt/recipes/scripts/docker/entrypoint.sh"]

# ----------------------------------------------------------------------------------------------------------------- asr
FROM ${ASR_BASE} AS asr
WORKDIR /opt/recipes
COPY scripts/lib.sh scripts/setup.sh scripts/install_system_packages.sh scripts/
COPY scripts/docker/entrypoint.sh scripts/docker/
COPY docker docker
RUN bash scripts/install_system_packages.sh asr
RUN bash scripts/setup.sh dali --gpu
ENV ASR_PYTHON=/opt/recipes/.venv/asr/bin/python CONTAINER=asr
WORKDIR /workspace/asr
COPY . .
ENTRYPOINT ["bash", "/opt/recipes/scripts/docker/entrypoint.sh"]

# ----------------------------------------------------------------------------------------------------------------- cpu
FROM ${CPU_BASE} AS cpu
WORKDIR /opt/recipes
COPY scripts/lib.sh scripts/setup.sh scripts/install_horovod.sh scripts/install_system_packages.sh scripts/
COPY scripts/docker/entrypoint.sh scripts/docker/
COPY docker docker
RUN bash scripts/install_system_packages.sh cpu
RUN bash scripts/setup.sh data --cpu
RUN bash scripts/install_horovod.sh --cpu
RUN bash scripts/setup.sh asr --cpu
ENV BERT_PYTHON=/opt/recipes/.venv/bert/bin/python ASR_PYTHON=/opt/recipes/.venv/asr/bin/python CONTAINER=cpu
WORKDIR /workspace/recipes
COPY . .
ENTRYPOINT ["bash", "/opt/recipes/scripts/docker/entrypoint.sh"]

# -------------------------------------------------------------------------------------------------------------- triton
FROM ${TRITON_BASE} AS triton
WORKDIR /opt/recipes
COPY scripts/lib.sh scripts/setup.sh scripts/install_system_packages.sh scripts/
COPY docker docker
RUN bash scripts/install_system_packages.sh triton
RUN bash scripts/setup.sh serving
ENV SERVING_PYTHON=/opt/recipes/.venv/serving/bin/python CONTAINER=triton
WORKDIR /workspace/recipes
COPY . .
ENTRYPOINT ["/opt/recipes/.venv/serving/bin/python", "-m", "runkit.serving.server"]
