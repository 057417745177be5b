//! The text under the help of a command: examples, variables, signals and exit codes.
//!
//! Ground rules: text only. Each line that begins with `leasehold` runs unchanged, apart from the names
//! of machines and files; a reader at a terminal of 80 columns sees no line broken but those of long
//! URLs.

pub(crate) const EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./report.sh          one at a time, on this machine
  leasehold run --store redis://db nightly -- ./report.sh
                                                one at a time, on every machine
  leasehold run --no-wait nightly -- ./report.sh
                                                do nothing if it runs already
  leasehold show nightly                        who holds it, who waits

`leasehold run --help` tells the whole story.";

pub(crate) const EXAMPLES_LONG: &str = "\
Examples:
  leasehold run nightly -- ./report.sh          one at a time, on this machine
  leasehold run --store redis://db nightly -- ./report.sh
                                                one at a time, on every machine
  leasehold run --no-wait nightly -- ./report.sh
                                                do nothing if it runs already
  leasehold run --permits 3 encode -- ./encode.sh
                                                at most three at a time
  leasehold show nightly                        who holds it, who waits
  leasehold ls --json                           all locks, for a program
  leasehold revoke nightly                      ask its holder to let go
  leasehold break nightly                       take it away from its holder
  leasehold doctor --store redis://db              what of its set-up hurts locks

Environment:
  LEASEHOLD_URL    the store, where --store does not name one
  NO_COLOR         no colours

Exit codes:
  0    done; with `run`, the command's own code
  1    `break` found nothing to break, `revoke` nobody to ask; `doctor` found
       a risk, `ls --deadlocks` a deadlock
  64   the command line cannot be understood
  69   the store cannot be reached
  74   the output cannot be written
  75   busy, or not free in time
  76   the lock was lost
  78   refused, because it would not be safe
  126  the command cannot be started
  127  there is no such command
  128+n  ended by signal n";

pub(crate) const RUN_EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./report.sh
  leasehold run --wait 10s --store redis://db deploy -- make deploy
  leasehold run --permits 3 encode -- ./encode.sh in.mov
  leasehold run nightly -- sh -c 'echo held by $LEASEHOLD_FENCE'

--help says what the command sees, what becomes of signals, and the exit codes.";

pub(crate) const RUN_EXAMPLES_LONG: &str = "\
Examples:
  leasehold run nightly -- ./report.sh
  leasehold run --wait 10s --store redis://db deploy -- make deploy
  leasehold run --permits 3 encode -- ./encode.sh in.mov
  leasehold run --no-wait --min-hold 50s hourly -- ./from-cron.sh
  leasehold run nightly -- sh -c 'echo held by $LEASEHOLD_FENCE'

What the command sees:
  LEASEHOLD_NAME   the name of the lock
  LEASEHOLD_FENCE  a number that rises with every grant: hand it to what you
                   write to, and let that refuse a smaller one. Not set where
                   the store has none
  LEASEHOLD_OWNER  by this, a `leasehold run` inside the command knows what is
                   held already: for the same name on the same store it goes
                   on at once, under the same fence
  LEASEHOLD_URL    the store, without a password: no password reaches the
                   command's environment

Signals:
  The command runs in a process group of its own, with the terminal if there
  is one: Ctrl-C and Ctrl-Z reach it as always. TERM, INT, HUP, QUIT, USR1 and
  USR2 that are sent to leasehold are passed on to that group; while it still
  waits for the lock, they end the wait. When leasehold is killed, even by
  KILL, so is the group. What the command leaves running in the background is
  not waited for, and not protected.

Exit codes:
  The command's own, 128+n where signal n ended it; or
  64   the command line cannot be understood
  69   the store cannot be reached
  75   busy, or not free in time
  76   the lock was lost
  78   refused, because it would not be safe
  126  the command cannot be started
  127  there is no such command";

pub(crate) const SHOW_EXAMPLES: &str = "\
Examples:
  leasehold show nightly
  leasehold show --json nightly | jq -r '.holders[].note'

Exits with 0 whether it is held or free.";

pub(crate) const LS_EXAMPLES: &str = "\
Examples:
  leasehold ls
  leasehold ls orders/
  leasehold ls --json | jq -r 'select(.waiting > 0).name'
  leasehold ls --deadlocks                      who waits for each other

Exits with 0; with --deadlocks where there is one with 1.";

pub(crate) const WATCH_EXAMPLES: &str = "\
Examples:
  leasehold watch nightly
  leasehold watch --json nightly | jq --unbuffered -r .state

The first line says how it stands now. Ctrl-C ends it.";

pub(crate) const REVOKE_EXAMPLES: &str = "\
Examples:
  leasehold revoke nightly
  leasehold revoke --reason 'db1 goes down at 5' --store redis://db nightly
  leasehold run --on-revoke term nightly -- ./report.sh
                                                a holder that listens

Exits with 0 where somebody was asked, with 1 where nobody holds it. For force
see `leasehold break`.";

pub(crate) const BREAK_EXAMPLES: &str = "\
Examples:
  leasehold break nightly
  leasehold break --yes --store redis://db nightly

The holders are not asked. Each learns of it at its next renewal, a third of
its ttl later at most; until then both the old holder and the next one act.
Only what checks the fence can tell them apart. Where a connection keeps what
it holds (advisory, get-lock, for-update), that connection is ended, with all
locks on it.

Exits with 0 where something was broken, with 1 where there was nothing to
break or you said no.";

pub(crate) const ELECT_EXAMPLES: &str = "\
Examples:
  leasehold elect scheduler --store etcd://db -- ./scheduler
  leasehold elect proxy --value 10.0.0.7:80 --on-elected 'ip addr add 10.0.0.1/24 dev eth0' \\
                                            --on-demoted 'ip addr del 10.0.0.1/24 dev eth0'
  leasehold watch proxy                         who leads, as it changes

What a command sees, and what becomes of signals, is as with `run`. Exits with the
code of a COMMAND that has ended by itself, or of an --on-elected that failed; by the
signal that ended it; or as `run` where the store cannot be reached at first.";

pub(crate) const SCHEMA_EXAMPLES: &str = "\
Examples:
  leasehold schema --store postgres://app@db/app?schema=locks | psql -h db -U admin app
  leasehold schema --store mysql://app@db/app | mariadb -h db -u admin";

pub(crate) const SWEEP_EXAMPLES: &str = "Examples:\n  leasehold sweep --store postgres://app@db/app\n  leasehold sweep --unused-for 7d --store sqlite:/var/lib/app/locks.db\n  leasehold sweep --store redis://cache:6379";

pub(crate) const REARM_EXAMPLES: &str = "\
Examples:
  leasehold redlock rearm --store redlock://a,b,c
  leasehold redlock rearm --yes --store redlock://a,b,c

A lock that was granted before the servers forgot it may be valid until its
lease ends. Wait that long, or stop its holder, before you say this: otherwise
two may hold, and only what checks the fence can tell them apart.

Exits with 0 where a majority serves now, with 1 where you said no.";

pub(crate) const DOCTOR_EXAMPLES: &str = "\
Examples:
  leasehold doctor
  leasehold doctor --store redis://db --ttl 10s
  leasehold doctor --json | jq -r 'select(.severity != \"good\").advice'

Exits with 0 where nothing is worse than a notice, with 1 where a risk was
found, and with 78 where locks do not work or exclude nobody.";

pub(crate) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold
  leasehold completions zsh > ~/.zfunc/_leasehold
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish";
