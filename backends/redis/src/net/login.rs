//! The login on a new connection.
//!
//! It is done here and not by the client library, which hides the server's reason for a refusal. It ends
//! with a `PING`, so that a connection counts as open only once the server has answered on it:
//! a TLS server that misses a certificate, or a proxy without a server behind it, accepts first and
//! refuses afterwards.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The user that logs in, and the server it logs in to.
pub(crate) struct Login<'a> {
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    pub(crate) database: i64,
}

/// The reason why a login failed.
#[derive(Debug)]
pub(crate) enum LoginError {
    /// The connection ended, or its bytes were not an answer.
    Broken(io::Error),
    /// The server said why.
    Answered(String),
}

impl Login<'_> {
    /// Logs in, and waits for the server to answer.
    pub(crate) async fn perform(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<(), LoginError> {
        let database = self.database.to_string();
        let mut commands: Vec<Vec<&str>> = Vec::new();
        if let Some(password) = self.password {
            commands.push(["AUTH"].into_iter().chain(self.user).chain([password]).collect());
        }
        if self.database != 0 {
            commands.push(vec!["SELECT", &database]);
        }
        commands.push(vec!["PING"]);
        let written: String = commands.iter().map(|command| encode(command)).collect();
        stream.write_all(written.as_bytes()).await.map_err(LoginError::Broken)?;
        stream.flush().await.map_err(LoginError::Broken)?;
        for _ in &commands {
            let answer = read_line(stream).await.map_err(LoginError::Broken)?;
            if let Some(reason) = answer.strip_prefix('-') {
                return Err(LoginError::Answered(reason.to_owned()));
            }
            if !answer.starts_with('+') {
                return Err(LoginError::Broken(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "this is not Redis",
                )));
            }
        }
        Ok(())
    }
}

/// The longest answer to a command of the login.
const MAX_ANSWER: usize = 4096;

fn encode(args: &[&str]) -> String {
    let mut text = format!("*{}\r\n", args.len());
    for arg in args {
        text.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
    }
    text
}

/// Reads one line, and not a byte more: the bytes that follow belong to the next user of the
/// connection.
async fn read_line(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        if line.len() >= MAX_ANSWER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not Redis"));
        }
        line.push(stream.read_u8().await?);
    }
    line.truncate(line.len() - 2);
    Ok(String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn log_in(login: Login<'_>, answers: &[u8]) -> (Result<(), LoginError>, String) {
        let (mut client, mut server) = tokio::io::duplex(8192);
        server.write_all(answers).await.unwrap();
        let outcome = login.perform(&mut client).await;
        drop(client);
        let mut sent = String::new();
        server.read_to_string(&mut sent).await.unwrap();
        (outcome, sent)
    }

    #[tokio::test]
    async fn user_password_and_database_are_sent() {
        let login = Login { user: Some("me"), password: Some("p\r\nQUIT"), database: 3 };
        let (outcome, sent) = log_in(login, b"+OK\r\n+OK\r\n+PONG\r\n").await;
        outcome.unwrap();
        assert_eq!(
            sent,
            "*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$7\r\np\r\nQUIT\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*1\r\n$4\r\nPING\r\n"
        );
    }

    #[tokio::test]
    async fn the_reason_of_a_refusal_is_kept() {
        let login = Login { user: None, password: None, database: 0 };
        let (outcome, sent) = log_in(login, b"-NOAUTH Authentication required.\r\n").await;
        assert!(
            matches!(outcome, Err(LoginError::Answered(reason)) if reason == "NOAUTH Authentication required.")
        );
        assert_eq!(sent, "*1\r\n$4\r\nPING\r\n");
    }

    #[tokio::test]
    async fn what_is_not_redis_is_refused() {
        for answer in [&b"HTTP/1.1 400 Bad Request\r\n"[..], &[b'+'; 8000], b"\r\n"] {
            let (outcome, _) = log_in(Login { user: None, password: None, database: 0 }, answer).await;
            assert!(
                matches!(outcome, Err(LoginError::Broken(error)) if error.kind() == io::ErrorKind::InvalidData)
            );
        }
    }
}
