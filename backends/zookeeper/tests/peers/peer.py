"""kazoo's locks, by commands on stdin: `KIND PATH MILLISECONDS` takes, `free KIND PATH` gives back."""

import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout


def main():
    client = KazooClient(hosts=sys.argv[1], timeout=int(sys.argv[2]) / 1000)
    client.start(timeout=30)
    say("ready")
    recipes = {"mutex": client.Lock, "read": client.ReadLock, "write": client.WriteLock}
    held = {}
    for line in sys.stdin:
        words = line.rstrip("\n").split(" ")
        if words[0] == "free":
            held.pop((words[1], words[2])).release()
            say("free")
            continue
        lock = recipes[words[0]](words[1], "a peer")
        try:
            taken = lock.acquire(timeout=int(words[2]) / 1000)
        except LockTimeout:
            taken = False
        if taken:
            held[(words[0], words[1])] = lock
        say("held" if taken else "busy")
    client.stop()


def say(word):
    print(word, flush=True)


main()
