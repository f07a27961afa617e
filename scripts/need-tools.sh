#!/bin/sh
# The tests use a few of Debian's tools; install those that are missing where this user may.
set -eu
missing=
command -v ip >/dev/null || missing="$missing iproute2"
command -v unshare >/dev/null || missing="$missing util-linux"
command -v git >/dev/null || missing="$missing git"
command -v ssh-keygen >/dev/null || missing="$missing openssh-client"
command -v shellcheck >/dev/null || missing="$missing shellcheck"
# Machines that boot, for the tests of ec2. They need root, so other users do not need these.
if [ "$(id -u)" = 0 ]; then
    command -v mmdebstrap >/dev/null || missing="$missing mmdebstrap"
    command -v systemd-nspawn >/dev/null || missing="$missing systemd-container"
    # Containers.
    command -v dockerd >/dev/null || missing="$missing docker.io"
    command -v podman >/dev/null || missing="$missing podman"
    command -v catatonit >/dev/null || missing="$missing catatonit"
    # Shells that images have.
    command -v busybox >/dev/null || missing="$missing busybox-static"
    command -v ksh >/dev/null || missing="$missing mksh"
    # Buckets that are mounted.
    command -v rclone >/dev/null || missing="$missing rclone"
    command -v s3fs >/dev/null || missing="$missing s3fs"
    command -v fusermount3 >/dev/null || missing="$missing fuse3"
    test -e /usr/share/keyrings/debian-archive-keyring.gpg || missing="$missing debian-archive-keyring"
fi
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2086
    apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "the tests need:$missing (sudo apt-get install$missing)" >&2
fi
