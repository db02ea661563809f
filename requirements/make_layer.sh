#!/bin/sh
# Make a virtual environment on top of another one: it has the other's packages, and what is
# installed into it comes before them.
#
#   make_layer.sh PYTHON FOLDER      PYTHON: that of the environment beneath
set -eu
beneath=$1 layer=$2

echo "Creating $layer on top of $(dirname "$(dirname "$beneath")") ..."
rm -rf "$layer"
# Its pip is the one of the environment beneath.
"$beneath" -m venv --without-pip "$layer"
packages() { "$1" -c 'import site; print(site.getsitepackages()[0])'; }
# addsitedir, unlike a path in the file, reads the .pth files there: editable installations, and
# the environment beneath that one.
printf 'import site; site.addsitedir(%s)\n' "'$(packages "$beneath")'" \
    > "$(packages "$layer/bin/python")/beneath.pth"
# Commands of packages beneath start their own Python, so this one is written anew.
printf '#!%s\nfrom dragoman_cli.main import main\n\nmain()\n' \
    "$(cd "$layer" && pwd)/bin/python" > "$layer/bin/dragoman"
chmod +x "$layer/bin/dragoman"
