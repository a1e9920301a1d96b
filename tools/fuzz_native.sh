#!/usr/bin/env bash
# Fuzzes the readers of the native module with cargo-fuzz, from the seeds of tests/fuzz and from a real chunk: SECONDS_EACH
# for each target. cargo-fuzz is installed below VENV. Without cargo, its registry or a C++ compiler it says so and ends
# well; a crash is a failure, and libFuzzer prints the input.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

readonly VENV="${VENV:-.venv}" SECONDS_EACH="${SECONDS_EACH:-60}" VERSION="0.13.1"
readonly TOOLS="${PWD}/${VENV}/cargo" LOG="${VENV}/fuzz-native.log"

left_out() {
    echo "fuzzing of the native module is left out: $1"
    exit 0
}

command -v cargo >/dev/null || left_out "there is no cargo"
command -v c++ >/dev/null || left_out "libFuzzer needs a C++ compiler"
if [[ ! -x "${TOOLS}/bin/cargo-fuzz" ]]; then
    cargo install --quiet --locked --root "${TOOLS}" --version "=${VERSION}" cargo-fuzz >"${LOG}" 2>&1 ||
        left_out "cargo-fuzz cannot be installed, see ${LOG}"
fi
export PATH="${TOOLS}/bin:${PATH}"
work="$(mktemp -d)"
trap 'rm -rf -- "${work}"' EXIT
"${VENV}/bin/python" -m tests.fuzz.native_corpus "${work}"
cd native
cargo fetch --quiet --locked --manifest-path fuzz/Cargo.toml >>"../${LOG}" 2>&1 || left_out "its crates cannot be had, see ${LOG}"
for target in message chunk; do
    # The crate has no unsafe code, so what a sanitizer looks for cannot be there; overflows and panics are found without.
    cargo fuzz build --sanitizer none "${target}" >>"../${LOG}" 2>&1 || {
        echo "${target} cannot be built, see ${LOG}" >&2
        exit 1
    }
    cargo fuzz run --sanitizer none "${target}" "${work}/${target}" -- \
        -max_total_time="${SECONDS_EACH}" -max_len=65536 -rss_limit_mb=1024 -print_final_stats=1 2>"${work}/${target}.log" || {
        cat "${work}/${target}.log" >&2
        exit 1
    }
    grep -E "^(Done|stat::number_of_executed_units)" "${work}/${target}.log" | sed "s/^/native ${target}: /"
done
