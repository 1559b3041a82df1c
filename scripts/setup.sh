#!/usr/bin/env bash
# Makes the Python environments of this tree from the pinned sets in docker/.
#
# usage: bash scripts/setup.sh [bert|data|asr|dali|serving|dev|all] [--cpu|--gpu] [--dry-run] [--help]
#
#   bert   .venv/bert: BERT in TensorFlow, the CPU or the GPU build by the machine
#   data   .venv/bert with dask and mpi4py added, for data stages on many machines
#   asr    .venv/asr: speech recognition in PyTorch, one build for CPU and GPU
#   dali   .venv/asr with DALI added, the loader behind DALI_DEVICE=cpu and gpu (Linux)
#   serving   .venv/serving: a Triton server without a container, what our models need behind it, and its clients
#          (Linux on x86-64, Python 3.11 or 3.12)
#   dev    all of these with the test runner added, and .venv/dev: linters and peers
#   all    the same as dev (default)
#
#   --cpu, --gpu   take that build of BERT's framework; by default the GPU build where nvidia-smi answers
#   PYTHON         environment variable: the interpreter to use, Python 3.11 to 3.13
#                  (default: the first such of python3, python3.13, python3.12, python3.11)
#
# A call that finds nothing changed takes a fraction of a second. What was interrupted, moved, or made for another
# Python or build is made anew.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_common "$@"

what=all build='' fresh=false
for word in "${ARGS[@]}"; do
    case $word in
        bert | data | asr | dali | serving | dev | all) what=$word ;;
        --cpu | --gpu) build=${word#--} ;;
        *) die "unknown argument '$word': usage is setup.sh [bert|data|asr|dali|serving|dev|all] [--cpu|--gpu] [--dry-run] [--help]" ;;
    esac
done
unset PYTHONPATH # only what is installed in an environment may satisfy its set

# Prints the version of an interpreter; fails unless it is one that the pinned sets support.
python_version() {
    "$1" -c 'import sys
v = sys.version_info
print(*v[:3], sep=".")
sys.exit(not (3, 11) <= v[:2] <= (3, 13))' 2>/dev/null
}

# find_python: sets PYTHON and VERSION, once.
find_python() {
    [[ -z ${VERSION:-} ]] || return 0
    local candidate candidates=(python3 python3.13 python3.12 python3.11) tried=()
    [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if VERSION=$(python_version "$candidate"); then
            PYTHON=$candidate
            "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
                die "$PYTHON cannot make environments: on Debian and Ubuntu, apt-get install python${VERSION%.*}-venv"
            return
        fi
        tried+=("$candidate: ${VERSION:-does not run};")
    done
    die "Python 3.11 to 3.13 is needed (${tried[*]}) install one, or set PYTHON to it"
}

# venv_is_good VENV BUILD: whole, in its place, of that build and of the Python asked for.
venv_is_good() {
    [[ ! -e $1/.installing && -f $1/.venv.stamp ]] || return 1
    local version
    version=$(python_version "$1/bin/python") || return 1
    if [[ -n ${PYTHON:-} ]]; then
        find_python
        [[ $version == "$VERSION" ]] || return 1
    fi
    [[ $(<"$1/.venv.stamp") == "$version $2 $1" ]]
}

# make_venv NAME BUILD: an empty .venv/NAME, unless a good one is there; "fresh" says which.
make_venv() {
    local venv=$ROOT/.venv/$1
    fresh=false
    ! venv_is_good "$venv" "$2" || return 0
    fresh=true
    find_python
    if [[ -e $venv ]]; then
        log ".venv/$1: removing it (unfinished, moved, or made for another Python or build)"
        run rm -rf "$venv"
    fi
    log ".venv/$1: new, Python $VERSION, $2 build"
    run "$PYTHON" -m venv "$venv"
    [[ $DRY_RUN == true ]] || printf '%s\n' "$VERSION $2 $venv" >"$venv/.venv.stamp"
}

# requirement_files SET: its file, and the sets that it starts from.
requirement_files() {
    printf 'requirements-%s.txt\n' "$1"
    sed -n 's/^-r //p' "requirements-$1.txt"
}

# install NAME SET: docker/requirements-SET.txt into .venv/NAME, unless its stamp says that it is there.
install() {
    local venv=$ROOT/.venv/$1 set=$2 key attempt log_file=$ROOT/.venv/$1-$2.log
    key=$(cd "$ROOT/docker" && requirement_files "$set" | xargs cat constraints*.txt | sha256sum)
    if [[ $fresh == false && -f $venv/.$set.stamp && $(<"$venv/.$set.stamp") == "$key" ]]; then
        log ".venv/$1: $set set is in place"
        return
    fi
    local command=("$venv/bin/python" -m pip install --no-input --disable-pip-version-check
        -r "$ROOT/docker/requirements-$set.txt")
    if [[ $DRY_RUN == true ]]; then
        run "${command[@]}"
        return
    fi
    log ".venv/$1: installing the $set set (its progress: .venv/$1-$set.log)"
    SECONDS=0
    touch "$venv/.installing" # a kill in the middle of pip may leave a package torn: the next call starts anew
    for attempt in 1 2; do
        if "${command[@]}" >"$log_file" 2>&1; then
            printf '%s\n' "$key" >"$venv/.$set.stamp"
            rm "$venv/.installing"
            log ".venv/$1: $set set installed in $SECONDS s"
            return
        fi
        [[ $attempt == 2 ]] || log ".venv/$1: pip failed, trying once more"
    done
    tail -n 20 "$log_file" >&2
    die "pip could not install docker/requirements-$set.txt into .venv/$1 (whole log: $log_file)"
}

setup_bert() {
    make_venv bert "$build"
    install bert "bert-$build"
}

setup_data() {
    setup_bert
    install bert data
}

setup_asr() {
    make_venv asr common
    install asr asr
}

setup_dali() {
    setup_asr
    install asr dali
}

# The server's wheel and NumPy 1 exist for these alone.
can_serve() {
    find_python
    [[ $(uname -sm) == 'Linux x86_64' && $VERSION =~ ^3\.1[12]\. ]]
}

setup_serving() {
    can_serve || die "the Triton server's package is for Linux on x86-64 and Python 3.11 or 3.12, not $VERSION on $(uname -sm)"
    make_venv serving common
    install serving serving
}

setup_dev() {
    setup_data
    install bert test
    setup_dali
    install asr asr-test
    if can_serve; then
        setup_serving
    else
        log "no .venv/serving: the Triton server's package is for Linux on x86-64 and Python 3.11 or 3.12"
    fi
    make_venv dev cpu
    install dev dev
}

if [[ -z $build ]]; then
    build=cpu
    ! has_gpu || build=gpu
fi
if [[ $DRY_RUN != true ]] && command -v flock >/dev/null; then # two calls at once: the second finds the work done
    mkdir -p "$ROOT/.venv"
    exec 9>"$ROOT/.venv/.lock"
    flock 9
fi
case $what in
    bert) setup_bert ;;
    data) setup_data ;;
    asr) setup_asr ;;
    dali) setup_dali ;;
    serving) setup_serving ;;
    dev | all) setup_dev ;;
esac
