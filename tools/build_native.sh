#!/usr/bin/env bash
# Builds the optional module veen_native into VENV, with RUSTFLAGS. One line says whether it did; the status is always 0,
# as nothing needs it.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

readonly VENV="${VENV:-.venv}"
readonly LOG="${VENV}/native.log" STAMP="${VENV}/.stamp-native"
# What a build depends on: the sources, the flags, and the CPU they are for.
state="$({
    cat native/Cargo.toml native/Cargo.lock native/pyproject.toml native/src/*.rs
    echo "${RUSTFLAGS:-}"
    uname -m
    grep -m 1 '^flags' /proc/cpuinfo 2>/dev/null || true
} | cksum)"
readonly state

says() {
    PYTHONPATH=src "${VENV}/bin/python" -c 'from veen.native import LOADED; print("native:", LOADED.what)'
}

if [[ -f "${STAMP}" && "$(<"${STAMP}")" == "${state}" ]]; then
    says
    exit 0
fi
if ! command -v cargo >/dev/null; then
    echo "native: not built, as there is no cargo; everything runs in Python"
    exit 0
fi
build() {
    "${VENV}/bin/uv" pip install --quiet --python "${VENV}/bin/python" --constraints constraints.lock maturin
    (cd native && VIRTUAL_ENV="$(realpath "../${VENV}")" CARGO_NET_RETRY=1 \
        "../${VENV}/bin/maturin" develop --release --locked)
}
if build >"${LOG}" 2>&1; then
    echo "${state}" >"${STAMP}"
    says
else
    echo "native: not built, see ${LOG}; everything runs in Python"
fi
