"""Locks of other libraries, driven by lines: python locks.py LIBRARY PORT.

acquire NAME TTL WAIT [KIND]   in milliseconds -> held | busy
release                        -> released | gone
"""

import sys
import time
import uuid

import redis

library, port = sys.argv[1], int(sys.argv[2])
# A wait may last longer than what redis-py takes for a server that is gone.
server = redis.Redis(host="127.0.0.1", port=port, socket_timeout=None)


class RedisPy:
    def acquire(self, name, ttl, wait, kind):
        self.lock = server.lock(name, timeout=ttl / 1000)
        return self.lock.acquire(blocking=wait > 0, blocking_timeout=wait / 1000 if wait else None)

    def release(self):
        try:
            self.lock.release()
            return True
        except redis.exceptions.LockError:
            return False


class PythonRedisLock:
    def acquire(self, name, ttl, wait, kind):
        import redis_lock

        # It counts in whole seconds.
        self.lock = redis_lock.Lock(server, name, expire=max(1, ttl // 1000))
        if wait == 0:
            return self.lock.acquire(blocking=False)
        return self.lock.acquire(timeout=max(1, wait // 1000))

    def release(self):
        import redis_lock

        try:
            self.lock.release()
            return True
        except redis_lock.NotAcquired:
            return False


class Pottery:
    def acquire(self, name, ttl, wait, kind):
        from pottery import Redlock

        self.lock = Redlock(key=name, masters={server}, auto_release_time=ttl / 1000)
        return self.lock.acquire(timeout=wait / 1000) if wait else self.lock.acquire(blocking=False)

    def release(self):
        from pottery import ReleaseUnlockedLock

        try:
            self.lock.release()
            return True
        except ReleaseUnlockedLock:
            return False


class Redisson:
    """What Redisson documents of its locks, told by another client: its jar is not to be had here."""

    owner = f"{uuid.uuid4()}:57"
    locks = {
        "lock": """
            local free = redis.call('exists', KEYS[1]) == 0
            if not free and redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return redis.call('pttl', KEYS[1]) end
            redis.call('hincrby', KEYS[1], ARGV[2], 1)
            redis.call('pexpire', KEYS[1], ARGV[1])
            return nil""",
        "read": """
            local mode = redis.call('hget', KEYS[1], 'mode')
            if mode == 'write' then return redis.call('pttl', KEYS[1]) end
            redis.call('hset', KEYS[1], 'mode', 'read')
            local hold = redis.call('hincrby', KEYS[1], ARGV[2], 1)
            redis.call('set', KEYS[2] .. ':' .. ARGV[2] .. ':rwlock_timeout:' .. hold, 1, 'px', ARGV[1])
            redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), tonumber(ARGV[1])))
            return nil""",
        "write": """
            if redis.call('hget', KEYS[1], 'mode') then return redis.call('pttl', KEYS[1]) end
            redis.call('hset', KEYS[1], 'mode', 'write', ARGV[2] .. ':write', 1)
            redis.call('pexpire', KEYS[1], ARGV[1])
            return nil""",
    }
    unlocks = {
        "lock": """
            if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return 0 end
            if redis.call('hincrby', KEYS[1], ARGV[2], -1) > 0 then return 1 end
            redis.call('del', KEYS[1])
            redis.call('publish', KEYS[3], '0')
            return 1""",
        "read": """
            local holds = tonumber(redis.call('hget', KEYS[1], ARGV[2]) or 0)
            if holds == 0 then return 0 end
            redis.call('del', KEYS[2] .. ':' .. ARGV[2] .. ':rwlock_timeout:' .. holds)
            if redis.call('hincrby', KEYS[1], ARGV[2], -1) == 0 then redis.call('hdel', KEYS[1], ARGV[2]) end
            local longest = -3
            for _, other in ipairs(redis.call('hkeys', KEYS[1])) do
              for hold = tonumber(redis.call('hget', KEYS[1], other)) or 0, 1, -1 do
                local left = redis.call('pttl', KEYS[2] .. ':' .. other .. ':rwlock_timeout:' .. hold)
                longest = math.max(longest, left)
              end
            end
            if longest > 0 then
              redis.call('pexpire', KEYS[1], longest)
              return 1
            end
            redis.call('del', KEYS[1])
            redis.call('publish', KEYS[3], '0')
            return 1""",
        "write": """
            if redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 0 then return 0 end
            redis.call('del', KEYS[1])
            redis.call('publish', KEYS[3], '1')
            return 1""",
    }

    def acquire(self, name, ttl, wait, kind):
        self.kind = {"fenced": "lock"}.get(kind, kind)
        tag = name if "{" in name else "{" + name + "}"
        channel = ("redisson_lock__channel:" if self.kind == "lock" else "redisson_rwlock:") + tag
        self.keys = [name, tag, channel]
        end = time.monotonic() + wait / 1000
        news = server.pubsub(ignore_subscribe_messages=False)
        news.subscribe(channel)
        news.get_message(timeout=5)
        try:
            while True:
                left = server.eval(self.locks[self.kind], 3, *self.keys, ttl, self.owner)
                if left is None:
                    if kind == "fenced":
                        self.fence = server.incr("redisson_lock_token:" + tag)
                    return True
                patience = end - time.monotonic()
                if patience <= 0:
                    return False
                # As Redisson does: until it is told, or the lease ends.
                news.get_message(timeout=min(patience, left / 1000 if left >= 0 else patience))
        finally:
            news.close()

    def release(self):
        return server.eval(self.unlocks[self.kind], 3, *self.keys, 0, self.owner) == 1


libraries = {
    "redis-py": RedisPy,
    "python-redis-lock": PythonRedisLock,
    "pottery": Pottery,
    "redisson": Redisson,
}
peer = libraries[library]()
for line in sys.stdin:
    words = line.split()
    if words[0] == "acquire":
        kind = words[4] if len(words) > 4 else "lock"
        print("held" if peer.acquire(words[1], int(words[2]), int(words[3]), kind) else "busy", flush=True)
    elif words[0] == "fence":
        print(peer.fence, flush=True)
    else:
        print("released" if peer.release() else "gone", flush=True)
