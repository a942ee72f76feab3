# What systemd does for a unit before it starts its command, in a mount namespace of its own.
# The environment has USER_ID, WORK (a folder with the settings, the socket of the manager and, if
# there are any, credentials), PROGRAM, UMASK, CAPABILITIES, and by kind the folders that the unit
# has: STATE, LOGS, RUNTIME, each as MODE:PATH. The arguments are the command.
set -eu

# The user and the settings, in a copy of /etc.
cp -a /etc "$WORK/etc"
echo "throng:x:$USER_ID:$USER_ID::/var/lib/throng:/usr/sbin/nologin" >>"$WORK/etc/passwd"
echo "throng:x:$USER_ID:" >>"$WORK/etc/group"
rm -rf "$WORK/etc/throng"
cp -a "$WORK/settings" "$WORK/etc/throng"
mount --bind "$WORK/etc" /etc

# Empty folders of this namespace alone, in place of those of the machine.
for folder in /run /var/lib /var/log /usr/local/bin; do
    mount -t tmpfs -o mode=755 tmpfs "$folder"
done
touch /usr/local/bin/throng
mount --bind "$PROGRAM" /usr/local/bin/throng
mkdir /run/systemd
touch /run/systemd/notify
mount --bind "$WORK/notify" /run/systemd/notify
if [ -d "$WORK/credentials" ]; then
    mkdir /run/credentials
    cp -a "$WORK/credentials" "/run/credentials/$UNIT"
    chown -R "$USER_ID:$USER_ID" /run/credentials
    chmod -R a=,u=rX /run/credentials
fi
# A hook of another program, as root, before the service sees the files.
if [ -f "$WORK/hook" ]; then
    RENEWED_LINEAGE="$WORK/lineage" sh "$WORK/hook"
fi

own=
for folder in $STATE $LOGS $RUNTIME; do
    path=${folder#*:}
    install -d -o "$USER_ID" -g "$USER_ID" -m "${folder%%:*}" "$path"
    mount --bind "$path" "$path"
    own="$own $path"
done

# ProtectHome=yes, PrivateTmp=yes. What is open already stays so.
for folder in /home /root /run/user; do
    if [ -d "$folder" ]; then mount -t tmpfs -o mode=000,ro tmpfs "$folder"; fi
done
mount -t tmpfs -o mode=1777 tmpfs /tmp

# ProtectSystem=strict.
cut -d ' ' -f 5 /proc/self/mountinfo >/tmp/mounts
while read -r mount; do
    case " $own /tmp " in *" $mount "*) continue ;; esac
    case "$mount/" in /proc/* | /sys/* | /dev/*) continue ;; esac
    # One below another that was mounted over it since cannot be reached.
    mount -o remount,bind,ro "$mount" 2>/dev/null || true
done </tmp/mounts
rm /tmp/mounts
for folder in / /etc/throng /var/lib /var/log /run; do
    if touch "$folder/.written" 2>/dev/null; then
        echo "the stand-in leaves $folder writable" >&2
        exit 99
    fi
done

ulimit -n 1048576 2>/dev/null || true
umask "$UMASK"
cd /
export LISTEN_PID=$$ WATCHDOG_PID=$$
caps="-all$CAPABILITIES"
exec setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups --no-new-privs \
    --inh-caps="$caps" --ambient-caps="$caps" --bounding-set="$caps" "$@"
