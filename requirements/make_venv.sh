#!/bin/sh
# Make a virtual environment. What the Python lacks is one sentence with the command that helps.
#
#   make_venv.sh PYTHON FOLDER
set -u
python=$1 venv=$2

fail() { echo "$1" >&2; exit 1; }

command -v "$python" > /dev/null ||
    fail "$python is not installed: apt-get install python3 python3-venv (Debian, Ubuntu), or name another Python: make PYTHON=python3.13"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || fail "$python does not run."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is Python $version, and 3.11 or newer is needed; name another Python: make PYTHON=python3.13"
# Debian packages ensurepip separately, without which venv makes an environment that has no pip.
"$python" -c 'import venv, ensurepip' 2> /dev/null ||
    fail "$python has no venv and ensurepip: apt-get install python$version-venv (Debian, Ubuntu)"
echo "Creating $venv with Python $version ..."
log=$("$python" -m venv "$venv" 2>&1) || {
    echo "$log" | tail -n 5 >&2
    fail "$python could not create $venv; remove it and try again: rm -rf $venv && make"
}
