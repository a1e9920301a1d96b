#!/usr/bin/env bash
# Installs the Debian packages that the `system` tests run, where that is allowed. Goes on without those that cannot be
# had, as their tests say so and skip; the one line that it prints names what is missing.
# Arguments are pairs of a program and its package: tools/ensure_packages.sh zsh:zsh systemd-analyze:systemd
set -euo pipefail

# The packages of those pairs whose program is not on the PATH, one per line
missing_packages() {
    local pair
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
    done
}

mapfile -t missing < <(missing_packages "$@")
if [[ "${#missing[@]}" -eq 0 ]]; then
    exit 0
fi

if [[ "$(id -u)" -eq 0 ]] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null 2>&1 || true
    for package in "${missing[@]}"; do  # one by one: a package that does not exist must not keep the others away
        apt-get install -y -qq --no-install-recommends "${package}" >/dev/null 2>&1 || true
    done
    mapfile -t missing < <(missing_packages "$@")
fi
if [[ "${#missing[@]}" -gt 0 ]]; then
    echo "not installed, so their tests are skipped: ${missing[*]} (as root: apt-get install ${missing[*]})"
fi
