#!/bin/sh
# What the tests of the app need beyond Python: Chromium, and the npm packages of app/. Without it they are skipped.
# Can be run again at any time; when nothing is missing it takes no time.
set -u
cd "$(dirname "$0")/.."

have() {
    command -v "$1" >/dev/null 2>&1
}

wanted=""
have chromium || have chromium-browser || have google-chrome || wanted="chromium"
have node || wanted="$wanted nodejs"
have npm || wanted="$wanted npm"
if [ -n "$wanted" ]; then
    line="apt-get update && apt-get install -y --no-install-recommends $wanted"
    if have apt-get && [ "$(id -u)" = 0 ]; then
        echo "app-tools: installing $wanted" >&2
        DEBIAN_FRONTEND=noninteractive timeout 400 sh -c "$line" >/dev/null 2>&1 </dev/null ||
            echo "app-tools: this failed: $line" >&2
    else
        echo "app-tools: missing: $wanted. On Debian: sudo sh -c '$line'" >&2
        exit 1
    fi
fi

lock=$(cksum <app/package-lock.json)
stamp=app/node_modules/.prims-lock
if [ "$(cat "$stamp" 2>/dev/null)" != "$lock" ]; then
    echo "app-tools: installing the npm packages of app/" >&2
    timeout 200 npm ci --prefix app --no-audit --no-fund --silent </dev/null >&2 || {
        echo "app-tools: this failed: npm ci --prefix app" >&2
        exit 1
    }
    echo "$lock" >"$stamp"
fi
