//! The text under the help of a command: examples, variables, signals and exit codes.
//!
//! Ground rules: text only. Each line that begins with `leasehold` runs unchanged, apart from the names
//! of machines and files. On a terminal of 80 columns no line wraps, except those with long URLs.

pub(crate) const EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./report.sh          one per user, on this machine
  leasehold run --store redis://db nightly -- ./report.sh
                                                one at a time, on every machine
  leasehold run --no-wait nightly -- ./report.sh
                                                do nothing if it runs already
  leasehold show nightly                        holders and waiters

See `leasehold run --help` for details.";

pub(crate) const EXAMPLES_LONG: &str = "\
Examples:
  leasehold run nightly -- ./report.sh          one per user, on this machine
  leasehold run --store redis://db nightly -- ./report.sh
                                                one at a time, on every machine
  leasehold run --no-wait nightly -- ./report.sh
                                                do nothing if it runs already
  leasehold run --permits 3 encode -- ./encode.sh
                                                at most three at a time
  leasehold show nightly                        holders and waiters
  leasehold top                                 all locks, live
  leasehold ls --json                           all locks, for a program
  leasehold revoke nightly                      ask its holder to release it
  leasehold break nightly                       take it away from its holder
  leasehold doctor --store redis://db           check the store's configuration

Environment:
  LEASEHOLD_URL    the store, if --store is not given
  NO_COLOR         no colours

Exit codes:
  0    done; with `run`, the command's own code
  1    `break` found nothing to break, `revoke` no holder to ask; `doctor`
       found a risk, `ls --deadlocks` a deadlock; `show --quiet`: free
  64   the command line cannot be understood
  69   the store cannot be reached
  74   the output cannot be written
  75   busy, or not free in time (--conflict-exit-code changes it)
  76   the lock was lost
  78   refused, because it would not be safe
  126  the command cannot be started
  127  the command was not found
  128+n  ended by signal n";

pub(crate) const RUN_EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./report.sh
  leasehold run --wait 10s --store redis://db deploy -- make deploy
  leasehold run --permits 3 encode -- ./encode.sh in.mov
  leasehold run nightly -- sh -c 'echo held by $LEASEHOLD_FENCE'

--help describes the command's environment, signals and exit codes.";

pub(crate) const RUN_EXAMPLES_LONG: &str = "\
Examples:
  leasehold run nightly -- ./report.sh
  leasehold run --wait 10s --store redis://db deploy -- make deploy
  leasehold run --permits 3 encode -- ./encode.sh in.mov
  leasehold run --no-wait --min-hold 50s hourly -- ./from-cron.sh
  leasehold run nightly -- sh -c 'echo held by $LEASEHOLD_FENCE'
  leasehold run --no-wait --conflict-exit-code 0 nightly -- ./report.sh
  leasehold run account/3 --also account/7 -- ./transfer.sh
  leasehold run --exec --store file: web -- ./server.sh
  leasehold run --status-fd 3 nightly -- ./report.sh 3>status

What the command sees:
  LEASEHOLD_NAME   the name of the lock
  LEASEHOLD_FENCE  a number that rises with every grant: pass it to the
                   resource that you write to, and let the resource refuse a
                   smaller one. Not set if the store has no fences
  LEASEHOLD_FENCES with --also: a line for each lock, its fence and its name
  LEASEHOLD_OWNER  tags of the locks that are held. A `leasehold run` inside
                   the command for the same name on the same store starts at
                   once, under the same fence
  LEASEHOLD_URL    the store, without a password: no password reaches the
                   command's environment

Signals:
  The command runs in a process group of its own, with the terminal if one
  exists: Ctrl-C and Ctrl-Z work as usual. leasehold passes TERM, INT, HUP,
  QUIT, USR1 and USR2 on to that group; while leasehold still waits for the
  lock, they end the wait. If leasehold is killed, even by KILL, the group is
  killed too. Background processes that the command leaves behind are neither
  waited for nor protected, unless --wait-group is given.

Exit codes:
  The command's own, or 128+n if signal n ended it; otherwise
  64   the command line cannot be understood
  69   the store cannot be reached
  75   busy, or not free in time
  76   the lock was lost
  78   refused, because it would not be safe
  126  the command cannot be started
  127  the command was not found";

pub(crate) const ACQUIRE_EXAMPLES: &str = "\
Examples:
  lock=$(leasehold acquire deploy) || exit
  eval \"$lock\"
  ./build.sh && ./publish.sh --fence \"$LEASEHOLD_FENCE\"
  leasehold release || exit

In two steps, because the exit code of `eval \"$(...)\"` says nothing if the
command was killed. The variables are those of a command under `run`, without
LEASEHOLD_URL, and LEASEHOLD_KEEPER, by which `leasehold release` finds the lock.

The shell that calls this command is watched by a handle of the kernel, not by
its process id. If it ends, even by KILL, the lock is released. If the keeper is
killed, its warden sends the shell the signal of --on-lost. A shell that is
stopped keeps the lock.

Exits with 0 if the lock is held; otherwise as `run` does.";

pub(crate) const RELEASE_EXAMPLES: &str = "\
Examples:
  leasehold release
  leasehold release deploy                      if the script holds several

Exits with 0 if the lock was held until now, and with 76 if it was lost.";

pub(crate) const FENCE_CHECK_EXAMPLES: &str = "\
Examples:
  leasehold run stock -- sh -c 'leasehold fence check stock.db && ./update stock.db'

Exits with 0 if no newer holder was here, with 76 if one was, and with 78
without a fence. A holder that is paused between the check and its write is
not stopped; `leasehold fence write` compares and writes in one step.";

pub(crate) const FENCE_WRITE_EXAMPLES: &str = "\
Examples:
  leasehold run stock -- sh -c '
    leasehold fence check stock && new=$(./count stock) &&
      printf \"%s\\n\" \"$new\" | leasehold fence write stock'

If the new content depends on the old one, run `leasehold fence check` before
you read the file. In a pipe from the reader to this command, the file may be
read before the fence is raised.

Exits as `leasehold fence check` does; the file is then as it was.";

pub(crate) const SHOW_EXAMPLES: &str = "\
Examples:
  leasehold show nightly
  leasehold show --json nightly | jq -r '.holders[].note'
  if leasehold show --quiet nightly; then echo it runs; fi

Exits with 0, whether the lock is held or free. With --quiet, exits with 0 if
it is held, and with 1 if it is free.";

pub(crate) const LS_EXAMPLES: &str = "\
Examples:
  leasehold ls
  leasehold ls orders/
  leasehold ls --json | jq -r 'select(.waiting > 0).name'
  leasehold ls --deadlocks                      claims that block each other

Exits with 0. With --deadlocks, exits with 1 if there is a deadlock.";

#[cfg(feature = "top")]
pub(crate) const TOP_EXAMPLES: &str = "\
Examples:
  leasehold top
  leasehold top --store redis://db
  leasehold top --read-only --interval 10s orders/

It needs a terminal of 80 columns and 24 lines; without one, use
`leasehold ls`. NO_COLOR omits the colours.

Exits with 0 after q or Ctrl-C.";

pub(crate) const WATCH_EXAMPLES: &str = "\
Examples:
  leasehold watch nightly
  leasehold watch --json nightly | jq --unbuffered -r .state

The first line is the current state. Ctrl-C ends the command.";

pub(crate) const REVOKE_EXAMPLES: &str = "\
Examples:
  leasehold revoke nightly
  leasehold revoke --reason 'db1 goes down at 5' --store redis://db nightly
  leasehold run --on-revoke term nightly -- ./report.sh
                                                a holder that listens
  leasehold revoke --wait 5m nightly            and wait for the release

Exits with 0 if a holder was asked, with 1 if the lock is free. With --wait,
exits with 0 if all that were asked have released it, and with 75 if one has
not. To take the lock away, see `leasehold break`.";

pub(crate) const BREAK_EXAMPLES: &str = "\
Examples:
  leasehold break nightly
  leasehold break --yes --store redis://db nightly
  leasehold break --yes --after 1m nightly      ask first, and wait

Without --after, the holders are not asked. Each notices the loss at its next renewal, at most
a third of its ttl later; until then the old holder and the next one both act.
Only a resource that checks the fence can distinguish them. If a connection
keeps the lock (advisory, get-lock, for-update), that connection is ended,
with all locks on it.

Exits with 0 if a lock was broken, or released by a holder that was asked; with
1 if there was nothing to break or you answered no.";

pub(crate) const ELECT_EXAMPLES: &str = "\
Examples:
  leasehold elect scheduler --store etcd://db -- ./scheduler
  leasehold elect proxy --value 10.0.0.7:80 --on-elected 'ip addr add 10.0.0.1/24 dev eth0' \\
                                            --on-demoted 'ip addr del 10.0.0.1/24 dev eth0'
  leasehold watch proxy                         the leader, and each change

The environment of a command and the handling of signals are those of `run`.
Exits with the code of a COMMAND that has ended by itself, or of an
--on-elected that failed; by the signal that ended it; or, after an error at the
start, as `run` does. Later errors are reported, and retried each second.";

pub(crate) const SCHEMA_EXAMPLES: &str = "\
Examples:
  leasehold schema --store 'postgres://app@db/app?schema=locks' | psql -h db -U admin app
  leasehold schema --store mysql://app@db/app | mariadb -h db -u admin";

pub(crate) const SWEEP_EXAMPLES: &str = "Examples:\n  leasehold sweep --store postgres://app@db/app\n  leasehold sweep --unused-for 7d --store sqlite:/var/lib/app/locks.db\n  leasehold sweep --store redis://cache:6379";

pub(crate) const REARM_EXAMPLES: &str = "\
Examples:
  leasehold redlock rearm --store redlock://a,b,c
  leasehold redlock rearm --yes --store redlock://a,b,c

A lock that was granted before the servers lost their data may be valid until
its lease ends. Wait that long, or stop its holder, before you run this:
otherwise two clients may hold the lock, and only a resource that checks the
fence can distinguish them.

Exits with 0 if a majority serves now, with 1 if you answered no.";

pub(crate) const DOCTOR_EXAMPLES: &str = "\
Examples:
  leasehold doctor
  leasehold doctor --store redis://db --ttl 10s
  leasehold doctor --json | jq -r 'select(.severity != \"good\").advice'

Exits with 0 if nothing is worse than a notice, with 1 if a risk was found,
and with 78 if locks do not work or do not exclude other processes.";

pub(crate) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold
  leasehold completions zsh > ~/.zfunc/_leasehold
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish";
