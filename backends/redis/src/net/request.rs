//! One script with its keys and arguments, and its bytes on the way to the server.

use std::io::Write;

use redis::Value;

use crate::net::replicas::Confirm;
use crate::protocol::scripts::{ExtraValue, RunScript, Script};

/// One script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) script: &'static Script,
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
    /// The replicas' confirmation that is required, if any.
    pub(crate) confirm: Option<Confirm>,
}

/// The way in which a script is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By its name; the keys and arguments are what most requests consist of.
    Short,
    /// By its text, which the server then knows by name.
    Full,
}

/// The values of a connection that the requests over it carry, if their scripts need them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkValues {
    /// The epoch of the connection.
    pub(crate) epoch: u64,
    /// Set if the right to publish has to be checked.
    pub(crate) checks_rights: bool,
}

/// The name and the text of a script on one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptText<'a> {
    pub(crate) sha: &'a str,
    pub(crate) source: &'a str,
}

impl<'a> From<&'a Script> for ScriptText<'a> {
    fn from(script: &'a Script) -> Self {
        ScriptText { sha: &script.sha, source: script.source }
    }
}

impl<'a> From<&'a RunScript> for ScriptText<'a> {
    fn from(script: &'a RunScript) -> Self {
        ScriptText { sha: &script.sha, source: &script.source }
    }
}

impl Request {
    /// Appends the command to `bytes`, with the script as it is called on the connection.
    pub(crate) fn write(
        &self,
        bytes: &mut Vec<u8>,
        text: ScriptText<'_>,
        naming: Naming,
        link_values: LinkValues,
    ) {
        let (verb, script) = match naming {
            Naming::Short => (&b"EVALSHA"[..], text.sha.as_bytes()),
            Naming::Full => (&b"EVAL"[..], text.source.as_bytes()),
        };
        let extra = match self.script.extra {
            ExtraValue::Epoch => Some(link_values.epoch),
            ExtraValue::Rights => {
                Some(link_values.epoch).filter(|epoch| *epoch > 0 || link_values.checks_rights)
            }
            ExtraValue::None | ExtraValue::Run => None,
        };
        let texts = || self.keys.iter().chain(&self.args);
        bytes.reserve(64 + script.len() + texts().map(|text| text.len() + 16).sum::<usize>());
        push_length(bytes, b'*', 3 + texts().count() + usize::from(extra.is_some()));
        push_text(bytes, verb);
        push_text(bytes, script);
        push_number(bytes, self.keys.len() as u64);
        for text in texts() {
            push_text(bytes, text.as_bytes());
        }
        if let Some(extra) = extra {
            push_number(bytes, extra);
        }
    }

    /// Returns `true` if it is meant for one run of the server.
    pub(crate) fn is_of_a_run(&self) -> bool {
        self.script.extra == ExtraValue::Run
    }

    /// Returns `true` if its answer shows that the server has checked the right to publish.
    pub(crate) fn checks_rights(&self) -> bool {
        self.script.extra == ExtraValue::Rights
    }

    /// Returns the confirmation that this answer requires.
    pub(crate) fn confirm_of(&self, answer: &Value) -> Option<Confirm> {
        self.confirm.filter(|confirm| (confirm.applies_to)(answer))
    }
}

/// Appends a command without arguments.
pub(crate) fn push_command(bytes: &mut Vec<u8>, verb: &str) {
    push_length(bytes, b'*', 1);
    push_text(bytes, verb.as_bytes());
}

fn push_number(bytes: &mut Vec<u8>, number: u64) {
    push_text(bytes, number.to_string().as_bytes());
}

fn push_text(bytes: &mut Vec<u8>, text: &[u8]) {
    push_length(bytes, b'$', text.len());
    bytes.extend_from_slice(text);
    bytes.extend_from_slice(b"\r\n");
}

fn push_length(bytes: &mut Vec<u8>, kind: u8, length: usize) {
    // Writing to a vector does not fail. Most lengths have one or two digits.
    match u8::try_from(length) {
        Ok(length) if length < 10 => bytes.extend_from_slice(&[kind, b'0' + length, b'\r', b'\n']),
        Ok(length) if length < 100 => {
            bytes.extend_from_slice(&[kind, b'0' + length / 10, b'0' + length % 10, b'\r', b'\n']);
        }
        _ => _ = write!(bytes, "{}{length}\r\n", char::from(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::scripts;

    fn written(request: &Request, naming: Naming, epoch: u64, checks_rights: bool) -> Vec<u8> {
        let mut bytes = b"before".to_vec();
        request.write(&mut bytes, request.script.into(), naming, LinkValues { epoch, checks_rights });
        bytes.split_off(6)
    }

    #[test]
    fn a_request_is_written_as_the_client_library_writes_it() {
        for script in [&scripts::ACQUIRE, &scripts::CONTEND, &scripts::RELEASE] {
            for (naming, epoch, checks) in [
                (Naming::Short, 17, false),
                (Naming::Short, 0, false),
                (Naming::Short, 0, true),
                (Naming::Full, 3, true),
            ] {
                let keys = ["", "k", "{lh:job}:held"].map(str::to_owned).to_vec();
                let args = vec!["x".repeat(9), "é".repeat(40), "y".repeat(100), "z".repeat(10)];
                let mut command = redis::Cmd::new();
                match naming {
                    Naming::Short => command.arg("EVALSHA").arg(&script.sha),
                    Naming::Full => command.arg("EVAL").arg(script.source),
                };
                command.arg(3).arg(&keys).arg(&args);
                match script.extra {
                    ExtraValue::Epoch => _ = command.arg(epoch),
                    ExtraValue::Rights if checks || epoch > 0 => _ = command.arg(epoch),
                    ExtraValue::Rights | ExtraValue::None | ExtraValue::Run => {}
                }
                let request = Request { script, keys, args, confirm: None };
                assert_eq!(written(&request, naming, epoch, checks), command.get_packed_command());
            }
        }
        let mut bytes = Vec::new();
        push_command(&mut bytes, "ASKING");
        assert_eq!(bytes, redis::cmd("ASKING").get_packed_command());
    }
}
