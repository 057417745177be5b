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
        let answer = answer.map_err(|error| {
            let mut failure = error::of_request(&error, &endpoint.to_string());
            failure.effect = Effect::None;
            failure
        })?;
        let text: String = redis::from_redis_value(answer).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default();
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            let text =
                format!("{endpoint} does not say in INFO which run it is: it cannot be one of a quorum");
            return Err(Failure::new(FailureKind::Unsupported, Effect::None, text));
        }
        Ok(Run { id: id.to_owned(), scripts: Mutex::default() })
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
        let made = Arc::new(RunScript::new(script, &self.id));
        scripts.push((script.source, made.clone()));
        made
    }
}
