#!/usr/bin/env bash
# Prints the directory for the files of the tests: memory, if 2 GB are free there and programs may be run from it, or the
# usual one. A test of a hub makes some hundred fsync calls, which take a disk a millisecond each.
set -euo pipefail
place="${1:-/dev/shm}" # of the file system in memory

# Whether 2 GB are free in ${place}, and a program that lies there can be run
fits() {
    local free probe status=0
    free="$(df --output=avail --block-size=1M "${place}" 2>/dev/null | tail -n 1)"
    [[ "${free:-0}" -ge 2048 ]] || return 1
    probe="$(mktemp "${place}/veen-XXXXXX" 2>/dev/null)" || return 1
    printf '#!/bin/sh\n' >"${probe}" && chmod 700 "${probe}" && "${probe}" 2>/dev/null || status=1
    rm -f -- "${probe}"
    return "${status}"
}

if [[ -z "${TMPDIR:-}" ]] && fits; then
    echo "${place}"
else
    echo "${TMPDIR:-/tmp}"
fi
