#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One command from a plain Debian 12 machine to a running server, or to passed tests.
#
#     ./bootstrap.sh serve [MODEL] [OPTIONS]             build, then serve (options of hzpserve serve)
#     ./bootstrap.sh test                                build, then run all tests but the suite 'long'
#     ./bootstrap.sh test OPTION...                      the same with options of meson test (--suite long)
#     ./bootstrap.sh build                               build only
#     ./bootstrap.sh packages [ci]                       install packages only: for tests, and what .ci/run adds
#
# Missing Debian packages are named and installed (root or sudo); a second run installs nothing.
set -eu
cd "$(dirname "$0")"

packages="gcc pkg-config meson ninja-build python3 curl
          libdnnl-dev libedit-dev libmicrohttpd-dev libjansson-dev libpcre2-dev libsqlite3-dev
          libutf8proc-dev zlib1g-dev libcurl4-openssl-dev libopenmpi-dev openmpi-bin libzmq3-dev"
test_packages="libcmocka-dev python3-venv python3-jsonschema binutils g++"
ci_packages="clang ccache"

say() { printf '%s\n' "$*" >&2; }

install_missing() {
    missing=
    for package in "$@"; do
        status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$status" = installed ] || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    say "bootstrap: installing Debian packages:$missing"
    as_root=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || { say "bootstrap: not root and no sudo; install them, then run this again"; exit 1; }
        as_root=sudo
    fi
    export DEBIAN_FRONTEND=noninteractive
    $as_root apt-get update -qq
    # shellcheck disable=SC2086
    $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

build() {
    if [ ! -f build/build.ninja ]; then
        meson setup build -Dtests="$1" >&2
    elif [ "$1" = true ]; then
        meson configure build -Dtests=true >&2
    fi
    meson compile -C build >&2
}

# The API tests use the official clients.  Without them they are skipped, and say so.
test_client() {
    if [ ! -x .venv/bin/python ]; then
        python3 -m venv .venv || return 0
    fi
    for client in openai anthropic; do
        if ! .venv/bin/python -c "import $client" 2>/dev/null; then
            say "bootstrap: installing the $client client into .venv"
            .venv/bin/python -m pip install --quiet $client || say "bootstrap: no $client client: its tests will be skipped"
        fi
    done
}

command=${1:-serve}
[ $# -eq 0 ] || shift
# shellcheck disable=SC2086
case $command in
serve)
    install_missing $packages
    build false
    # Options only, or nothing: the bundled model.
    case ${1:-} in
    '' | -*) set -- models/world "$@" ;;
    esac
    exec build/hzpserve serve "$@"
    ;;
test)
    install_missing $packages $test_packages
    test_client
    build true
    [ $# -gt 0 ] || set -- --no-suite long
    exec meson test -C build --print-errorlogs "$@"
    ;;
packages)
    [ "${1:-}" != ci ] || packages="$packages $ci_packages"
    install_missing $packages $test_packages
    ;;
build)
    install_missing $packages
    build false
    ;;
*)
    say "usage: ./bootstrap.sh serve [MODEL] [OPTIONS] | test | build | packages [ci]"
    exit 2
    ;;
esac
