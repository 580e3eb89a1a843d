#!/usr/bin/env bash
# Builds the Dockerfile where there is no Docker, and runs a quick night in the image: benchmarks/image.sh
#
# By Debian's own tools: mmdebstrap makes a Debian with Python and pip, which is the base (--build-arg BASE=…), and buildah
# builds on it and runs it, each step in a chroot. Needs root, both packages, a network and 30 GB. The registry's settings
# are this machine's: PIP_… variables, pip's configuration and the folders that these name.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'buildah rm --all >/dev/null; rm -rf "$work"' EXIT
export BUILDAH_ISOLATION=chroot

mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-dev,python3-pip \
    "${SUITE:-bookworm}" "$work/base.tar"
base=$(buildah from scratch)
buildah add --quiet "$base" "$work/base.tar" / >/dev/null
buildah commit --quiet --rm "$base" nightquant-base >/dev/null

mounts=()
for path in /etc/ssl/certs /etc/pip.conf ${PIP_FOLDERS:-}; do
    [ -e "$path" ] && mounts+=(--volume "$path:$path:ro")
done
variables=()
while read -r name; do variables+=(--env "$name"); done < <(compgen -e | grep -E '^(PIP|SSL)_' || true)
buildah build --network host --layers=false "${mounts[@]}" "${variables[@]}" \
    --build-arg BASE=localhost/nightquant-base --tag nightquant . 2>&1 | grep -E '^STEP|rror' || true
buildah images --format '{{.Name}}, {{.Size}}' localhost/nightquant

container=$(buildah from nightquant)
in_image() { buildah run --network host "$container" -- "$@"; }
echo "user $(in_image id -u), $(in_image python3 --version), $(in_image nightquant --version)"
in_image nightquant nightly --workload lstm-demo --profile quick
in_image nightquant store check
in_image nightquant query "SELECT candidate, speedup, decision FROM leaderboard"
