#!/usr/bin/env bash
# Finds a Java that Spark can run on, or installs one where that is allowed. Prints the Java it found.
set -euo pipefail

readonly MIN_MAJOR=17

# "17.0.15" -> 17, "1.8.0_402" -> 1: old enough either way
java_major() {
    "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

# JAVA_HOME wins, as it does for Spark; a JAVA_HOME that is too old is passed over
find_java() {
    local candidate major
    for candidate in "${JAVA_HOME:+${JAVA_HOME}/bin/java}" "$(command -v java || true)"; do
        [[ -n "${candidate}" && -x "${candidate}" ]] || continue
        major="$(java_major "${candidate}" || true)"
        if [[ -n "${major}" && "${major}" -ge "${MIN_MAJOR}" ]]; then
            echo "java ${major}: ${candidate}"
            return 0
        fi
    done
    return 1
}

if find_java; then
    exit 0
fi

if [[ "$(id -u)" -eq 0 ]] && command -v apt-get >/dev/null; then
    echo "no Java ${MIN_MAJOR} or newer: installing default-jre-headless"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends default-jre-headless >/dev/null
    if find_java; then
        exit 0
    fi
    echo "default-jre-headless brought no Java ${MIN_MAJOR}; install a newer JRE and set JAVA_HOME" >&2
    exit 1
fi

if command -v apt-get >/dev/null; then
    advice="run: sudo apt-get install -y default-jre-headless"
elif command -v dnf >/dev/null; then
    advice="run: sudo dnf install -y java-latest-openjdk-headless"
elif command -v brew >/dev/null; then
    advice="run: brew install openjdk@17"
else
    advice="install a Java runtime and set JAVA_HOME"
fi
echo "Spark needs Java ${MIN_MAJOR} or newer; ${advice}" >&2
exit 1
