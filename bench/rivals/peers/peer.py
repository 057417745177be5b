"""Lock libraries of Python: `peer.py KIND AT TASKS LOCKS`, a thread for each task; see bench/peer."""

import os
import sys
import threading
import time
from importlib.metadata import version
from urllib.parse import urlparse

KIND, AT, TASKS, LOCKS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
TTL = 30


def redis_py(names):
    import redis

    client = redis.Redis.from_url(AT, socket_timeout=None, max_connections=1000)
    return [client.lock(name, timeout=TTL) for name in names]


def python_redis_lock(names):
    import redis
    import redis_lock

    # Its waiters wait in a command for longer than the client would wait for an answer.
    client = redis.Redis.from_url(AT, socket_timeout=None, max_connections=1000)
    return [redis_lock.Lock(client, name, expire=TTL) for name in names]


def kazoo(names):
    from kazoo.client import KazooClient

    client = KazooClient(hosts=urlparse(AT).netloc, timeout=TTL)
    client.start(timeout=TTL)
    return [client.Lock("/" + name, "a peer") for name in names]


def tooz(names):
    from tooz import coordination

    locks = []
    for number, name in enumerate(names):
        # A coordinator is for one thread.
        coordinator = coordination.get_coordinator(AT, b"%d-%d" % (number, time.monotonic_ns()))
        coordinator.start()
        locks.append(coordinator.get_lock(name.encode()))
    return locks


LIBRARIES = {"redis-py": redis_py, "python-redis-lock": python_redis_lock, "kazoo": kazoo, "tooz": tooz}
PACKAGES = {"redis-py": "redis"}


def repeat(lock, end, hold, cycles, holds):
    while time.monotonic() < end:
        lock.acquire()
        if hold:
            granted = time.monotonic_ns()
            time.sleep(hold / 1e6)
            holds.append(f"{granted}:{time.monotonic_ns()}")
        lock.release()
        cycles[0] += 1


def cycle(locks, millis, hold):
    began, cpu = time.monotonic(), time.process_time()
    end, holds, counts = began + millis / 1000, [], [[0] for _ in locks]
    threads = [
        threading.Thread(target=repeat, args=(lock, end, hold, count, holds))
        for lock, count in zip(locks, counts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cycles = ",".join(str(count[0]) for count in counts)
    print(time.monotonic() - began, time.process_time() - cpu, cycles, ",".join(holds) if hold else "-", flush=True)


def wait(lock):
    try:
        lock.acquire()
    finally:
        # Whether granted or failed, it does not wait any more.
        os._exit(1)


def main():
    locks = LIBRARIES[KIND]([f"bench-{KIND}-{task % LOCKS}" for task in range(TASKS)])
    for lock in locks[:LOCKS]:
        lock.acquire()
        lock.release()
    print("ready", version(PACKAGES.get(KIND, KIND)), flush=True)
    for line in sys.stdin:
        command, *numbers = line.split()
        if command == "cycle":
            cycle(locks, *(int(number) for number in numbers))
        elif command == "hold":
            locks[0].acquire()
            print("held", flush=True)
        else:
            for lock in locks:
                threading.Thread(target=wait, args=(lock,), daemon=True).start()
            print("waiting", flush=True)


main()
