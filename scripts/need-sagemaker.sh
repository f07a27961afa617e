#!/bin/sh
# Install SageMaker's own training toolkit, once, for the tests that run a script under it. In an environment of its
# own, beside the tests': it brings packages that no other program needs. Needs the package index, so it runs outside the isolation.
# Where that cannot be, say so in one line: those tests then skip themselves.
set -eu
python=$1
folder=$(dirname "$(dirname "$python")")/sagemaker
toolkit=sagemaker-training==5.1.4
[ "$(cat "$folder/.installed" 2>/dev/null)" = "$toolkit" ] && exit 0
# It is distributed as source, a small part of it in C.
if ! command -v cc >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev; } >/dev/null || :
fi
rm -rf "$folder"
if "$python" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$toolkit"; then
    echo "$toolkit" > "$folder/.installed"
else
    echo "no tests of SageMaker's toolkit: $toolkit could not be installed" >&2
fi
