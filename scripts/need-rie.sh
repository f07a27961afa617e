#!/bin/sh
# Fetch AWS's own runtime interface emulator, once, for the tests that run the Lambda package under it. It is
# distributed inside the wheel of aws-sam-cli, of which nothing else is wanted. Needs the package index, so it runs
# outside the isolation. Where that cannot be, say so in one line: those tests then skip themselves.
set -eu
python=$1
folder=$(dirname "$(dirname "$python")")/rie
wheel=aws-sam-cli==1.170.0
[ "$(cat "$folder/.installed" 2>/dev/null)" = "$wheel" ] && exit 0
rm -rf "$folder"
mkdir -p "$folder"
if "$python" -m pip download --quiet --disable-pip-version-check --no-deps -d "$folder" "$wheel" &&
    "$python" - "$folder" <<'PYTHON'
import pathlib, platform, sys, zipfile

folder = pathlib.Path(sys.argv[1])
name = {"x86_64": "x86_64", "aarch64": "arm64"}[platform.machine()]
(wheel,) = folder.glob("*.whl")
program = folder / "aws-lambda-rie"
program.write_bytes(zipfile.ZipFile(wheel).read(f"samcli/local/rapid/aws-lambda-rie-{name}"))
program.chmod(0o755)
wheel.unlink()
PYTHON
then
    echo "$wheel" > "$folder/.installed"
else
    echo "no tests under Lambda's emulator: $wheel could not be fetched" >&2
fi
