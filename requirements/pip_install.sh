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

log=$(mktemp)
trap 'rm -f "$log" "$log.status"' EXIT
{ "$python" -m pip --disable-pip-version-check install "$@" 2>&1; echo $? > "$log.status"; } | {
    count=0
    while IFS= read -r line; do
        printf '%s\n' "$line" >> "$log"
        case $line in
            Collecting*)
                count=$((count + 1))
                [ $((count % 20)) -ne 0 ] || echo "  $count packages found ..." ;;
            "Installing collected packages"*) [ "$count" -eq 0 ] || echo "  Unpacking $count packages ..." ;;
        esac
    done
}
[ "$(cat "$log.status")" -ne 0 ] || exit 0

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
