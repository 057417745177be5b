//! The areas of the code that decide about grants, and the tests that judge them.

/// Code that is changed, and the tests that judge it.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) name: &'static str,
    /// The folder of the crate.
    pub(crate) folder: &'static str,
    pub(crate) package: &'static str,
    /// The options of cargo that choose the features of the crate.
    pub(crate) features: &'static [&'static str],
    /// The layers of the crate, as paths below its sources without their end; empty for all.
    pub(crate) layers: &'static [&'static str],
    /// Those below them that do not belong to the area.
    pub(crate) without: &'static [&'static str],
    pub(crate) judges: &'static [Judge],
}

/// Test programs of one package.
#[derive(Debug)]
pub(crate) struct Judge {
    pub(crate) package: &'static str,
    /// Arguments of `cargo test`, which choose the programs.
    pub(crate) programs: &'static [&'static str],
    /// Parts of the names of tests that judge; all of them without one.
    pub(crate) only: &'static [&'static str],
    /// Parts of the names of tests that do not.
    pub(crate) without: &'static [&'static str],
}

/// The areas.
pub(crate) const AREAS: &[Area] = &[
    Area {
        name: "core",
        folder: "crates/core",
        package: "leasehold-core",
        features: &["--features=serde"],
        layers: &[],
        without: &[],
        judges: &[Judge {
            package: "leasehold-core",
            programs: &["--features=serde", "--lib"],
            only: &[],
            without: &[],
        }],
    },
    Area {
        name: "engine",
        folder: "crates/leasehold",
        package: "leasehold",
        features: &["--features=blocking"],
        layers: &["engine"],
        without: &[],
        judges: &[Judge {
            package: "leasehold",
            programs: &["--lib", "--test=it", "--test=engine_*"],
            only: &[],
            // Other layers, and the same laws once more.
            without: &["coord_faults", "quorum_late_answers", "conformance_memory::unordered_polling"],
        }],
    },
    Area {
        name: "cell",
        folder: "crates/backend",
        package: "leasehold-backend",
        features: &["--features=connection,laws,session"],
        layers: &["cell", "connection", "keyed_mutex"],
        // The laws are tests, and other libraries' locks are judged by the tests of their stores.
        without: &["cell/laws", "cell/compat"],
        judges: &[Judge {
            package: "leasehold-backend",
            programs: &["--features=connection,laws,session", "--lib", "--test=cell", "--test=connection"],
            only: &[],
            without: &[],
        }],
    },
    Area {
        name: "sessions",
        folder: "crates/backend",
        package: "leasehold-backend",
        features: &["--features=connection,laws,session"],
        layers: &["session"],
        without: &[],
        judges: &[Judge {
            package: "leasehold-backend",
            programs: &["--features=connection,laws,session", "--lib", "--test=session"],
            only: &[],
            without: &[],
        }],
    },
    Area {
        name: "quorum",
        folder: "crates/leasehold",
        package: "leasehold",
        features: &["--features=blocking"],
        layers: &["layer/quorum"],
        without: &[],
        judges: &[
            Judge {
                package: "leasehold",
                programs: &["--lib", "--test=it"],
                only: &["quorum"],
                without: &[],
            },
            Judge {
                package: "leasehold-tests",
                programs: &["--test=it"],
                only: &["redlock_faults", "conformance_redlock"],
                without: &[],
            },
        ],
    },
];

impl Area {
    /// Returns the root of the sources of the crate.
    pub(crate) fn root(&self) -> String {
        format!("{}/src/lib.rs", self.folder)
    }

    /// Returns `true` if a file of the crate belongs to the area.
    pub(crate) fn contains(&self, file: &str) -> bool {
        let is_in = |layers: &[&str]| layers.iter().any(|layer| self.has_in(layer, file));
        (self.layers.is_empty() || is_in(self.layers)) && !is_in(self.without)
    }

    /// Returns `true` if a file of the crate belongs to a layer: the file of its name, and all in its folder.
    fn has_in(&self, layer: &str, file: &str) -> bool {
        let below = file.strip_prefix(self.folder).and_then(|below| below.strip_prefix("/src/"));
        let rest = below.and_then(|below| below.strip_prefix(layer));
        rest.is_some_and(|rest| rest.starts_with(['/', '.']))
    }
}

impl Judge {
    /// Returns `true` if this test judges.
    pub(crate) fn has(&self, test: &str) -> bool {
        let has = |words: &[&str]| words.iter().any(|word| test.contains(word));
        (self.only.is_empty() || has(self.only)) && !has(self.without)
    }
}

/// Returns the area of that name.
pub(crate) fn named(name: &str) -> Result<&'static Area, String> {
    let names: Vec<_> = AREAS.iter().map(|area| area.name).collect();
    AREAS
        .iter()
        .find(|area| area.name == name)
        .ok_or_else(|| format!("`{name}` is not an area: {}.", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_a_file_and_its_folder() {
        let engine = named("engine").unwrap();
        assert!(engine.contains("crates/leasehold/src/engine.rs"));
        assert!(engine.contains("crates/leasehold/src/engine/hold/handle.rs"));
        assert!(!engine.contains("crates/leasehold/src/engines.rs"));
        assert!(!engine.contains("crates/leasehold/src/layer/quorum.rs"));
        assert!(named("core").unwrap().contains("crates/core/src/ledger.rs"));
        let cell = named("cell").unwrap();
        assert!(cell.contains("crates/backend/src/cell/list.rs"));
        assert!(!cell.contains("crates/backend/src/cell/laws.rs"));
        assert!(named("all").unwrap_err().contains("sessions, quorum"));
    }

    #[test]
    fn every_area_has_files() {
        for area in AREAS {
            let files = crate::sources::below(&crate::root(), &area.root()).unwrap();
            for layer in area.layers.iter().chain(area.without) {
                assert!(files.iter().any(|file| area.has_in(layer, file)), "{}: {layer}", area.name);
            }
        }
    }
}
