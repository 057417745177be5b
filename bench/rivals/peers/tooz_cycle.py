"""tooz on memcached: reads MILLISECONDS, locks and unlocks for so long, prints cycles per second; again and again."""

import sys
import time

from tooz import coordination

coordinator = coordination.get_coordinator("memcached://" + sys.argv[1], b"bench")
coordinator.start()
lock = coordinator.get_lock(b"tooz_cycle")
for line in sys.stdin:
    began = time.monotonic()
    end = began + int(line) / 1000
    cycles = 0
    while time.monotonic() < end:
        if not lock.acquire(blocking=False):
            sys.exit("somebody else has the lock")
        lock.release()
        cycles += 1
    print(cycles / (time.monotonic() - began), flush=True)
