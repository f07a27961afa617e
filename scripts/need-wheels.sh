#!/bin/sh
# Fetch the packages that `make bench` installs, once. Needs a package index, so it runs outside the isolation. Where
# there is none, say so in one line: those figures then fail, and no others.
set -eu
python=$1
folder=bench/out/wheels
digest=$("$python" -c 'import hashlib, sys
print(hashlib.sha256(open("bench/packages.txt", "rb").read() + sys.version.encode()).hexdigest()[:16])')
[ -e "$folder/.$digest" ] && exit 0
rm -rf "$folder"
mkdir -p "$folder"
if "$python" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --dest "$folder" \
    --requirement bench/packages.txt 2>"$folder.log"; then
    touch "$folder/.$digest"
else
    echo "no packages for the figures of environments: pip cannot fetch them (see $folder.log)" >&2
fi
