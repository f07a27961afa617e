#!/bin/sh
# Run a command in a network namespace that has loopback and nothing else, where this user may make one.
# Elsewhere run it as it is: the tests that need isolation make their own, or say in one line what is missing.
set -eu
inside='ip link set lo up 2>/dev/null || ifconfig lo up; exec "$@"'
if [ -z "${STOKER_ISOLATED:-}" ]; then
    export STOKER_ISOLATED=1
    if unshare --net true 2>/dev/null; then
        exec unshare --net sh -c "$inside" sh "$@"
    elif unshare --map-root-user --net true 2>/dev/null; then
        exec unshare --map-root-user --net sh -c "$inside" sh "$@"
    fi
    unset STOKER_ISOLATED
fi
exec "$@"
