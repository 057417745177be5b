//! The run of the server behind a connection, and the scripts for it.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::{Effect, Failure, FailureKind};
use redis::{Value, cmd};

use crate::config::Endpoint;
use crate::net::pipe::Pipe;
use crate::protocol::error;
use crate::protocol::scripts::{RunScript, Script};

/// The run of a server, and the scripts for it that were used.
#[derive(Debug)]
pub(crate) struct Run {
    id: String,
    /// `true` if the server may know scripts of its earlier runs.
    keeps_scripts: bool,
    /// A few; scripts are the same if their texts are.
    scripts: Mutex<Vec<(&'static str, Arc<RunScript>)>>,
}

impl Run {
    /// Asks the server for its run.
    ///
    /// # Errors
    /// Of the effect `None`: it cannot be reached, refuses the question, or does not say.
    pub(crate) async fn ask(pipe: &Pipe, endpoint: &Endpoint) -> Result<Run, Failure> {
        let mut info = cmd("INFO");
        info.arg("server");
        let answer = pipe.command(&info).await.and_then(Value::extract_error);
        let answer = answer
            .map_err(|error| error::of_request(&error, &endpoint.to_string()).with_effect(Effect::None))?;
        let text: String = redis::from_redis_value(answer).unwrap_or_default();
        Run::read(&text).ok_or_else(|| {
            let text =
                format!("{endpoint} does not say in INFO which run it is: it cannot be one of a quorum");
            Failure::new(FailureKind::Unsupported, Effect::None, text)
        })
    }

    /// Reads the answer to `INFO server`; `None` if no run is in it.
    fn read(text: &str) -> Option<Run> {
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name));
        let id = field("run_id:")?;
        // Valkey and others say with which version of Redis they agree.
        let version =
            field("redis_version:").and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        let keeps_scripts = version.is_none_or(|version| version < FORGETS_SCRIPTS);
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Run { id: id.to_owned(), keeps_scripts, scripts: Mutex::default() })
    }

    /// Returns `true` if this is the same run.
    pub(crate) fn is(&self, other: &Run) -> bool {
        self.id == other.id
    }

    /// Returns the script for this run.
    pub(crate) fn script(&self, script: &Script) -> Arc<RunScript> {
        let mut scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = scripts.iter().find(|(source, _)| std::ptr::eq(*source, script.source)) {
            return found.clone();
        }
        let made = Arc::new(RunScript::new(script, (!self.keeps_scripts).then_some(&self.id)));
        scripts.push((script.source, made.clone()));
        made
    }
}

/// The first version of Redis that forgets all scripts when it ends.
const FORGETS_SCRIPTS: u32 = 7;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::scripts::ExtraValue;

    fn script_of(info: &str) -> String {
        let script = Script::new("return RUN", ExtraValue::Run);
        Run::read(info).unwrap().script(&script).source.clone()
    }

    #[test]
    fn run_is_in_the_text_only_where_no_later_run_can_know_it() {
        let (seven, valkey) = ("redis_version:7.0.15\r\nrun_id:ab12\r\n", "redis_version:7.2.4\nrun_id:ab12");
        for info in [seven, valkey, "redis_version:10.0.0\nrun_id:ab12"] {
            assert_eq!(script_of(info), "local RUN = 'ab12'\nreturn RUN");
        }
        for info in ["redis_version:6.2.14\nrun_id:ab12", "redis_version:new\nrun_id:ab12", "run_id:ab12"] {
            assert!(script_of(info).contains("redis.call('INFO', 'server')"), "{}", script_of(info));
        }
    }

    #[test]
    fn answer_without_a_run_is_refused() {
        for info in ["", "run_id:", "run_id:a'b", "run_id:xyz", "redis_version:7.0.15"] {
            assert!(Run::read(info).is_none(), "{info}");
        }
    }
}
