#!/bin/sh
# Says whether this machine can build labeler: Python, Rust, a C linker; prints the Python to use.
#
# Never installs anything. What is lacking is printed to stderr, all of it with its remedy; exit 1.
# `PYTHON` names the interpreter to take; otherwise the first that is new enough on PATH.

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
rust_min=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
lacks=0

lack() {
    echo "make: $*" >&2
    lacks=1
}

# Prints what keeps $1 from being used; nothing if it can be.
python_problem() {
    "$1" - 2>/dev/null <<'PY' || echo "does not run"
import sys, sysconfig
version = ".".join(map(str, sys.version_info[:3]))
if sys.version_info < (3, 11):
    print(f"is {version}, too old")
elif sysconfig.get_config_var("Py_GIL_DISABLED"):
    print(f"is {version} free-threaded, which the extension refuses")
else:
    try:
        import ensurepip, venv
    except ImportError:
        print(f"is {version} without the venv module (on Debian: apt-get install python3-venv)")
PY
}

find_python() {
    seen=""
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        path=$(command -v "$candidate") || continue
        problem=$(python_problem "$path")
        if [ -z "$problem" ]; then
            echo "$path"
            return
        fi
        seen="$seen; $candidate $problem"
    done
    lack "Python 3.11 or newer is needed${seen:-; none is on PATH}." \
        "Install it, or name one: make PYTHON=/path/to/python3.12"
}

check_rust() {
    if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
        lack "Rust $rust_min or newer is needed; cargo or rustc is not on PATH." \
            "Install it with rustup"
        return
    fi
    found=$(rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
    if [ -z "$found" ]; then
        lack "Rust $rust_min or newer is needed; rustc does not run." "Install it with rustup"
        return
    fi
    oldest=$(printf '%s\n%s\n' "$rust_min" "$found" | sort -t. -k1,1n -k2,2n | head -n 1)
    if [ "$oldest" != "$rust_min" ]; then
        lack "Rust $rust_min or newer is needed; rustc is $found, too old." \
            "Update it: rustup update stable"
    fi
}

check_linker() {
    for candidate in ${CC:-cc gcc clang}; do
        if command -v "$candidate" >/dev/null; then return; fi
    done
    lack "a C linker is needed; none of cc, gcc and clang is on PATH." \
        "On Debian: apt-get install gcc libc6-dev"
}

python=$(find_python) || exit 1
[ -n "$python" ] || lacks=1
check_rust
check_linker
[ "$lacks" = 0 ] || exit 1
echo "$python"
