// npm redlock over ioredis: `peer.js KIND AT TASKS LOCKS`; see bench/peer.
const { createInterface } = require("node:readline");
const Redis = require("ioredis");
const Redlock = require("redlock");

const [kind, at, tasks, locks] = process.argv.slice(2);
const clients = at.split(",").map((url) => new Redis(url));
// It never gives up; the rest is the library's own.
const redlock = new Redlock(clients, { retryCount: -1 });
const TTL = 30_000;
const name = (task) => `bench-${kind}-${task % Number(locks)}`;
const now = () => process.hrtime.bigint();
const all = (work) => Promise.all(Array.from({ length: Number(tasks) }, (_, task) => work(task)));

async function repeat(task, end, hold, holds) {
  let cycles = 0;
  while (now() < end) {
    const lock = await redlock.lock(name(task), TTL);
    if (hold > 0) {
      const granted = now();
      await new Promise((resolve) => setTimeout(resolve, hold / 1000));
      holds.push(`${granted}:${now()}`);
    }
    await lock.unlock();
    cycles += 1;
  }
  return cycles;
}

async function cycle(millis, hold) {
  const began = now(), cpu = process.cpuUsage(), holds = [];
  const end = began + BigInt(millis) * 1_000_000n;
  const cycles = await all((task) => repeat(task, end, hold, holds));
  const { user, system } = process.cpuUsage(cpu);
  console.log(Number(now() - began) / 1e9, (user + system) / 1e6, cycles.join(), holds.join() || "-");
}

async function main() {
  for (let task = 0; task < Number(locks); task++) await (await redlock.lock(name(task), TTL)).unlock();
  console.log("ready", require("redlock/package.json").version);
  for await (const line of createInterface({ input: process.stdin })) {
    const [command, ...numbers] = line.split(" ");
    if (command === "cycle") {
      await cycle(...numbers.map(Number));
    } else if (command === "hold") {
      await redlock.lock(name(0), 600_000);
      console.log("held");
    } else {
      all((task) => redlock.lock(name(task), TTL)).catch(() => process.exit(1));
      console.log("waiting");
    }
  }
  process.exit(0);
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
