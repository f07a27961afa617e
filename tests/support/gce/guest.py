"""What stands in for Google's guest environment on a machine, laid over its image.

The units say what the real ones say where it matters for a machine's life: startup scripts run at every boot once the
network is there, shutdown scripts run when the machine goes, before the network does, for as long as they take, and
side by side with all other services' end.
https://github.com/GoogleCloudPlatform/guest-agent
"""

from __future__ import annotations

from tests.support.machines.images import METADATA_PORT

# Where a machine finds its metadata. The real address is link-local, and nothing in a test may speak to that one.
METADATA_HOST = f"127.0.0.1:{METADATA_PORT}"

_ENVIRON = {"GCE_METADATA_HOST": METADATA_HOST, "GCE_METADATA_IP": METADATA_HOST}

_RUNNER = '''#!/usr/bin/python3
"""Run the machine's startup or shutdown script, as it is named by its metadata now."""
import os, subprocess, sys, tempfile, urllib.error, urllib.request

which = sys.argv[1] + "-script"
url = "http://%s/computeMetadata/v1/instance/attributes/%s" % (os.environ["GCE_METADATA_HOST"], which)
try:
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    script = urllib.request.urlopen(request, timeout=10).read()
except urllib.error.HTTPError as error:
    print("No %s scripts to run." % sys.argv[1] if error.code == 404 else "%s: %s" % (which, error), flush=True)
    sys.exit(0)
with tempfile.TemporaryDirectory(prefix="metadata-scripts") as folder:
    path = os.path.join(folder, which)
    with open(path, "wb") as file:
        file.write(script)
    os.chmod(path, 0o755)
    command = [path] if script.startswith(b"#!") else ["/bin/sh", path]
    ran = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for line in ran.stdout:
        sys.stdout.write("%s: %s" % (which, line.decode(errors="replace")))
        sys.stdout.flush()
    status = ran.wait()
print("%s exit status %d" % (which, status), flush=True)
'''

_AGENT = '''#!/usr/bin/python3
"""Give everybody an account whose key is in the machine's or the project's metadata, as long as it is there."""
import json, os, pwd, subprocess, time, urllib.error, urllib.request

BASE = "http://%s/computeMetadata/v1/" % os.environ["GCE_METADATA_HOST"]


def told(query):
    request = urllib.request.Request(BASE + query, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=150) as answer:
        return json.loads(answer.read()), answer.headers["ETag"]


def keys(found):
    held = {}
    instance, project = found["instance"]["attributes"], found["project"]["attributes"]
    sources = [instance.get("ssh-keys", "")]
    if instance.get("block-project-ssh-keys", "").lower() != "true":
        sources.append(project.get("ssh-keys", ""))
    for line in "\\n".join(sources).splitlines():
        user, _, key = line.strip().partition(":")
        if user and key:
            held.setdefault(user, []).append(key)
    return held


def put(user, lines):
    try:
        home = pwd.getpwnam(user).pw_dir
    except KeyError:
        if not lines:
            return
        subprocess.call(["useradd", "-m", "-s", "/bin/bash", "-p", "*", user])
        home = pwd.getpwnam(user).pw_dir
        with open("/etc/sudoers.d/google_" + user, "w") as file:
            file.write(user + " ALL=(ALL:ALL) NOPASSWD:ALL\\n")
    entry = pwd.getpwnam(user)
    folder = os.path.join(home, ".ssh")
    os.makedirs(folder, 0o700, exist_ok=True)
    path = os.path.join(folder, "authorized_keys")
    with open(path + ".new", "w") as file:
        file.write("".join(line + "\\n" for line in lines))
    os.chmod(path + ".new", 0o600)
    os.rename(path + ".new", path)
    for each in (folder, path):
        os.chown(each, entry.pw_uid, entry.pw_gid)


known, query = set(), "?recursive=true"
while True:
    try:
        found, etag = told(query)
        held = keys(found)
        for user in known | set(held):
            put(user, held.get(user, []))
        known = set(held)
        query = "?recursive=true&wait_for_change=true&timeout_sec=60&last_etag=" + etag
    except (OSError, urllib.error.URLError):
        time.sleep(1)
'''

_SETUP_UNIT = """\
[Unit]
Description=Google Compute Engine Instance Setup
Before=ssh.service

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'test -e /etc/ssh/ssh_host_ed25519_key || \
ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key'
"""

_AGENT_UNIT = """\
[Unit]
Description=Google Compute Engine Guest Agent
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/google_guest_agent
KillMode=process
TimeoutStopSec=1
"""

_STARTUP_UNIT = """\
[Unit]
Description=Google Compute Engine Startup Scripts
Wants=network-online.target
After=network-online.target google-guest-agent.service

[Service]
Type=oneshot
ExecStart=/usr/bin/google_metadata_script_runner startup
KillMode=process
StandardOutput=journal+console
StandardError=journal+console
"""

# No time limit: what limits it on a real machine is that its power goes.
_SHUTDOWN_UNIT = """\
[Unit]
Description=Google Compute Engine Shutdown Scripts
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
ExecStart=/bin/true
RemainAfterExit=true
ExecStop=/usr/bin/google_metadata_script_runner shutdown
TimeoutStopSec=0
KillMode=process
StandardOutput=journal+console
StandardError=journal+console
"""

_UNITS = {
    "google-instance-setup.service": _SETUP_UNIT,
    "google-guest-agent.service": _AGENT_UNIT,
    "google-startup-scripts.service": _STARTUP_UNIT,
    "google-shutdown-scripts.service": _SHUTDOWN_UNIT,
}


def files() -> dict[str, str]:
    """What is laid over the image of every machine."""
    return {
        # A machine on Compute Engine is set up by Google's own agent.
        "etc/cloud/cloud-init.disabled": "",
        "etc/environment": "".join(f"{name}={value}\n" for name, value in _ENVIRON.items()),
        "etc/systemd/system.conf.d/metadata.conf": (
            f"[Manager]\nDefaultEnvironment={' '.join(f'{name}={value}' for name, value in _ENVIRON.items())}\n"
        ),
        "usr/bin/google_metadata_script_runner": _RUNNER,
        "usr/bin/google_guest_agent": _AGENT,
        **{f"etc/systemd/system/{name}": text for name, text in _UNITS.items()},
        "etc/systemd/system/multi-user.target.d/google.conf": f"[Unit]\nWants={' '.join(_UNITS)}\n",
    }


def names(name: str, hostname: str, address: str) -> dict[str, str]:
    """What the guest agent makes of a machine's names."""
    return {
        "etc/hostname": f"{name}\n",
        "etc/hosts": f"127.0.0.1 localhost\n{address} {hostname} {name}\n",
    }
