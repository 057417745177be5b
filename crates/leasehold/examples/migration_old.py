"""The old half of a fleet that moves to leasehold: redis-py's lock, as it is everywhere.

    pip install redis
    python3 migration_old.py redis://127.0.0.1 20

It adds 20 to a counter under the lock, by reading, waiting and writing. `migration_new.rs` is the new half; started beside
this one it takes the same lock, so no addition of either is lost. docs/book/src/migration.md has the steps.
"""

import sys
import time

import redis

server, rounds = redis.Redis.from_url(sys.argv[1]), int(sys.argv[2])
for _ in range(rounds):
    with server.lock("nightly", timeout=30, blocking_timeout=60, sleep=0.01):
        seen = int(server.get("counter") or 0)
        time.sleep(0.005)
        server.set("counter", seen + 1)
print(f"old: added {rounds}")
