#!/bin/sh
# Build the images that test machines boot and test containers run, once. Needs root and the package mirror, so it runs outside the isolation.
# Where that cannot be, say why in one line: the tests that boot machines then skip themselves.
set -eu
python=$1
if [ "$(id -u)" != 0 ]; then
    echo "no test machines: booting them needs root" >&2
elif ! command -v mmdebstrap >/dev/null || ! command -v systemd-nspawn >/dev/null; then
    echo "no test machines: mmdebstrap and systemd-container are missing" >&2
else
    "$python" -c "from tests.support.machines.images import main; main()" || echo "no test machines: their images could not be built" >&2
    "$python" -c "from tests.support.engines.docker import main; main()" || echo "no test containers: their image could not be built" >&2
fi
