#!/usr/bin/env bash
# Brings what the feature `executorch` is built with: the shared libraries of ExecuTorch 1.5.1 from its wheel on PyPI, and
# libclang, which reads the headers of the bindings.
#
#   tools/get-executorch.sh
#
# The libraries go to .deps/executorch-1.5.1 (15 MB; .cargo/config.toml names that folder to the build). No Python package is
# installed, and Python is needed here only. What is there already is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.5.1
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
        echo "$0: $(uname -s) on $(uname -m) is none of those that this is written for: Linux on x86_64 and aarch64." \
            "FLORENCE2_EXECUTORCH_HOME may name a folder whose lib/ holds the libraries of ExecuTorch $version." >&2
        exit 1
        ;;
esac

home=.deps/executorch-$version
if [ ! -e "$home/VERSION" ]; then
    echo "fetching ExecuTorch $version for $platform"
    rm -rf "$home" "$home.part"
    mkdir -p "$home.part/lib"
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 \
        --platform "$platform" --dest "$home.part" "executorch==$version"
    wheel=$(echo "$home.part"/*.whl)
    echo "$sum  $wheel" | sha256sum --check --quiet
    python3 - "$wheel" "$home.part" << 'EOF'
import pathlib
import sys
import zipfile

wheel, out = zipfile.ZipFile(sys.argv[1]), pathlib.Path(sys.argv[2])
for part in ["", "_threadpool", "_kernels_optimized", "_kernels_quantized", "_backend_xnnpack"]:
    (out / f"lib/libexecutorch{part}.so").write_bytes(wheel.read(f"executorch/lib/libexecutorch{part}.so"))
(licence,) = (name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
(out / "LICENSE").write_bytes(wheel.read(licence))
EOF
    rm "$wheel"
    # The last, so that a folder with it is a whole one.
    echo "$version" > "$home.part/VERSION"
    mv "$home.part" "$home"
fi
echo "$home: $(du -sk "$home" | cut -f1) kB"

# Not libclang-cpp, which is another library.
clang() {
    find /usr/lib /usr/local/lib "${LIBCLANG_PATH:-/usr/lib}" -maxdepth 4 \
        \( -name 'libclang.so*' -o -name 'libclang-[0-9]*.so*' \) 2> /dev/null | grep -m 1 .
}
if found=$(clang); then
    echo "libclang: $found"
elif command -v apt-get > /dev/null; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    echo "installing libclang"
    install() { $sudo apt-get install -y -q --no-install-recommends "libclang1-$1" "libclang-common-$1-dev" > /dev/null 2>&1; }
    # The first that the release has; its lists of packages may have to be fetched before.
    install 14 || $sudo apt-get update -q > /dev/null
    for clang in 14 16 18 19; do
        ! install "$clang" || break
    done
    echo "libclang: $(clang)"
else
    echo "$0: there is no libclang; install it, or set LIBCLANG_PATH to the folder that holds it" >&2
    exit 1
fi
