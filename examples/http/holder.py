"""Holds a lock while it works, and stops as soon as the lock is lost. Usage: holder.py NAME STEPS"""
import json, os, sys, time, urllib.error, urllib.request, uuid

URL = os.environ["LEASEHOLD_HTTP"] + "/v1/holds/" + str(uuid.uuid4())
HEADERS = {"Authorization": "Bearer " + os.environ["LEASEHOLD_TOKEN"]}


def clock():  # it counts the time of a suspend, which time.monotonic() does not on Linux
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def call(method, path="", body=None):
    sent = clock()  # before the request is sent: valid_ms counts from here
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, HEADERS, method=method), timeout=90) as answer:
        answer = json.load(answer)
    return answer, sent + answer.get("valid_ms", 0) / 1000


def lost(why):
    print("lost:", why, flush=True)
    sys.exit(76)


grant, valid_until = call("PUT", "?wait=60s", {"name": sys.argv[1], "ttl": "15s"})
print("granted", grant["fence"], flush=True)
renewed = clock()
for step in range(int(sys.argv[2])):
    if clock() - renewed > grant["ttl_ms"] / 3000:
        try:
            renewed = clock()
            grant, valid_until = call("POST", "/renew")
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                lost(error.read().decode())
        except OSError:
            pass  # the server may come back in time
    if clock() >= valid_until:
        lost("not renewed in time")
    time.sleep(0.05)  # the work; give the fence to whatever it writes to
call("DELETE")
print("released", flush=True)
