#!/usr/bin/env bash
# Puts Debian's prometheus and promtool into FOLDER/bin, unless they are there or on the PATH already. The package is
# unpacked rather than installed: that needs no root where package lists are at hand, and starts no service.
set -euo pipefail
folder=${1:?the folder that gets bin/prometheus and bin/promtool}
export PATH="$folder/bin:$PATH"
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "prometheus and promtool are missing, and there is no apt-get to fetch them with: put both on the PATH" >&2
    exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
fetch() { (cd "$scratch" && apt-get download -qq prometheus 2>/dev/null); }
if ! fetch; then
    # A fresh machine has no package lists yet, and only root may get them.
    { [ "$(id -u)" -eq 0 ] && apt-get update -qq && fetch; } || {
        echo "apt-get cannot download the package prometheus: run apt-get update as root, or put prometheus and promtool on the PATH" >&2
        exit 1
    }
fi
dpkg-deb --extract "$scratch"/prometheus_*.deb "$scratch/package"
mkdir -p "$folder/bin" "$folder/share/prometheus"
cp -r "$scratch/package/usr/share/prometheus/web" "$folder/share/prometheus/"
cp "$scratch/package/usr/bin/prometheus" "$scratch/package/usr/bin/promtool" "$folder/bin/"
