//! The Debian package, by the programs that read one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_testkit::require;

use crate::{built, leasehold, run, succeed};

/// Packs the command of the tests, without the time that compression takes. `None` where Debian's tools are missing.
fn package(folder: &Path) -> Option<PathBuf> {
    for (program, package) in [("dpkg-deb", "dpkg"), ("dpkg-shlibdeps", "dpkg-dev"), ("strip", "binutils")] {
        require::or_skip("debian", require::program(program, package))?;
    }
    let mut xtask = Command::new(built("xtask", "xtask"));
    xtask.arg("deb").arg("--program").arg(leasehold()).arg("--out").arg(folder);
    xtask.env("DPKG_DEB_COMPRESSOR_TYPE", "none").env("SOURCE_DATE_EPOCH", "1700000000");
    xtask.env("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR"));
    let printed = succeed(&mut xtask);
    let file = printed.lines().find_map(|line| line.strip_prefix("deb: ")).unwrap();
    Some(PathBuf::from(file))
}

/// Contents of the package, as `dpkg-deb --contents` prints it: rights, owner and path.
const CONTENTS: &[(&str, &str)] = &[
    ("-rwxr-xr-x root/root", "./usr/bin/leasehold"),
    ("-rwxr-xr-x root/root", "./usr/bin/leasehold-once"),
    ("-rw-r--r-- root/root", "./usr/share/man/man1/leasehold.1.gz"),
    ("-rw-r--r-- root/root", "./usr/share/man/man1/leasehold-run.1.gz"),
    ("-rw-r--r-- root/root", "./usr/share/man/man1/leasehold-redlock-rearm.1.gz"),
    ("-rw-r--r-- root/root", "./usr/share/man/man1/leasehold-once.1.gz"),
    ("-rw-r--r-- root/root", "./usr/share/bash-completion/completions/leasehold"),
    ("-rw-r--r-- root/root", "./usr/share/zsh/vendor-completions/_leasehold"),
    ("-rw-r--r-- root/root", "./usr/share/fish/vendor_completions.d/leasehold.fish"),
    ("-rw-r--r-- root/root", "./usr/lib/systemd/system/leasehold-run@.service"),
    ("-rw-r--r-- root/root", "./usr/lib/systemd/system/leasehold-run@.timer"),
    ("-rw-r--r-- root/root", "./usr/share/doc/leasehold/copyright"),
    ("drwxr-xr-x root/root", "./etc/leasehold/jobs/"),
];

#[test]
fn package_has_its_files_in_the_places_of_debian() {
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = package(folder.path()) else { return };
    let contents = succeed(Command::new("dpkg-deb").arg("--contents").arg(&file));
    for (rights, path) in CONTENTS {
        let is_listed =
            contents.lines().any(|line| line.starts_with(rights) && line.ends_with(&format!(" {path}")));
        assert!(is_listed, "{rights} {path} is missing in\n{contents}");
    }
    let fields = succeed(Command::new("dpkg-deb").arg("--field").arg(&file));
    assert!(fields.contains("Package: leasehold\n") && fields.contains("Depends: libc6 ("), "{fields}");
    check(&file);
}

/// Runs Debian's own checks, where they are installed.
fn check(file: &Path) {
    let Some(lintian) = require::or_skip("lintian", require::program("lintian", "lintian")) else { return };
    let mut lintian = Command::new(lintian);
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--suppress-tags", SUPPRESSED]).arg(file);
    let (is_success, printed) = run(&mut lintian);
    assert!(is_success, "{printed}");
}

/// The first upload to Debian closes a bug, which a package from here does not, and the package of this test is not
/// compressed.
const SUPPRESSED: &str = "initial-upload-closes-no-bugs,uses-no-compression-for-control-tarball,\
                          uses-no-compression-for-data-tarball";

#[test]
fn two_packages_of_one_program_are_the_same() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let Some(one) = package(folders[0].path()) else { return };
    let Some(other) = package(folders[1].path()) else { return };
    assert!(fs::read(one).unwrap() == fs::read(other).unwrap(), "the packages differ");
}

#[test]
fn package_is_installed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = package(folder.path()) else { return };
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = || {
        let mut command = Command::new("dpkg");
        // No other package is in this root, and no administrator.
        command.args(["--force-depends", "--force-not-root", "--log=/dev/null", "--root"]).arg(&root);
        command
    };
    succeed(dpkg().arg("--install").arg(&file));
    let version = succeed(Command::new(root.join("usr/bin/leasehold")).arg("--version"));
    assert!(version.starts_with("leasehold "), "{version}");
    let page = root.join("usr/share/man/man1/leasehold-run.1.gz");
    let page = succeed(Command::new("gzip").args(["-dc"]).arg(page));
    assert!(page.contains("leasehold\\-run") || page.contains("leasehold-run"), "{page}");
    syntax(&root);
    succeed(dpkg().args(["--purge", "leasehold"]));
    assert!(!root.join("usr/bin/leasehold").exists() && !root.join("etc/leasehold").exists());
}

/// Lets each shell read its completions, where it is installed.
fn syntax(root: &Path) {
    for (shell, path) in [
        ("bash", "usr/share/bash-completion/completions/leasehold"),
        ("zsh", "usr/share/zsh/vendor-completions/_leasehold"),
        ("fish", "usr/share/fish/vendor_completions.d/leasehold.fish"),
    ] {
        let Some(program) = require::or_skip(shell, require::program(shell, shell)) else { continue };
        succeed(Command::new(program).arg("-n").arg(root.join(path)));
    }
}
