// Holds a lock through an open stream while it works, and stops as soon as the lock is lost. Usage: holder.mjs NAME STEPS
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";

const [name, steps] = process.argv.slice(2);
const url = `${process.env.LEASEHOLD_HTTP}/v1/holds/${randomUUID()}`;
const authorization = `Bearer ${process.env.LEASEHOLD_TOKEN}`;
// On Linux performance.now() stands still in a suspend. On a machine that sleeps, use the first number of /proc/uptime.
let validUntil = 0, reason, granted;
const isGranted = new Promise((resolve) => (granted = resolve));

async function follow() {
  const sent = performance.now(); // before the request is sent: valid_ms counts from here
  const body = JSON.stringify({ name, ttl: "15s", on_disconnect: "release" });
  const headers = { authorization, accept: "application/x-ndjson" };
  const answer = await fetch(`${url}?wait=60s`, { method: "PUT", headers, body });
  for await (const line of createInterface({ input: Readable.fromWeb(answer.body) })) {
    const event = JSON.parse(line);
    if (event.valid_ms !== undefined) validUntil = Math.max(validUntil, sent + event.valid_ms);
    if (event.event === "granted") granted(event);
    if (event.event === "lost" || event.event === "error") reason = event.cause ?? event.problem.detail;
  }
}

async function renew() {
  // What a stream says counts from its request, so it covers less and less; a heartbeat counts anew.
  const sent = performance.now();
  const answer = await fetch(`${url}/renew`, { method: "POST", headers: { authorization } });
  if (answer.ok) validUntil = Math.max(validUntil, sent + (await answer.json()).valid_ms);
}

follow().catch(() => {}).finally(() => { reason ??= "the stream ended"; granted({}); });
console.log("granted", (await isGranted).fence);
setInterval(() => renew().catch(() => {}), 5000).unref();
for (let step = 0; step < Number(steps); step++) {
  if (reason || performance.now() >= validUntil) {
    console.log("lost:", reason ?? "nothing heard in time");
    process.exit(76);
  }
  await sleep(50); // the work; give the fence to whatever it writes to
}
await fetch(url, { method: "DELETE", headers: { authorization } });
console.log("released");
