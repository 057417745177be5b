//! Odd requests: methods, targets and names that no sensible client sends. Each gets a clear answer, and none gets
//! past a check.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{LIMIT, Served, id, until};

/// A `HEAD` has no effect: a stream that it opened would break at once, and take the lock with it.
#[tokio::test(flavor = "multi_thread")]
async fn head_of_a_stream_is_refused_and_keeps_the_lock() {
    let served = Served::start().await;
    let one = id();
    served.put(&one, "0", json!({ "name": "a", "ttl": "30s", "on_disconnect": "release" })).await.ok();
    for path in [&*format!("/v1/holds/{one}/events"), "/v1/locks/a/watch", "/v1/elections/a/watch"] {
        assert_eq!(served.request("HEAD", path).send().await.status, 405, "{path}");
        assert_eq!(served.request("OPTIONS", path).send().await.status, 405, "{path}");
    }
    let look = served.request("HEAD", &format!("/v1/holds/{one}")).send().await;
    assert!(look.status == 200 && look.body.is_empty(), "{look:?}");
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    served.renew(&one).await.ok();
}

/// A path in another spelling does not avoid the token.
#[tokio::test(flavor = "multi_thread")]
async fn other_spelling_of_a_path_gets_past_no_check() {
    let served = Served::start().await;
    let one = id();
    served.lock(&one, "a").await;
    for path in [
        "//v1/holds/ID",
        "/v1//holds/ID",
        "/v1/holds//ID",
        "/./v1/holds/ID",
        "/x/../v1/holds/ID",
        "/V1/holds/ID",
        "/v1/Holds/ID",
        "/v1/holds/ID/",
        "/v1/holds%2FID",
        "/%76%31/holds/ID",
        "/v1/%68olds/ID",
        "/v1/holds/ID%00",
        "/v1/holds/ID;a=b",
        "/v1\\holds\\ID",
        "/v1/locks/..%2Fholds%2FID",
    ] {
        let path = path.replace("ID", &one);
        for method in ["GET", "PUT", "DELETE", "HEAD"] {
            let reply = served.plain(method, &path).body(&json!({ "name": "b" })).send().await;
            let shows = reply.body.contains("valid_ms") || reply.body.contains("\"released\"");
            assert!(
                !shows && (reply.status >= 400 || reply.status == 200 && method != "PUT"),
                "{path}: {reply:?}"
            );
        }
    }
    served.renew(&one).await.ok();
    assert_eq!((served.holders("a").await, served.holders("b").await), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_names_are_names_or_are_explained() {
    let served = Served::start().await;
    for (name, path) in [
        ("..", "%2E%2E"),
        ("a//b", "a%2F%2Fb"),
        ("käse 漢", "k%C3%A4se%20%E6%BC%A2"),
        ("🔒", "%F0%9F%94%92"),
        ("100%", "100%25"),
        ("a+b", "a+b"),
        ("a?b#c", "a%3Fb%23c"),
        ("\u{202e}txt", "%E2%80%AEtxt"),
        ("watch", "watch"),
    ] {
        let one = id();
        served.lock(&one, name).await;
        let shown = served.plain("GET", &format!("/v1/locks/{path}")).send().await.ok();
        assert_eq!((&shown["name"], &shown["state"]), (&json!(name), &json!("held")), "{shown}");
        let mut watch = served.plain("GET", &format!("/v1/locks/{path}/watch")).open().await;
        assert_eq!(watch.event().await.unwrap()["state"], "held", "{name}");
        served.release(&one).await.ok();
    }
    let long = "x".repeat(3000);
    for path in ["%ff", "%00", "a%0Ab", &long] {
        for place in ["/v1/locks/", "/v1/elections/", "/leader/"] {
            let reply = served.plain("GET", &format!("{place}{path}")).send().await;
            reply.is_problem(400, "invalid_request");
        }
        let put = served.request("PUT", &format!("/v1/holds/{path}")).body(&json!({ "name": "a" }));
        put.send().await.is_problem(400, "invalid_request");
        served
            .plain("GET", &format!("/v1/locks/{path}/watch"))
            .send()
            .await
            .is_problem(400, "invalid_request");
        let watch = served.plain("GET", &format!("/v1/elections/{path}/watch"));
        watch.send().await.is_problem(400, "invalid_request");
    }
    let twice = served.plain("GET", "/leader/a?value=b&value=c").send().await;
    twice.is_problem(400, "invalid_request");
    let permits = json!({ "name": "a", "mode": "permits", "of": 0 });
    served.put(&id(), "0", permits).await.is_problem(400, "invalid_request");
    let permits = json!({ "name": "a", "mode": "permits", "of": 3, "permits": 0 });
    served.put(&id(), "0", permits).await.is_problem(400, "invalid_request");
    let value = json!({ "name": "a", "mode": "leader", "value": "x".repeat(5000) });
    served.put(&id(), "0", value).await.is_problem(400, "invalid_request");
    served.put(&id(), "0", json!({ "name": long })).await.is_problem(400, "invalid_request");
}

/// Bytes that are hardly HTTP. The server answers with an error, or ends the connection, and lives on.
#[tokio::test(flavor = "multi_thread")]
async fn broken_requests_are_refused() {
    let served = Served::start().await;
    let (many, long) = ("x-filler: y\r\n".repeat(200), "x".repeat(40_000));
    let host = "host: localhost\r\n";
    for request in [
        format!("OPTIONS * HTTP/1.1\r\n{host}\r\n"),
        "CONNECT localhost:80 HTTP/1.1\r\nhost: localhost:80\r\n\r\n".to_owned(),
        format!("TRACE /v1/locks HTTP/1.1\r\n{host}\r\n"),
        format!("BREW /v1/locks HTTP/1.1\r\n{host}\r\n"),
        format!("PUT /v1/holds/0123456789abcdef HTTP/1.1\r\n{host}\r\n"),
        format!("GET http://evil.example/v1/locks HTTP/1.1\r\n{host}\r\n"),
        "GET /v1/locks HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET /v1/locks HTTP/1.1\r\n{host}{many}\r\n"),
        format!("GET /v1/locks HTTP/1.1\r\n{host}x-long: {long}\r\n\r\n"),
        format!("GET /{long} HTTP/1.1\r\n{host}\r\n"),
        format!("POST /login HTTP/1.1\r\n{host}content-length: 5\r\ncontent-length: 6\r\n\r\nabcde"),
        format!("POST /login HTTP/1.1\r\n{host}content-length: -1\r\n\r\n"),
        format!("POST /login HTTP/1.1\r\n{host}transfer-encoding: chunked\r\n\r\nzz\r\n"),
        format!("GET /v1/locks HTTP/9.9\r\n{host}\r\n"),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\0".to_owned(),
        "\0\0\0\0\r\n\r\n".to_owned(),
    ] {
        let mut connection = served.plain("GET", "/").connect().await;
        // A server that refuses early closes the connection while it is sent.
        let _ = connection.write_all(request.as_bytes()).await;
        let _ = connection.shutdown().await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(LIMIT, connection.read_to_end(&mut answer));
        let _ = read.await.expect("the connection ends");
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.get(9..12).unwrap_or("none");
        let start: String = request.chars().take(60).collect();
        assert!(answer.is_empty() || status.starts_with('4') || status == "505", "{start:?}: {answer}");
    }
    served.plain("GET", "/healthz").send().await;
    until("nothing is left", async || served.holders("a").await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_that_is_not_valid_is_not_called_too_large() {
    let served = Served::start().await;
    for (length, body) in [("transfer-encoding: chunked", "zz\r\n"), ("content-length: 50", "{\"name\"")] {
        let request = format!(
            "PUT /v1/holds/{} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\n{length}\r\n\r\n{body}",
            id(),
            served.token
        );
        let mut connection = served.plain("PUT", "/").connect().await;
        connection.write_all(request.as_bytes()).await.unwrap();
        connection.shutdown().await.unwrap();
        let mut answer = String::new();
        let read = tokio::time::timeout(LIMIT, connection.read_to_string(&mut answer));
        let _ = read.await.expect("the connection ends");
        let is_refused = answer.starts_with("HTTP/1.1 400") && answer.contains("invalid_request");
        // The server need not answer a client that has left.
        assert!(is_refused || (answer.is_empty() && length.starts_with("content")), "{length}: {answer}");
    }
}
