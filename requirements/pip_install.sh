#!/bin/sh
# Install with pip, with a line of progress now and then. The usual failures are one sentence each with the command that
# helps, below pip's own last words.
#
#   pip_install.sh PYTHON ARGUMENT...
set -u
python=$1
shift

fail() { echo "$1" >&2; exit 1; }

version=$("$python" -m pip --version 2> /dev/null | cut -d ' ' -f 2)
case $version in
    "") fail "$python has no pip: $python -m ensurepip" ;;
    # An editable installation without setup.py (PEP 660) needs 21.3.
    [0-9].* | 1[0-9].* | 20.* | 21.[012] | 21.[012].*)
        fail "pip $version is too old, and 21.3 or newer is needed: $python -m pip install --upgrade pip" ;;
esac

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# Ctrl-C does not reach a job in the background.
trap 'trap "" TERM; kill 0; exit 130' INT TERM

# install PART ARGUMENT...
install() {
    part=$logs/$1
    shift
    { "$python" -m pip --disable-pip-version-check install --no-compile "$@" 2>&1; echo $? > "$part.status"; } | {
        count=0
        while IFS= read -r line; do
            printf '%s\n' "$line" >> "$part.log"
            case $line in
                Collecting*)
                    count=$((count + 1))
                    [ $((count % 20)) -ne 0 ] || echo "  20 more packages found ..." ;;
                "Installing collected packages"*) [ "$count" -eq 0 ] || echo "  Unpacking $count packages ..." ;;
            esac
        done
    }
}

case "$*" in
    "--require-hashes -r "*)
        # pip spends most of its time on reading the index, on one core. Two share a lock,
        # which names all packages.
        awk -v logs="$logs" '/^[A-Za-z0-9]/ { part = 1 + count++ % 2 } { print > (logs "/" part ".txt") }' "$3"
        install 1 --no-deps --require-hashes -r "$logs/1.txt" &
        [ ! -e "$logs/2.txt" ] || install 2 --no-deps --require-hashes -r "$logs/2.txt"
        wait ;;
    *) install 1 "$@" ;;
esac
failed=$(grep -Lx 0 "$logs"/*.status | head -n 1)
if [ -z "$failed" ]; then
    # pip compiles on one core. A file that does not compile is one that nobody imports, and
    # of the libraries' own tests nobody imports any. An editable installation has no files.
    case " $*" in *" -e "*) exit 0 ;; esac
    ! grep -q "^Installing collected packages" "$logs"/*.log || "$python" -m compileall -qq -j 0 -x "/tests/" \
        "$("$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")" > /dev/null 2>&1
    exit 0
fi

log=${failed%.status}.log
tail -n 15 "$log" >&2
echo >&2
seen() { grep -qiE "$1" "$log"; }
if seen "no space left"; then
    fail "The disk is full: free some space, or put the environment elsewhere: make VENV=/path/with/space"
elif seen "unable to execute|command '?\S*(cc|c\+\+|clang|g\+\+)'? failed|unknown compiler|no cmake_c(xx)?_compiler|cargo, the rust|linker .* not found"; then
    fail "A package has no wheel for this Python and machine, and the compiler to build it is missing: apt-get install build-essential python3-dev cargo (Debian, Ubuntu), or take a Python from 3.11 to 3.14, which needs none: rm -rf .venv; make PYTHON=python3.13"
elif seen "connection|timed out|name resolution|unreachable|proxy|ssl|from versions: none"; then
    fail "The package index cannot be reached: check the network, or name another index: PIP_INDEX_URL=https://HOST/simple make"
elif seen "no matching distribution|could not find a version"; then
    fail "The package index lacks a locked version: name another index: PIP_INDEX_URL=https://pypi.org/simple make"
fi
fail "pip failed with the message above."
