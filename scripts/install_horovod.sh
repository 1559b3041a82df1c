#!/usr/bin/env bash
# Builds Horovod 0.28.1 for the TensorFlow of .venv/bert and installs it there. Needed by --horovod, so by every launcher
# that is given more than one process; nothing else imports it.
#
# usage: bash scripts/install_horovod.sh [--cpu|--gpu] [--rebuild] [--dry-run] [--help]
#
#   --cpu, --gpu  exchange by Gloo and MPI, or on GPUs by NCCL too (needs nvcc; default: GPU where nvidia-smi answers)
#   --rebuild     build it although a wheel for this Python, TensorFlow and kind is in the cache
#   HOROVOD_CACHE environment variable: where wheels are kept (default: ~/.cache/horovod-wheels)
#   HOROVOD_SDIST environment variable: the source archive, on a machine that reaches no package index
#
# Gloo is always built in, so horovodrun works without MPI. Where an MPI compiler is found (Debian: libopenmpi-dev),
# mpirun starts the processes as well. A build takes 3 to 8 minutes, once; a call that finds all done a second.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"
export DRY_RUN

readonly VERSION=0.28.1 SHA256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
kind='' rebuild=false
for word in "${ARGS[@]}"; do
    case $word in
        --cpu | --gpu) kind=${word#--} ;;
        --rebuild) rebuild=true ;;
        *) die "unknown argument '$word': usage is install_horovod.sh [--cpu|--gpu] [--rebuild] [--dry-run] [--help]" ;;
    esac
done
if [[ -z $kind ]]; then
    kind=cpu
    ! has_gpu || kind=gpu
fi

# ------------------------------------------------------------------------------------------------ what is there
bash "$ROOT/scripts/setup.sh" bert "--$kind"
find_bert_python
venv=$ROOT/.venv/bert
engines=gloo
! command -v mpicxx >/dev/null || engines=gloo-mpi
versions=unknown
[[ $DRY_RUN == true ]] || versions=$("$PYTHON_BERT" -c '
import importlib.metadata as packages, platform, sys
names = ("tensorflow", "tensorflow-cpu")
found = [d.version for n in names for d in packages.distributions(name=n)]
print(f"tf{found[0]}-cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}")')
stamp=$venv/.horovod.stamp
name=horovod-$VERSION-$versions-$kind-$engines
cache=${HOROVOD_CACHE:-${XDG_CACHE_HOME:-${HOME:-$ROOT/.venv}/.cache}/horovod-wheels}
wheels=$cache/$name

# works: whether the installed Horovod loads with the installed TensorFlow.
works() { TF_CPP_MIN_LOG_LEVEL=3 "$PYTHON_BERT" -c 'import horovod.tensorflow' >/dev/null 2>&1; }

if [[ $DRY_RUN != true && $rebuild == false && -f $stamp && $(<"$stamp") == "$name" ]] && works; then
    log ".venv/bert: Horovod $VERSION ($kind, $engines) is in place"
    exit 0
fi
if [[ $DRY_RUN != true ]] && command -v flock >/dev/null; then # two calls at once: the second finds the wheel
    mkdir -p "$cache"
    exec 9>"$cache/.lock"
    flock 9
fi

# ------------------------------------------------------------------------------------------------ build the wheel
# `set -e` does not reach into it (its caller handles its failure), so every step says what to do when it fails.
build() {
    # Horovod's setup.py imports its package from its own folder, which lib.sh's settings would hide.
    local clean=(env -u PYTHONPATH -u PYTHONSAFEPATH)
    local work=$1 sdist=${HOROVOD_SDIST:-$1/horovod-$VERSION.tar.gz}
    if [[ -z ${HOROVOD_SDIST:-} ]]; then
        run "${clean[@]}" "$PYTHON_BERT" -m pip download --quiet --no-input --disable-pip-version-check --no-deps \
            --no-build-isolation --no-binary horovod --dest "$work" "horovod==$VERSION" ||
            die "pip could not fetch Horovod $VERSION; HOROVOD_SDIST names a source archive that is there"
    fi
    [[ $DRY_RUN == true ]] || printf '%s  %s\n' "$SHA256" "$sdist" | sha256sum --check --status ||
        die "$sdist is not the published archive of Horovod $VERSION (SHA-256 $SHA256): fetch it anew"
    run tar -xzf "$sdist" -C "$work" --no-same-owner || die "cannot unpack $sdist"
    # This operation is for XLA of older TensorFlow and does not compile with the present one.
    run sed -i '/xla_mpi_ops.cc/d' "$work/horovod-$VERSION/horovod/tensorflow/CMakeLists.txt" || die "cannot change Horovod's source"
    local settings=(HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1)
    if [[ $engines == *mpi ]]; then settings+=(HOROVOD_WITH_MPI=1); else settings+=(HOROVOD_WITHOUT_MPI=1); fi
    [[ $kind == cpu ]] || settings+=(HOROVOD_GPU_OPERATIONS=NCCL "HOROVOD_NCCL_HOME=$nccl" "HOROVOD_CUDA_HOME=$cuda")
    settings+=("PATH=$venv/bin:$PATH") # its cmake
    run "${clean[@]}" "${settings[@]}" "$PYTHON_BERT" -m pip wheel --no-input --disable-pip-version-check --no-deps \
        --no-build-isolation --wheel-dir "$work/wheel" --verbose "$work/horovod-$VERSION"
}

if [[ $DRY_RUN == true || $rebuild == true || ! -d $wheels ]]; then
    if [[ $DRY_RUN != true ]]; then
        require g++ "it compiles Horovod: on Debian and Ubuntu, apt-get install g++ make"
        require make "it builds Horovod: on Debian and Ubuntu, apt-get install g++ make"
        require tar "it unpacks Horovod's source"
    fi
    if [[ $kind == gpu && $DRY_RUN == true ]]; then
        cuda=CUDA nccl=NCCL # found when it is built
    elif [[ $kind == gpu ]]; then
        require nvcc "it compiles Horovod's GPU part: install the CUDA toolkit and put its bin folder on PATH, or give --cpu"
        cuda=$(dirname "$(dirname "$(command -v nvcc)")")
        nccl=$("$PYTHON_BERT" -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null) ||
            die "no NCCL in .venv/bert: 'bash scripts/setup.sh bert --gpu' brings it, or give --cpu"
    fi
    [[ $engines == *mpi ]] || log "no MPI compiler (mpicxx): building with Gloo alone; horovodrun works, mpirun does not"
    log ".venv/bert: building Horovod $VERSION ($kind, $engines), some minutes (its progress: .venv/horovod-build.log)"
    run "$PYTHON_BERT" -m pip install --quiet --no-input --disable-pip-version-check \
        -r "$ROOT/docker/requirements-horovod.txt"
    SECONDS=0
    if [[ $DRY_RUN == true ]]; then
        build "$cache/.build"
    else
        work=$(mktemp -d "$cache/.build.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        (build "$work") >"$ROOT/.venv/horovod-build.log" 2>&1 || {
            grep -iE 'error' "$ROOT/.venv/horovod-build.log" | head -n 20 >&2 || true
            die "Horovod did not build (whole log: $ROOT/.venv/horovod-build.log)"
        }
        rm -rf "$wheels"
        mv "$work/wheel" "$wheels"
        log ".venv/bert: built in $SECONDS s, kept in $wheels"
    fi
fi

# ------------------------------------------------------------------------------------------------ install it
run "$PYTHON_BERT" -m pip install --quiet --no-input --disable-pip-version-check \
    -r "$ROOT/docker/requirements-horovod.txt"
if [[ $DRY_RUN == true ]]; then
    run "$PYTHON_BERT" -m pip install --no-deps --force-reinstall "$wheels/horovod-$VERSION-*.whl"
    exit 0
fi
"$PYTHON_BERT" -m pip install --quiet --no-input --disable-pip-version-check --no-deps --force-reinstall \
    "$wheels"/horovod-"$VERSION"-*.whl
if ! works; then
    rm -rf "$wheels" # a wheel that does not load helps nobody: the next call builds anew
    die "the built Horovod does not load: $(TF_CPP_MIN_LOG_LEVEL=3 "$PYTHON_BERT" -c 'import horovod.tensorflow' 2>&1 | tail -n 1)"
fi
printf '%s\n' "$name" >"$stamp"
log ".venv/bert: Horovod $VERSION ($kind, $engines) installed"
