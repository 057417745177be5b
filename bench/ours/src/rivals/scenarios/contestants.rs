//! The contestants of each store: the limit and the floor first, then ours, then the rivals.

use super::Side::{Floor, Limit, Ours, Rival};
use super::{Contestant, Program, Side};
use crate::rivals::stores::Store;

const fn one(
    name: &'static str,
    side: Side,
    program: Program,
    kind: &'static str,
    at: fn(&Store) -> String,
) -> Contestant {
    Contestant { name, side, program, kind, at }
}

const fn limit(name: &'static str, kind: &'static str, at: fn(&Store) -> String) -> Contestant {
    one(name, Limit, Program::Own, kind, at)
}

const fn floor(name: &'static str, kind: &'static str) -> Contestant {
    one(name, Floor, Program::Own, kind, Store::url)
}

const fn ours(name: &'static str, at: fn(&Store) -> String) -> Contestant {
    one(name, Ours, Program::Own, "leasehold", at)
}

const fn tooz(packages: &'static [&'static str], at: fn(&Store) -> String) -> Contestant {
    one("tooz", Rival, Program::Python(packages), "tooz", at)
}

const LEASEHOLD: Contestant = ours("leasehold", Store::url);
const RSLOCK: Contestant = one("rslock", Rival, Program::Crates, "rslock", Store::urls);
const REDIS_PY: Contestant = one("redis-py", Rival, Program::Python(&["redis"]), "redis-py", Store::url);
const PYTHON_REDIS_LOCK: Contestant = one(
    "python-redis-lock",
    Rival,
    Program::Python(&["python-redis-lock", "redis"]),
    "python-redis-lock",
    Store::url,
);
const NPM_REDLOCK: Contestant = one("npm redlock", Rival, Program::Node, "redlock", Store::urls);
const SET_NX: Contestant = limit("SET NX PX, EVALSHA", "set-nx", Store::url);
const TOKEN: Contestant = limit("a token by BLPOP and RPUSH", "token", Store::url);

pub(super) const REDIS: &[Contestant] = &[
    SET_NX,
    floor("leasehold's scripts by hand", "scripts"),
    LEASEHOLD,
    ours("leasehold, dialect=plain", |store| format!("{}?dialect=plain", store.url())),
    RSLOCK,
    REDIS_PY,
    PYTHON_REDIS_LOCK,
    NPM_REDLOCK,
    tooz(&["tooz", "redis"], Store::url),
];
pub(super) const WAITERS: &[Contestant] =
    &[TOKEN, LEASEHOLD, RSLOCK, REDIS_PY, PYTHON_REDIS_LOCK, NPM_REDLOCK];
pub(super) const CROWD: &[Contestant] = WAITERS;
pub(super) const IDLE: &[Contestant] = &[LEASEHOLD, RSLOCK, REDIS_PY, PYTHON_REDIS_LOCK, NPM_REDLOCK];
pub(super) const REDLOCK: &[Contestant] = &[SET_NX, ours("leasehold", Store::redlock), RSLOCK, NPM_REDLOCK];

pub(super) const FILES: &[Contestant] = &[
    limit("open, flock, close", "flock", |store| store.path("plain")),
    LEASEHOLD,
    one("distributed-lock", Rival, Program::Crates, "distributed-lock", |store| {
        store.path("distributed-lock")
    }),
    tooz(&["tooz"], |store| format!("file://{}", store.path("tooz"))),
];
pub(super) const MEMORY: &[Contestant] = &[
    limit("tokio's Mutex", "tokio-mutex", Store::url),
    one("leasehold", Ours, Program::Own, "leasehold-memory", Store::url),
];
pub(super) const SQLITE: &[Contestant] = &[
    limit("insert, delete", "insert-delete", |store| store.path("raw.db")),
    ours("leasehold", |store| format!("sqlite:{}", store.path("ours.db"))),
];
pub(super) const POSTGRES: &[Contestant] = &[
    limit("pg_advisory_lock by hand", "advisory", Store::url),
    floor("two updates by hand", "postgres-updates"),
    LEASEHOLD,
    ours("leasehold, method=advisory", |store| format!("{}?method=advisory", store.url())),
    one("sqlx, advisory", Rival, Program::SqlCrates, "sqlx", Store::url),
    one("distributed-lock, advisory", Rival, Program::SqlCrates, "distributed-lock", Store::url),
    tooz(&["tooz", "psycopg2-binary"], |store| store.url().replace("postgres://", "postgresql://")),
];
pub(super) const MARIADB: &[Contestant] = &[
    limit("GET_LOCK by hand", "get-lock", Store::url),
    floor("two updates by hand", "mariadb-updates"),
    LEASEHOLD,
    ours("leasehold, method=get-lock", |store| format!("{}?method=get-lock", store.url())),
    one("distributed-lock, GET_LOCK", Rival, Program::SqlCrates, "distributed-lock", Store::url),
    tooz(&["tooz", "PyMySQL"], Store::url),
];
pub(super) const MEMCACHED: &[Contestant] = &[
    limit("add, delete", "add-delete", Store::url),
    floor("add, delete, on an asynchronous socket", "add-delete-async"),
    LEASEHOLD,
    tooz(&["tooz", "pymemcache"], Store::url),
];
pub(super) const ETCD: &[Contestant] = &[
    limit("put, delete", "put-delete", Store::url),
    LEASEHOLD,
    tooz(&["tooz", "etcd3gw"], |store| store.url().replace("etcd://", "etcd3+http://")),
];
pub(super) const ZOOKEEPER: &[Contestant] = &[
    limit("create, delete", "create-delete", Store::url),
    LEASEHOLD,
    one("Curator", Rival, Program::Java, "curator", Store::url),
    one("kazoo", Rival, Program::Python(&["kazoo>=2.10,<3"]), "kazoo", Store::url),
    tooz(&["tooz", "kazoo>=2.10,<3"], |store| store.url().replace("zk://", "zookeeper://")),
];

/// Words of a command, as JSON.
fn words(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| serde_json::Value::from(*word).to_string()).collect();
    format!("[{}]", words.join(","))
}

/// Returns the built command, which lies beside this program.
fn leasehold() -> String {
    let beside = std::env::current_exe().map(|program| program.with_file_name("leasehold"));
    beside.map_or_else(|_| "leasehold".to_owned(), |path| path.display().to_string())
}

fn leasehold_run(url: &str) -> String {
    words(&[&leasehold(), "run", "--store", url, "bench", "--", "true"])
}

const fn command(name: &'static str, side: Side, at: fn(&Store) -> String) -> Contestant {
    one(name, side, Program::Own, "command", at)
}

pub(super) const COMMAND: &[Contestant] = &[
    command("true, without a lock", Limit, |_| words(&["true"])),
    command("leasehold --version", Floor, |_| words(&[&leasehold(), "--version"])),
    command("leasehold run NAME -- true", Ours, |store| leasehold_run(&store.url())),
    command("flock FILE true", Rival, |store| words(&["flock", &store.path("plain"), "true"])),
];
pub(super) const ETCD_COMMAND: &[Contestant] = &[
    command("true, without a lock", Limit, |_| words(&["true"])),
    command("leasehold run NAME -- true", Ours, |store| leasehold_run(&store.url())),
    command("etcdctl lock NAME true", Rival, |store| {
        let endpoint = store.url().replace("etcd://", "--endpoints=http://");
        words(&["etcdctl", &endpoint, "lock", "bench", "true"])
    }),
];
pub(super) const TRIPS: &[Contestant] = &[
    command("psql, lock and unlock", Limit, |store| {
        let (lock, unlock) = ("SELECT pg_advisory_lock(1)", "SELECT pg_advisory_unlock(1)");
        words(&["psql", "-XqAt", &store.url(), "-c", lock, "-c", unlock])
    }),
    command("leasehold run NAME -- true", Ours, |store| leasehold_run(&store.url())),
    command("leasehold run NAME -- true, method=advisory", Ours, |store| {
        leasehold_run(&format!("{}?method=advisory", store.url()))
    }),
];
