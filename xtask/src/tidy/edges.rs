//! Rule `crate-edge`: which crate of the workspace may depend on which.
//!
//! The design's arrows: cli → top → monitor → leasehold → core, machine, backend; backends → core, machine,
//! backend; torture → leasehold, history; conformance → core; and leasehold → backends only behind features. The test kit is separate, so that users of other libraries can take
//! it without ours.

use std::path::Path;

use serde_json::Value;

use super::{File, Finding};
use crate::cargo;

const RULE: &str = "crate-edge";

/// A crate of the workspace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Member {
    name: String,
    /// Its folder, from the root.
    pub(super) folder: String,
    dependencies: Vec<Dependency>,
    /// `true` if it depends on tokio, and so may run on a shared executor.
    pub(super) uses_tokio: bool,
}

/// A dependency on another crate, of the workspace or not.
#[derive(Debug, PartialEq, Eq)]
struct Dependency {
    name: String,
    /// Its key in `Cargo.toml`, where that differs from the name.
    rename: Option<String>,
    stage: Stage,
    optional: bool,
}

/// The stage at which a dependency is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Normal,
    Build,
    Dev,
}

/// The role of a crate, by its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Core,
    Client,
    Conformance,
    Testkit,
    /// The driver of fuzz targets, for tests alone.
    Fuzz,
    Cli,
    /// A picture of a store, without a user interface.
    Monitor,
    /// Recorded histories and their judge, which knows no lock library.
    History,
    /// Processes under faults, whose histories are judged.
    Torture,
    /// A view of the monitor, which the command contains.
    View,
    Backend,
    /// Code that several backends share.
    Support,
    /// Facts about the machine, without anything of ours below.
    Machine,
    /// Not part of what is published: may use anything, and nothing published may use it.
    Free,
}

impl Role {
    fn of(folder: &str) -> Option<Self> {
        match folder.split('/').collect::<Vec<_>>().as_slice() {
            ["crates", "core"] => Some(Self::Core),
            ["crates", "leasehold"] => Some(Self::Client),
            ["crates", "conformance"] => Some(Self::Conformance),
            ["crates", "testkit"] => Some(Self::Testkit),
            ["crates", "fuzz"] => Some(Self::Fuzz),
            ["crates", "cli"] => Some(Self::Cli),
            ["crates", "monitor"] => Some(Self::Monitor),
            ["crates", "top" | "serve"] => Some(Self::View),
            ["crates", "history"] => Some(Self::History),
            ["crates", "torture"] => Some(Self::Torture),
            ["crates", "backend"] => Some(Self::Support),
            ["crates", "machine"] => Some(Self::Machine),
            ["backends", _] => Some(Self::Backend),
            ["campaign" | "mutants" | "tests" | "sim" | "fuzz" | "xtask"] | ["bench" | "sim", _] => {
                Some(Self::Free)
            }
            _ => None,
        }
    }

    /// Returns why this crate may not depend on that one, or nothing when it may.
    fn refuses(self, to: Self, dependency: &Dependency) -> Option<&'static str> {
        match (self, to) {
            (Self::Free, _) => None,
            (Self::Fuzz, _) => Some("fuzz depends on no crate of ours"),
            (_, Self::Fuzz) if dependency.stage == Stage::Dev => None,
            (_, Self::Fuzz) => Some("fuzz is for tests"),
            (Self::Core, _) => Some(
                "core depends on no crate of ours, not even in its tests, but for the driver of fuzz targets",
            ),
            _ if dependency.stage == Stage::Dev => None,
            (Self::Machine, _) => Some("machine depends on no crate of ours"),
            (Self::Client | Self::Backend | Self::Support | Self::Cli, Self::Machine) => None,
            (Self::Client, Self::Backend) if dependency.optional => None,
            (Self::Client, Self::Backend) => Some("a backend is an optional dependency, behind its feature"),
            (Self::Client | Self::Backend | Self::Support | Self::Conformance | Self::Cli, Self::Core) => {
                None
            }
            // Cargo itself refuses a circle of them.
            (Self::Client | Self::Backend | Self::Support, Self::Support) => None,
            (Self::Cli | Self::Monitor | Self::View | Self::Torture, Self::Client) => None,
            (Self::Torture, Self::History) => None,
            (Self::Cli | Self::View, Self::Monitor) => None,
            (Self::Cli, Self::View | Self::Torture) if dependency.optional => None,
            (Self::Cli, Self::View | Self::Torture) => {
                Some("a view is an optional dependency, behind its feature")
            }
            (Self::Client, _) => Some(
                "leasehold depends on core, machine and what backends share, and on backends behind features, only",
            ),
            (Self::Backend, _) => {
                Some("a backend depends on core and machine, and on what backends share, only")
            }
            (Self::Support, _) => {
                Some("what backends share depends on core and machine, and on each other, only")
            }
            (Self::Conformance, _) => {
                Some("conformance depends on core only, so that foreign backends can run it")
            }
            (Self::Testkit, _) => Some("testkit depends on no crate of ours"),
            (Self::Cli, _) => {
                Some("cli depends on leasehold, core, machine, monitor, views and torture only")
            }
            (Self::History, _) => Some("history depends on no crate of ours, so that it judges all alike"),
            (Self::Torture, _) => Some("torture depends on leasehold and history only"),
            (Self::Monitor, _) => Some("monitor depends on leasehold only"),
            (Self::View, _) => Some("a view depends on leasehold and monitor only"),
        }
    }
}

/// Returns the crates of the workspace, as cargo sees them. Reads manifests only: no network, no lock
/// file.
pub(super) fn members(root: &Path) -> Result<Vec<Member>, String> {
    let output = cargo::command()
        .current_dir(root)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cargo metadata could not be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("the output of cargo metadata is not JSON: {error}"))?;
    from_metadata(&metadata)
        .ok_or_else(|| "the output of cargo metadata lacks a field that it used to have".to_owned())
}

fn from_metadata(metadata: &Value) -> Option<Vec<Member>> {
    let root = Path::new(metadata["workspace_root"].as_str()?);
    let mut members = Vec::new();
    for package in metadata["packages"].as_array()? {
        let manifest = Path::new(package["manifest_path"].as_str()?);
        let folder = manifest.parent()?.strip_prefix(root).ok()?.to_str()?.to_owned();
        let list = package["dependencies"].as_array()?;
        let dependencies = list.iter().map(Dependency::from_metadata).collect::<Option<Vec<_>>>()?;
        let uses_tokio = dependencies.iter().any(|one| one.name == "tokio" && one.stage == Stage::Normal);
        members.push(Member { name: package["name"].as_str()?.to_owned(), folder, dependencies, uses_tokio });
    }
    Some(members)
}

impl Dependency {
    fn from_metadata(value: &Value) -> Option<Self> {
        let stage = match value["kind"].as_str() {
            None => Stage::Normal,
            Some("build") => Stage::Build,
            Some("dev") => Stage::Dev,
            Some(_) => return None,
        };
        Some(Self {
            name: value["name"].as_str()?.to_owned(),
            rename: value["rename"].as_str().map(str::to_owned),
            stage,
            optional: value["optional"].as_bool()?,
        })
    }
}

pub(super) fn check(members: &[Member], files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members {
        let manifest = format!("{}/Cargo.toml", member.folder);
        let Some(role) = Role::of(&member.folder) else {
            let advice = "This folder has no place in the layout: move the crate, or give it a role in xtask/src/tidy/edges.rs.";
            findings.push(Finding::error(&manifest, 1, RULE, advice));
            continue;
        };
        let text = files.iter().find(|file| file.path == manifest).map_or("", |file| file.text.as_str());
        for dependency in &member.dependencies {
            let ours = members.iter().find(|other| other.name == dependency.name);
            let target = ours.and_then(|other| Role::of(&other.folder));
            if let Some(why) = target.and_then(|target| role.refuses(target, dependency)) {
                let advice = format!(
                    "{} may not use {}: {why}. Turn the edge round, or move the code.",
                    member.name, dependency.name
                );
                findings.push(Finding::error(&manifest, line_of(text, dependency), RULE, advice));
            }
        }
    }
    findings
}

/// Finds the line of a manifest on which a dependency is declared, or its first when it is not found.
fn line_of(manifest: &str, dependency: &Dependency) -> usize {
    let key = dependency.rename.as_ref().unwrap_or(&dependency.name);
    let table = match dependency.stage {
        Stage::Normal => "dependencies",
        Stage::Build => "build-dependencies",
        Stage::Dev => "dev-dependencies",
    };
    let mut in_table = false;
    for (index, line) in manifest.lines().map(str::trim).enumerate() {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            in_table = header.rsplit('.').next() == Some(table);
            if header
                .rsplit_once('.')
                .is_some_and(|(front, name)| name == key && front.rsplit('.').next() == Some(table))
            {
                return index + 1;
            }
        } else if in_table
            && line.strip_prefix(key.as_str()).is_some_and(|rest| rest.starts_with([' ', '.', '=']))
        {
            return index + 1;
        }
    }
    1
}

#[cfg(test)]
impl Member {
    pub(super) fn sample(name: &str, folder: &str, uses_tokio: bool) -> Self {
        Self { name: name.to_owned(), folder: folder.to_owned(), dependencies: Vec::new(), uses_tokio }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDERS: &[(&str, &str)] = &[
        ("leasehold-core", "crates/core"),
        ("leasehold", "crates/leasehold"),
        ("leasehold-conformance", "crates/conformance"),
        ("leasehold-testkit", "crates/testkit"),
        ("leasehold-machine", "crates/machine"),
        ("leasehold-cli", "crates/cli"),
        ("leasehold-monitor", "crates/monitor"),
        ("leasehold-top", "crates/top"),
        ("leasehold-serve", "crates/serve"),
        ("leasehold-history", "crates/history"),
        ("leasehold-torture", "crates/torture"),
        ("leasehold-redis", "backends/redis"),
        ("leasehold-etcd", "backends/etcd"),
        ("leasehold-tests", "tests"),
        ("rivals", "bench/rivals"),
        ("xtask", "xtask"),
    ];

    /// Returns `true` if the edge is allowed.
    fn passes(from: &str, to: &str, stage: Stage, optional: bool) -> bool {
        let mut members: Vec<Member> =
            FOLDERS.iter().map(|(name, folder)| Member::sample(name, folder, false)).collect();
        let dependency = Dependency { name: to.to_owned(), rename: None, stage, optional };
        members.iter_mut().find(|member| member.name == from).unwrap().dependencies.push(dependency);
        check(&members, &[]).is_empty()
    }

    #[test]
    fn the_arrows_of_the_design_are_let_pass_and_no_others() {
        let allowed = [
            ("leasehold", "leasehold-core"),
            ("leasehold-redis", "leasehold-core"),
            ("leasehold-conformance", "leasehold-core"),
            ("leasehold-cli", "leasehold-core"),
            ("leasehold-cli", "leasehold"),
            ("leasehold-cli", "leasehold-monitor"),
            ("leasehold-monitor", "leasehold"),
            ("leasehold-top", "leasehold"),
            ("leasehold-top", "leasehold-monitor"),
            ("leasehold-serve", "leasehold"),
            ("leasehold-serve", "leasehold-monitor"),
            ("leasehold-torture", "leasehold"),
            ("leasehold-torture", "leasehold-history"),
            ("leasehold", "leasehold-machine"),
            ("leasehold-redis", "leasehold-machine"),
            ("leasehold-cli", "leasehold-machine"),
        ];
        let free = |name: &str| ["leasehold-tests", "rivals", "xtask"].contains(&name);
        for (from, _) in FOLDERS.iter().filter(|(name, _)| *name != "leasehold-etcd") {
            for (to, _) in FOLDERS.iter().filter(|(name, _)| name != from) {
                for stage in [Stage::Normal, Stage::Build] {
                    let expected = free(from) || allowed.contains(&(*from, *to));
                    assert_eq!(passes(from, to, stage, false), expected, "{from} → {to} ({stage:?})");
                }
            }
        }
    }

    #[test]
    fn leasehold_uses_backends_only_behind_features() {
        assert!(passes("leasehold", "leasehold-redis", Stage::Normal, true));
        assert!(!passes("leasehold", "leasehold-redis", Stage::Normal, false));
        assert!(!passes("leasehold-cli", "leasehold-redis", Stage::Normal, true));
    }

    #[test]
    fn the_command_has_views_only_behind_features() {
        assert!(passes("leasehold-cli", "leasehold-top", Stage::Normal, true));
        assert!(!passes("leasehold-cli", "leasehold-top", Stage::Normal, false));
    }

    #[test]
    fn tests_may_use_anything_except_those_of_core() {
        assert!(passes("leasehold-redis", "leasehold-testkit", Stage::Dev, false));
        assert!(passes("leasehold-redis", "leasehold", Stage::Dev, false));
        assert!(passes("leasehold-testkit", "leasehold", Stage::Dev, false));
        assert!(!passes("leasehold-core", "leasehold-testkit", Stage::Dev, false));
    }

    #[test]
    fn foreign_crates_are_not_our_matter_and_unknown_folders_are() {
        assert!(passes("leasehold-core", "async-trait", Stage::Normal, false));
        let stray = [Member::sample("stray", "crates/stray", false)];
        assert_eq!(check(&stray, &[]).len(), 1);
    }

    #[test]
    fn the_finding_points_at_the_line_of_the_manifest() {
        let manifest = "[package]\nname = \"leasehold\"\n[dev-dependencies]\nleasehold-redis = \"1\"\n\n[dependencies]\nleasehold-redis-extra = \"1\"\nleasehold-redis.workspace = true\n[target.'cfg(unix)'.dependencies.renamed]\nversion = \"1\"\n";
        let line = |key: &str, stage| {
            line_of(manifest, &Dependency { name: key.to_owned(), rename: None, stage, optional: false })
        };
        assert_eq!(line("leasehold-redis", Stage::Normal), 8);
        assert_eq!(line("leasehold-redis", Stage::Dev), 4);
        assert_eq!(line("renamed", Stage::Normal), 9);
        assert_eq!(line("absent", Stage::Normal), 1);
    }

    #[test]
    fn the_output_of_cargo_is_understood() {
        let metadata = serde_json::json!({
            "workspace_root": "/w",
            "packages": [{
                "name": "leasehold", "manifest_path": "/w/crates/leasehold/Cargo.toml",
                "dependencies": [
                    { "name": "tokio", "rename": null, "kind": null, "optional": false },
                    { "name": "leasehold-redis", "rename": "redis", "kind": "dev", "optional": true },
                ],
            }],
        });
        let members = from_metadata(&metadata).unwrap();
        assert_eq!(members.len(), 1);
        assert_eq!((members[0].folder.as_str(), members[0].uses_tokio), ("crates/leasehold", true));
        let second = &members[0].dependencies[1];
        assert_eq!(
            (second.stage, second.optional, second.rename.as_deref()),
            (Stage::Dev, true, Some("redis"))
        );
        assert_eq!(from_metadata(&serde_json::json!({ "packages": [] })), None);
    }

    #[test]
    fn cargo_lists_this_workspace() {
        let members = members(&crate::root()).unwrap();
        assert!(members.iter().any(|member| member.folder == "xtask" && member.name == "xtask"));
    }
}
