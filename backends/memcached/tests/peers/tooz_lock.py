"""The lock of tooz on memcached, driven by lines: `acquire`, `wait SECONDS`, `heartbeat`, `release`."""

import sys

from tooz import coordination

address, name, lease = sys.argv[1:4]
url = f"memcached://{address}?lock_timeout={lease}"
coordinator = coordination.get_coordinator(url, b"member-7")
coordinator.start()
lock = coordinator.get_lock(name.encode())
print("ready", flush=True)
for line in sys.stdin:
    match line.split():
        case ["acquire"]:
            answer = "held" if lock.acquire(blocking=False) else "busy"
        case ["wait", seconds]:
            try:
                answer = "held" if lock.acquire(blocking=float(seconds)) else "busy"
            except Exception as error:
                answer = f"failed {type(error).__name__}"
        case ["heartbeat"]:
            answer = "kept" if lock.heartbeat() else "lost"
        case ["release"]:
            answer = "released" if lock.release() else "refused"
        case _:
            answer = "what?"
    print(answer, flush=True)
