"""kazoo's locks, by commands on stdin: `KIND PATH MILLISECONDS` takes, `free KIND PATH` gives back.

The kind `permit/N` is a lease of a semaphore of N. `crowd permit/N PATH ROUNDS FOLDER` takes and gives back, and answers
how many holders it met at most: each has a file in the folder for as long as it holds. `lead PATH ID` leads an election,
from the answer `leads` until the next line, and lists the contenders before it.
"""

import os
import sys
import time
import uuid

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout


def main():
    client = KazooClient(hosts=sys.argv[1], timeout=int(sys.argv[2]) / 1000)
    client.start(timeout=30)
    say("ready")
    held = {}
    for line in sys.stdin:
        words = line.rstrip("\n").split(" ")
        if words[0] == "crowd":
            say(crowd(client, words[1], words[2], int(words[3]), words[4]))
            continue
        if words[0] == "lead":
            election = client.Election(words[1], words[2])
            say("|".join(election.contenders()))
            election.run(lead)
            continue
        if words[0] == "free":
            held[(words[1], words[2])].pop().release()
            say("free")
            continue
        lock = recipe(client, words[0], words[1])
        try:
            taken = lock.acquire(timeout=int(words[2]) / 1000)
        except LockTimeout:
            taken = False
        except ValueError:
            say("refused")
            continue
        if taken:
            held.setdefault((words[0], words[1]), []).append(lock)
        say("held" if taken else "busy")
    client.stop()


def lead():
    say("leads")
    sys.stdin.readline()
    say("resigned")


def crowd(client, kind, path, rounds, folder):
    most = 0
    for _ in range(rounds):
        lease = recipe(client, kind, path)
        lease.acquire()
        file = os.path.join(folder, uuid.uuid4().hex)
        open(file, "x").close()
        time.sleep(0.01)
        most = max(most, len(os.listdir(folder)))
        os.remove(file)
        lease.release()
    return most


def recipe(client, kind, path):
    if kind.startswith("permit/"):
        return client.Semaphore(path, "a peer", max_leases=int(kind[len("permit/"):]))
    recipes = {"mutex": client.Lock, "read": client.ReadLock, "write": client.WriteLock}
    return recipes[kind](path, "a peer")


def say(word):
    print(word, flush=True)


main()
