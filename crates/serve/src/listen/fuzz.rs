//! Fuzz targets: requests, as any program can send them.
//!
//! A request is written here as its lines: method and target, headers, an empty line, the body. Each is served
//! twice, to a program of this machine and to one of another machine.

use std::cell::RefCell;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, LOCATION, ORIGIN};
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use futures_util::StreamExt;
use leasehold::{Client, Guard};
use leasehold_fuzz::Target;
use tower_service::Service;

use super::Server;
use crate::config::{Config, Listen};
use crate::guard::{Peer, is_change};
use crate::problem::Code;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const SECRET: &str = "s3cret-token-0123456789";
/// A lock that the client of the server holds itself, and a part of a name that would be markup.
const VICTIM: &str = "victim";
const MARKUP: &str = "<zq";

/// A server without a socket that anything connects to, and its store in memory.
struct Ground {
    server: Server,
    client: Client,
    victim: Option<Guard>,
    /// The proof that a browser keeps after a login.
    cookie: String,
    _folder: tempfile::TempDir,
}

impl Ground {
    async fn new() -> Ground {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.write(true).create_new(true).mode(0o600).open(&token_file).unwrap();
        writeln!(file, "{SECRET}").unwrap();
        let mut config = Config { token_file: Some(token_file), allow_actions: true, ..Config::default() };
        config.listen = vec![Listen::Unix(folder.path().join("socket"))];
        config.limits.rate = u32::MAX;
        config.limits.wait = Duration::from_millis(5);
        let client = Client::open("mem:").await.unwrap();
        let server = Server::bind(client.clone(), config).await.unwrap();
        // It ends in centuries, so that it is the same in each run.
        let cookie = server.state.token.cookie(9_000_000_000);
        Ground { server, client, victim: None, cookie, _folder: folder }
    }

    /// Serves a request, and returns the kind of its answer.
    async fn serve(&mut self, input: &[u8], is_local: bool) -> String {
        let Some(request) = request(input) else { return "not a request".to_owned() };
        if self.victim.as_ref().is_none_or(|victim| victim.check().is_err()) {
            self.victim = Some(self.client.mutex(VICTIM).try_lock().await.unwrap().unwrap());
        }
        let head = Head::of(&request);
        let (status, headers, body) = ask(&self.server.routes, request, is_local).await;
        let about =
            || format!("{} {:?} {status}: {}", head.method, head.target, String::from_utf8_lossy(&body));
        assert!(headers.contains_key(CONTENT_SECURITY_POLICY), "an answer without a policy: {}", about());
        let has_secret = contains(input, SECRET.as_bytes()) || contains(input, self.cookie.as_bytes());
        let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
        let is_refused =
            status.is_client_error() || location.is_some_and(|location| location.starts_with("/login"));
        // The token opens what it guards, and only it does.
        assert!(
            has_secret || is_refused || !is_change(&head.method),
            "a change without the token: {}",
            about()
        );
        assert!(has_secret || is_local || is_refused || head.is_open(), "a stranger reads: {}", about());
        assert!(!head.is_foreign || is_refused, "another site uses the server: {}", about());
        assert!(
            head.has_secret_to_echo || !contains(&body, SECRET.as_bytes()),
            "the token is shown: {}",
            about()
        );
        assert!(has_secret || self.victim.as_ref().is_some_and(|it| it.check().is_ok()), "{}", about());
        if let Some(location) = location {
            let is_own = location.starts_with('/') && !location[1..].starts_with(['/', '\\']);
            assert!(is_own, "a redirect leads to another site: {}", about());
        }
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        assert!(!kind.starts_with("text/html") || !contains(&body, MARKUP.as_bytes()), "{}", about());
        let has_body = head.method != Method::HEAD;
        let code = if has_body && kind == "application/problem+json" { problem(status, &body) } else { "" };
        // A load balancer sees by 503 that nobody leads.
        let nobody_leads = status == StatusCode::SERVICE_UNAVAILABLE && head.target.starts_with("/leader/");
        let is_planned = !matches!(code, "" | "internal") || !has_body || nobody_leads;
        assert!(!status.is_server_error() || is_planned, "{}", about());
        self.release(&head.target).await;
        format!("{} {status} {code} {kind}", head.method)
    }

    /// Releases what a request has acquired.
    async fn release(&self, target: &str) {
        if self.server.state.holds.counts() == (0, 0) {
            return;
        }
        let path: Vec<&str> = target.split(['?', '/']).collect();
        let target = format!("/v1/holds/{}", path[3]);
        let release = format!("DELETE {target}\nhost: localhost\nauthorization: Bearer {SECRET}\n\n");
        let (status, ..) = ask(&self.server.routes, request(release.as_bytes()).unwrap(), true).await;
        assert_eq!((status, self.server.state.holds.counts()), (StatusCode::OK, (0, 0)), "{target}");
    }
}

/// The facts of a request that decide what its answer may be.
struct Head {
    method: Method,
    target: String,
    /// `true` if the request has the token where an answer may repeat it.
    has_secret_to_echo: bool,
    /// `true` if a page of another site has sent it, or if it calls the server by the name of another site.
    is_foreign: bool,
}

impl Head {
    fn of(request: &Request<Body>) -> Head {
        let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let names =
            |name| request.headers().get_all(name).iter().any(|value| contains(value.as_bytes(), b"evil"));
        // A host is repeated in small letters, of which the token has no others.
        let has_secret = |part: &[u8]| contains(&part.to_ascii_lowercase(), SECRET.as_bytes());
        let has_secret_to_echo = has_secret(target.as_bytes())
            || request
                .headers()
                .iter()
                .any(|(name, value)| name != "authorization" && has_secret(value.as_bytes()));
        let is_foreign = names(ORIGIN) || names(HOST);
        Head { method: request.method().clone(), has_secret_to_echo, is_foreign, target }
    }

    /// Returns `true` for what everybody may see: whether the server lives, the login, and what it looks like.
    fn is_open(&self) -> bool {
        let path = self.target.split('?').next().unwrap_or_default();
        matches!(path, "/healthz" | "/login") || path.starts_with("/assets/")
    }
}

/// Reads the lines of a request; `None` for what no client library sends and no server library passes on.
fn request(input: &[u8]) -> Option<Request<Body>> {
    let end = input.windows(2).position(|pair| pair == b"\n\n")?;
    let mut lines = input[..end].split(|byte| *byte == b'\n');
    let first = lines.next()?;
    let space = first.iter().position(|byte| *byte == b' ')?;
    let mut request = Request::builder().method(&first[..space]).uri(&first[space + 1..]);
    for line in lines {
        let colon = line.windows(2).position(|pair| pair == b": ")?;
        request = request.header(&line[..colon], &line[colon + 2..]);
    }
    request.body(Body::from(input[end + 2..].to_vec())).ok()
}

/// Sends a request to the routes, and returns the answer; of a stream, its first event.
async fn ask(
    routes: &Router,
    mut request: Request<Body>,
    is_local: bool,
) -> (StatusCode, HeaderMap, Vec<u8>) {
    let (end, trust) = Default::default();
    request.extensions_mut().insert(Peer { ip: None, is_local, is_tls: false, end, trust });
    let asked = tokio::time::timeout(PATIENCE, routes.clone().call(request)).await;
    let Ok(response): Result<Response<Body>, _> = asked.expect("a request hangs");
    let (head, body) = response.into_parts();
    let mut chunks = body.into_data_stream();
    let mut whole = Vec::new();
    // A stream that has nothing to say ends with this wait.
    while whole.is_empty() || !is_stream(&head.headers) {
        match tokio::time::timeout(NOTHING_NEW, chunks.next()).await {
            Ok(Some(Ok(chunk))) => whole.extend_from_slice(&chunk),
            _ => break,
        }
    }
    (head.status, head.headers, whole)
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes());
    kind.is_some_and(|kind| contains(kind, b"x-ndjson") || contains(kind, b"event-stream"))
}

/// Checks that a problem has its form, and returns its code.
fn problem(status: StatusCode, body: &[u8]) -> &'static str {
    let shape: serde_json::Value = serde_json::from_slice(body).unwrap();
    let (code, number, title) =
        Code::ALL.iter().map(|code| code.parts()).find(|(code, ..)| shape["code"] == *code).unwrap();
    assert_eq!((shape["status"].as_u64(), status.as_u16()), (Some(u64::from(number)), number), "{shape}");
    assert!(
        shape["title"] == title && shape["detail"].as_str().is_some_and(|text| !text.is_empty()),
        "{shape}"
    );
    assert!(body.len() < LONGEST_PROBLEM, "an error of {} bytes: {shape}", body.len());
    code
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The time in which each request is answered.
const PATIENCE: Duration = Duration::from_secs(60);
const NOTHING_NEW: Duration = Duration::from_millis(20);
/// An error cuts short what it repeats, however long that is.
const LONGEST_PROBLEM: usize = 8 * 1024;

const API: &[&str] = &[
    "PUT /v1/holds/0123456789abcdef?wait=1ms\nhost: localhost\nauthorization: Bearer TOKEN\n\n{\"name\":\"a\"}",
    "PUT /v1/holds/0123456789abcdef\nhost: [::1]:7878\nauthorization: Bearer TOKEN\naccept: text/event-stream\n\n\
     {\"name\":\"<zq>\",\"mode\":\"permits\",\"of\":3,\"permits\":2,\"ttl\":\"5s\",\"note\":\"<zq>\",\
     \"on_disconnect\":\"release\",\"max_hold\":\"1m\",\"lock_delay\":\"0\",\"revocable\":true}",
    "PUT /v1/holds/0123456789abcdef/value\nhost: localhost\nauthorization: bearer TOKEN\n\n{\"value\":\"x\"}",
    "PUT /v1/holds/0123456789abcdef\nhost: localhost\nauthorization: Bearer TOKEN\n\n\
     {\"name\":\"e\",\"mode\":\"leader\",\"value\":\"<zq>\"}",
    "POST /v1/holds/0123456789abcdef/renew\nhost: localhost\nauthorization: Bearer TOKEN\n\n",
    "DELETE /v1/holds/0123456789abcdef\nhost: localhost\nauthorization: Bearer TOKEN\n\n",
    "GET /v1/holds/0123456789abcdef/events\nhost: localhost\nauthorization: Bearer TOKEN\n\n",
    "GET /v1/locks?limit=3&prefix=v\nhost: 127.0.0.1:7878\norigin: http://127.0.0.1:7878\n\n",
    "GET /v1/locks/victim\nhost: localhost\n\n",
    "GET /v1/locks/victim/watch\nhost: localhost\naccept: application/x-ndjson\n\n",
    "POST /v1/locks/victim/revoke\nhost: localhost\nauthorization: Bearer TOKEN\n\n{\"reason\":\"<zq>\"}",
    "POST /v1/locks/other/break\nhost: localhost\nauthorization: Bearer TOKEN\n\n{}",
    "GET /v1/elections/e%2Ff\nhost: localhost\n\n",
    "GET /leader/e\nhost: localhost\n\n",
    "GET /healthz\nhost: localhost\n\n",
    "OPTIONS /v1/locks\nhost: evil.example\norigin: http://evil.example\n\n",
];

const PAGES: &[&str] = &[
    "GET /\nhost: localhost\ncookie: leasehold_theme=dark\n\n",
    "GET /locks?q=%3Czq%3E&show=held&sort=-name&page=2\nhost: localhost\naccept: text/html\n\n",
    "GET /lock?name=%3Czq%3E\nhost: localhost\naccept: text/html\nsec-fetch-site: cross-site\nsec-fetch-mode: navigate\n\n",
    "GET /lock/break?name=victim\nhost: localhost\ncookie: leasehold-token=COOKIE\n\n",
    "POST /lock/break?name=victim\nhost: localhost\norigin: http://localhost\ncookie: leasehold-token=COOKIE\n\
     content-type: application/x-www-form-urlencoded\n\ntags=x&confirm=victim",
    "POST /login\nhost: localhost\norigin: http://localhost\ncontent-type: application/x-www-form-urlencoded\n\n\
     token=TOKEN&back=%2Flocks",
    "GET /login?back=//evil.example\nhost: localhost\n\n",
    "GET /theme?to=dark&back=%2F%2Fevil.example\nhost: localhost\n\n",
    "GET /waits\nhost: localhost\n\n",
    "GET /nothing/%3Czq%3E\nhost: localhost\naccept: text/html\n\n",
    "GET /assets/style.css\nhost: localhost\n\n",
];

const WORDS: &[&str] = &[
    "evil.example",
    "host: evil.example\n",
    "origin: http://evil.example\n",
    "<zq>",
    "%3Czq",
    "%2F",
    "%00",
    "%FF",
    "..",
    "/v1/holds/",
    "0123456789abcdef",
    "victim",
    "HEAD ",
    "POST ",
    "DELETE ",
    "PATCH ",
    "GET ",
    "authorization: Bearer ",
    "cookie: leasehold-token=",
    "accept: text/html\n",
    "wait=",
    "?",
    "&",
    "\n\n",
    "\"mode\":\"read\"",
    "\"ttl\":\"",
    "\"lock_delay\":\"",
    "99999999999d",
    "localhost",
];

/// Runs a target whose requests have the token, or the cookie of a login, where they say so.
fn run(name: &'static str, seeds: &[&str], cases: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ground = RefCell::new(runtime.block_on(Ground::new()));
    let cookie = ground.borrow().cookie.clone();
    let seeds = seeds.iter().map(|seed| seed.replace("TOKEN", SECRET).replace("COOKIE", &cookie));
    Target::new(name, HERE).cases(cases).seeds(seeds).words(WORDS).run(|input| {
        let mut ground = ground.borrow_mut();
        [true, false].map(|is_local| runtime.block_on(ground.serve(input, is_local))).join("; ")
    });
}

#[test]
fn api() {
    run("api", API, 4_000);
}

#[test]
fn pages() {
    run("pages", PAGES, 1_000);
}
