"""Clients that hand kazoo's lock to each other: `SERVER PATH CLIENTS`, see consensus/peers.rs."""

import sys
import threading
import time

from kazoo.client import KazooClient


def main():
    address, path, count = sys.argv[1], sys.argv[2] + "-kazoo", int(sys.argv[3])
    clients = [KazooClient(hosts=address, timeout=30) for _ in range(count)]
    for client in clients:
        client.start(timeout=30)
    clients[0].ensure_path(path)
    print("ready", flush=True)
    millis, hold = (int(word) for word in sys.stdin.readline().split())
    until, holds = time.monotonic_ns() + millis * 1_000_000, []

    def take(client):
        lock = client.Lock(path, "a peer")
        while time.monotonic_ns() < until:
            with lock:
                granted = time.monotonic_ns()
                time.sleep(hold / 1e6)
                holds.append((granted, time.monotonic_ns()))

    threads = [threading.Thread(target=take, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for granted, released in holds:
        print(granted, released)
    print("end", flush=True)
    for client in clients:
        client.stop()


main()
