#!/bin/sh
# Holds a lock through an open stream while a program works, and stops the program when the lock is lost.
# Usage: holder.sh NAME COMMAND ARG...
# A shell cannot count the validity of a lock well: curl gives up after 10 s of silence, and the program gets the fence.
# What a stream says counts from its request, and covers less and less; so heartbeats go along.
name=$1; shift
url=$LEASEHOLD_HTTP/v1/holds/$(cat /proc/sys/kernel/random/uuid)
token="Authorization: Bearer $LEASEHOLD_TOKEN"
body="{\"name\":\"$name\",\"ttl\":\"15s\",\"on_disconnect\":\"release\"}"
events=$(mktemp -u) && mkfifo "$events" || exit 69
curl -sN --speed-limit 1 --speed-time 10 -X PUT -H "$token" -H 'Accept: application/x-ndjson' -d "$body" \
    "$url?wait=60s" > "$events" & stream=$!
exec 3< "$events"; rm "$events"
status=76
while read -r event <&3; do
    case $event in
    *'"event":"granted"'*)
        fence=$(expr "$event" : '.*"fence":"\([^"]*\)"')
        echo "granted $fence"
        (while sleep 5 && curl -sf -X POST -H "$token" "$url/renew"; do :; done) > /dev/null 3<&- & beat=$!
        (trap 'kill $! 2> /dev/null' TERM; export LEASEHOLD_FENCE=$fence; "$@" & wait $!; code=$?
         curl -s -X DELETE -H "$token" "$url" > /dev/null; exit $code) 3<&- & work=$! ;;
    *'"event":"released"'*) wait "$work"; status=$?; echo released; break ;;
    *'"event":"lost"'*|*'"event":"error"'*) break ;;
    esac
done
kill "$stream" $beat 2> /dev/null
[ "$status" = 76 ] && { echo "lost: $event"; [ -z "$work" ] || kill "$work" 2> /dev/null; }
exit "$status"
