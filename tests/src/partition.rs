//! A partition made by the kernel: packets of some processes are dropped.
//!
//! A proxy that passes nothing on still acknowledges what it is sent. Here nothing does, as when a cable is cut:
//! the kernel sends again, and connections to a server do not even open.
//!
//! All is inside a network namespace of the test, with nothing but its loopback interface.

use std::process::Command;
use std::time::Duration;

use leasehold_testkit::Way;
use leasehold_testkit::surroundings::{inside, private_network};
use rustix::time::{ClockId, clock_gettime};

/// The network of one test. Processes of [`Partition::command`] can be cut off from all others.
#[derive(Debug)]
pub struct Partition(());

/// The group of the processes that are cut off. A group, and not a user, because they need the rights of root to
/// read what the test has written.
const GROUP: &str = "65534";

impl Partition {
    /// Returns the network if this process runs inside it. Otherwise the test is started there, and is over.
    pub fn inside(test: &str) -> Option<Partition> {
        let rules = format!(
            "add table inet partition
             add chain inet partition marked {{ type filter hook output priority -1; }}
             add chain inet partition cut {{ type filter hook output priority 0; }}
             add rule inet partition marked meta skgid {GROUP} ct mark set 1"
        );
        let script = format!(
            "ip link set lo up; echo '{rules}' | nft -f -; setpriv --regid {GROUP} --clear-groups true"
        );
        inside(test, &private_network(), &script).map(|_| Partition(()))
    }

    /// Returns the command of a program that can be cut off.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--regid", GROUP, "--clear-groups", program]);
        command
    }

    /// Drops the packets of these processes that go this way, from now on.
    pub fn cut(&self, way: Way) {
        let packets = match way {
            Way::ToServer => "ct direction original",
            Way::ToClient => "ct direction reply",
            Way::Both => "",
        };
        nft(&format!("add rule inet partition cut ct mark 1 {packets} counter drop"));
    }

    /// Drops nothing any more. Returns how many packets were dropped since the cut.
    pub fn heal(&self) -> u64 {
        let rules = nft("list chain inet partition cut");
        nft("flush chain inet partition cut");
        let (_, behind) = rules.split_once("packets ").expect("a rule counts what it drops");
        behind.split(' ').next().and_then(|count| count.parse().ok()).expect("nft prints a number")
    }
}

fn nft(command: &str) -> String {
    let output =
        Command::new("nft").args(command.split(' ').filter(|word| !word.is_empty())).output().unwrap();
    assert!(output.status.success(), "nft {command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the time of a clock that all processes of the machine read alike.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap(), u32::try_from(now.tv_nsec).unwrap())
}
