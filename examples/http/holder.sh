#!/bin/sh
# Holds a lock through an open stream while a program works, and stops the program when the lock is lost.
# Usage: holder.sh NAME COMMAND ARG...
# A shell cannot count the validity of a lock well: curl gives up after 10 s of silence, and the program gets the fence.
# What a stream says counts from its request, and covers less and less; so heartbeats go along.
# The lock is released by a DELETE after the program has ended, also if this script or its curl is killed: the end of the
# stream does not release it. As long as the program runs, a process beside it sends heartbeats, and looks whether this
# script lives. A lock that cannot be released ends with its ttl.
# A process that begins has the traps of its shell for a moment, and loses a signal that comes then. So each writes a line
# when it runs, to 4 or to 5, and gets no signal before.
name=$1; shift
url=$LEASEHOLD_HTTP/v1/holds/$(cat /proc/sys/kernel/random/uuid)
token="Authorization: Bearer $LEASEHOLD_TOKEN"
body="{\"name\":\"$name\",\"ttl\":\"15s\",\"on_disconnect\":\"keep\"}"
work='' starts='' asked=''

# Releases the lock, or gives up the wait for it, and prints the status of the answer.
release() {
    curl -s -m 5 --retry 3 --retry-all-errors -o /dev/null -w '%{http_code}' -X DELETE -H "$token" "$url"
}

# Runs the program, and releases the lock. TERM stops the program, and the code is then 76.
under_lock() {
    code='' program=''
    trap 'code=76; [ -z "$program" ] || kill "$program" 2> /dev/null' TERM
    echo >&4
    { echo >&5; exec "$@" 4>&- 5>&-; } & begins=$!
    until read -r _ <&5; do :; done
    program=$begins
    [ -z "$code" ] || kill "$program"
    (beat=0 told=''
     while kill -0 "$program"; do
         # A script that was killed has no program any more, even before its parent has seen that. The program is asked
         # to end once: a shell would begin what it does about that again.
         [ -n "$told" ] || [ -e /proc/$$/exe ] || { kill "$program"; told=1; }
         sleep 1; beat=$((beat + 1))
         [ $((beat % 5)) != 0 ] || curl -s -m 4 -X POST -H "$token" "$url/renew"
     done) > /dev/null 2>&1 &
    ended=0
    # A signal ends a wait, and not the program.
    while wait "$program"; ended=$?; kill -0 "$program" 2> /dev/null; do :; done
    trap '' TERM
    # Without an answer no stream says that it is over.
    case $(release) in 200 | 410) ;; *) kill "$stream" 2> /dev/null ;; esac
    exit "${code:-$ended}"
}

# Asks the program to end, or ends the wait for the lock.
stop() {
    asked=1
    if [ -n "$work" ]; then kill "$work"; elif [ -z "$starts" ]; then kill "$stream"; fi
}

events=$(mktemp -u) && mkfifo "$events" "$events.4" "$events.5" || exit 69
exec 4<> "$events.4" 5<> "$events.5"; rm "$events.4" "$events.5"
curl -sN --speed-limit 1 --speed-time 10 -X PUT -H "$token" -H 'Accept: application/x-ndjson' -d "$body" \
    "$url?wait=60s" > "$events" & stream=$!
trap stop TERM INT HUP
exec 3< "$events"; rm "$events"
while read -r event <&3; do
    case $event in
    *'"event":"granted"'*)
        LEASEHOLD_FENCE=$(expr "$event" : '.*"fence":"\([^"]*\)"'); export LEASEHOLD_FENCE
        [ -z "$asked" ] || break
        echo "granted $LEASEHOLD_FENCE"
        starts=1; under_lock "$@" & begins=$!
        until read -r _ <&4; do :; done
        work=$begins
        [ -z "$asked" ] || kill "$work" ;;
    *'"event":"released"'* | *'"event":"lost"'* | *'"event":"error"'*) break ;;
    esac
done
trap '' TERM INT HUP
status=76
if [ -n "$work" ]; then kill "$work" 2> /dev/null; wait "$work"; status=$?; else release > /dev/null; fi
kill "$stream" 2> /dev/null
case $event in *'"event":"released"'*) echo released ;; *) echo "lost: $event" ;; esac
[ -z "$asked" ] || status=143
exit "$status"
