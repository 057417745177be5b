"""Locks of tooz, driven by lines: python tooz_locks.py URL.

take NAME    without waiting -> taken | busy
give         the one that was taken last -> given | gone
"""

import sys

from tooz import coordination

coordinator = coordination.get_coordinator(sys.argv[1], b"peer")
coordinator.start()
lock = None

for line in sys.stdin:
    verb, _, name = line.rstrip("\n").partition(" ")
    if verb == "take":
        lock = coordinator.get_lock(name)
        answer = "taken" if lock.acquire(blocking=False) else "busy"
    else:
        answer = "given" if lock.release() else "gone"
    print(answer, flush=True)
