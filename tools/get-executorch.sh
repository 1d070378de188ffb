#!/usr/bin/env bash
# Brings what the feature `executorch` is built with: the shared libraries of ExecuTorch 1.5.1 from its wheel on PyPI, and
# libclang and a C++ compiler, which make the bindings.
#
#   tools/get-executorch.sh
#
# The libraries go to .deps/executorch-1.5.1 (15 MB; .cargo/config.toml names that folder to the build). No Python package is
# installed, and Python is needed here only. What is there already is left alone; what is missing of the system's packages is
# installed by apt-get.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.5.1
fail() {
    echo "tools/get-executorch.sh: $*" >&2
    exit 1
}

case "$(uname -s) $(uname -m)" in
    "Linux x86_64")
        platform=manylinux_2_28_x86_64
        sum=274c28c2fe2b76acb03f9fa381537425c40e0098dcf886baf6d97a1a55ffe300
        ;;
    "Linux aarch64")
        platform=manylinux_2_28_aarch64
        sum=8ee02348a3ea80ddf770822911ebf78da616b73afce0fbaaa79f23311c88c66a
        ;;
    *)
        fail "$(uname -s) on $(uname -m) is none of those that this is written for: Linux on x86_64 and aarch64." \
            "FLORENCE2_EXECUTORCH_HOME may name a folder whose lib/ holds the libraries of ExecuTorch $version."
        ;;
esac

home=.deps/executorch-$version
if [ ! -e "$home/VERSION" ]; then
    [ ! -e "$home" ] || fail "$home is there, and has no file VERSION: it was not made by this; move it away"
    python3 -m pip --version > /dev/null || fail "python3 with pip is needed to fetch ExecuTorch's wheel"
    echo "fetching ExecuTorch $version for $platform"
    mkdir -p .deps
    # In a folder of its own, so that two runs at once do not meet.
    part=$(mktemp -d .deps/part.XXXXXX)
    trap 'rm -rf "$part"' EXIT
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 \
        --platform "$platform" --dest "$part" "executorch==$version"
    wheel=$(echo "$part"/*.whl)
    echo "$sum  $wheel" | sha256sum --check --quiet
    mkdir "$part/whole" "$part/whole/lib"
    python3 - "$wheel" "$part/whole" << 'EOF'
import pathlib
import sys
import zipfile

wheel, out = zipfile.ZipFile(sys.argv[1]), pathlib.Path(sys.argv[2])
for part in ["", "_threadpool", "_kernels_optimized", "_kernels_quantized", "_backend_xnnpack"]:
    (out / f"lib/libexecutorch{part}.so").write_bytes(wheel.read(f"executorch/lib/libexecutorch{part}.so"))
(licence,) = (name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
(out / "LICENSE").write_bytes(wheel.read(licence))
EOF
    echo "$version" > "$part/whole/VERSION"
    # Fails where another run was quicker, whose folder is as good.
    mv -T "$part/whole" "$home" 2> /dev/null || [ -e "$home/VERSION" ]
fi
echo "$home: $(du -sk "$home" | cut -f1) kB"

# Not libclang-cpp, which is another library.
clang() {
    find -L /usr/lib /usr/lib64 /usr/local/lib ${LIBCLANG_PATH:+"$LIBCLANG_PATH"} -maxdepth 4 \
        \( -name 'libclang.so*' -o -name 'libclang-[0-9]*.so*' \) 2> /dev/null | head -n 1 || true
}
compiler() { command -v c++ || command -v g++ || command -v clang++ || true; }

# The first set of packages that the release has; its lists of packages may have to be fetched before.
install() {
    command -v apt-get > /dev/null || fail "$1 is missing, and there is no apt-get to install it with"
    local what=$1 sudo= log
    shift
    [ "$(id -u)" = 0 ] || sudo=sudo
    echo "installing $what"
    log=$(mktemp)
    for packages in "" "$@"; do
        if [ -z "$packages" ]; then
            $sudo apt-get update -q > "$log" 2>&1 || true
        # shellcheck disable=SC2086 # several packages
        elif $sudo apt-get install -y -q --no-install-recommends $packages > "$log" 2>&1; then
            rm "$log"
            return
        fi
    done
    cat "$log" >&2
    fail "cannot install $what; the above is what apt-get says"
}

[ -n "$(compiler)" ] || install "a C++ compiler" g++
[ -n "$(clang)" ] || install libclang "libclang1-14 libclang-common-14-dev" "libclang1-16 libclang-common-16-dev" \
    "libclang1-18 libclang-common-18-dev" "libclang1-19 libclang-common-19-dev"
[ -n "$(clang)" ] || fail "there is no libclang; LIBCLANG_PATH may name the folder that holds it"
echo "libclang: $(clang)"
