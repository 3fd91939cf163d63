#!/bin/sh
# Lays the three fake agents out in a guest, from the folder that this file is in, and starts them. Run as root.
set -eu
here=$(dirname "$0")
systemd_unit() { # NAME USER COMMAND...
    name=$1 user=$2
    shift 2
    cat >"/etc/systemd/system/$name.service" <<END
[Unit]
After=network.target fake-provider.service
[Service]
Type=notify
User=$user
ExecStart=$*
Restart=always
RestartSec=1
StartLimitIntervalSec=0
[Install]
WantedBy=multi-user.target
END
}
launcher() { # NAME PYTHON FILE
    printf '#!/bin/sh\nexec %s %s "$@"\n' "$2" "$3" >"/usr/local/bin/$1"
    chmod 0755 "/usr/local/bin/$1"
}

mkdir -p /opt/fake-provider
cp "$here/provider.py" /opt/fake-provider/
systemd_unit fake-provider root /usr/bin/python3 /opt/fake-provider/provider.py

code=/home/agent/.hermes/hermes-agent
mkdir -p "$code" /a0 /usr/lib/node_modules/openclaw
cp "$here/fake_agent.py" "$here/hermes.py" "$code/"
printf '[project]\nname = "hermes-agent"\nversion = "0.18.0"\n' >"$code/pyproject.toml"
python3 -m venv --without-pip "$code/venv"
site=$(echo "$code"/venv/lib/python3*/site-packages)
echo 'VERSION = "1.0"' >"$site/fakedep.py"
mkdir -p "$site/fakedep-1.0.dist-info"
printf 'Metadata-Version: 2.1\nName: fakedep\nVersion: 1.0\n' >"$site/fakedep-1.0.dist-info/METADATA"
launcher hermes "$code/venv/bin/python" "$code/hermes.py"
chown -R agent: /home/agent/.hermes

cp "$here/fake_agent.py" "$here/agent_zero.py" /a0/
echo v2.15 >/a0/VERSION
launcher a0 /usr/bin/python3 /a0/agent_zero.py

cp "$here/fake_agent.py" "$here/openclaw.py" /usr/lib/node_modules/openclaw/
echo '{"name": "openclaw", "version": "2026.11.1"}' >/usr/lib/node_modules/openclaw/package.json
launcher openclaw /usr/bin/python3 /usr/lib/node_modules/openclaw/openclaw.py

runuser -u agent -- hermes setup
a0 setup
runuser -u agent -- openclaw setup
systemd_unit hermes-gateway agent /usr/local/bin/hermes gateway run
systemd_unit agent-zero root /usr/local/bin/a0 gateway run
systemd_unit openclaw-gateway agent /usr/local/bin/openclaw gateway run
systemctl daemon-reload
systemctl enable --quiet --now fake-provider hermes-gateway agent-zero openclaw-gateway
