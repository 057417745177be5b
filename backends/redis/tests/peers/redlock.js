// npm's redlock, driven by lines: node redlock.js PORT. The lines are those of locks.py.

const readline = require("readline");
const Redis = require("ioredis");
const Redlock = require("redlock").default;

const server = new Redis(Number(process.argv[2]), "127.0.0.1");
let lock;

async function obey(line) {
  const [word, name, ttl, wait] = line.trim().split(" ");
  if (word === "acquire") {
    const settings = { retryCount: Math.ceil(Number(wait) / 50), retryDelay: 50, retryJitter: 5 };
    try {
      lock = await new Redlock([server], settings).acquire([name], Number(ttl));
      return "held";
    } catch (error) {
      return "busy";
    }
  }
  try {
    await lock.release();
    return "released";
  } catch (error) {
    return "gone";
  }
}

readline.createInterface({ input: process.stdin }).on("line", async (line) => console.log(await obey(line)));
