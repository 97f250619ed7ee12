#!/bin/sh
# healer with the site's settings.
if [ -z "${HEALER_CONFIG+set}" ] && [ -r /etc/healer/healer.toml ]; then
    export HEALER_CONFIG=/etc/healer/healer.toml
fi
exec /opt/healer/.venv/bin/healer "$@"
