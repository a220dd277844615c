#!/bin/sh
# Get Chromium for the dashboard's tests where that is possible, and say so loudly where it is not.
set -u
for browser in chromium chromium-browser google-chrome; do
    command -v "$browser" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Chromium for the dashboard's tests ..."
    if apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; then
        exit 0
    fi
fi
echo "*** NO BROWSER: the dashboard's tests will be skipped. Install chromium (Debian: apt install chromium). ***" >&2
