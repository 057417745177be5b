"""Adds to a protected counter, and stops itself now and then while it holds the lock. Usage: counter.py DATABASE ROUNDS"""
import json, os, signal, sqlite3, sys, urllib.error, urllib.request, uuid

database, rounds = sys.argv[1], int(sys.argv[2])
added = refused = 0


def call(method, url, body=None):
    headers = {"Authorization": "Bearer " + os.environ["LEASEHOLD_TOKEN"]}
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=90) as answer:
        return json.load(answer)


def add(fence, stops):
    """Opens the counter with the fence before it reads, so that no holder of before can write any more."""
    resource = sqlite3.connect(database, timeout=60, isolation_level=None)
    if resource.execute("UPDATE counter SET fence = ? WHERE fence <= ?", (fence, fence)).rowcount == 0:
        return False
    (value,) = resource.execute("SELECT value FROM counter").fetchone()
    if stops:
        os.kill(os.getpid(), signal.SIGSTOP)
    return resource.execute("UPDATE counter SET value = ? WHERE fence = ?", (value + 1, fence)).rowcount == 1


turn = 0
while added < rounds:
    turn += 1
    url = os.environ["LEASEHOLD_HTTP"] + "/v1/holds/" + str(uuid.uuid4())
    try:
        grant = call("PUT", url + "?wait=60s", {"name": "counter", "ttl": "500ms"})
        if add(grant["fence"], turn % 4 == 0):
            added += 1
        else:
            refused += 1
        call("DELETE", url)
    except urllib.error.HTTPError as error:
        if error.code not in (404, 410, 423):
            raise
print(added, refused)
