//! The token in a header and in a cookie: each path takes one of both, and a refusal shows strangers nothing.

use serde_json::{Value, json};

use crate::support::http::{Reply, Request};
use crate::support::{Served, id};

/// Signs in as a browser does, and returns the cookie.
async fn cookie(served: &Served) -> String {
    let form = format!("token={}&back=%2F", served.token);
    let request = served.plain("POST", "/login").header("origin", &format!("http://{}", served.address));
    let request = request.header("content-type", "application/x-www-form-urlencoded").text(&form);
    let reply = request.send().await;
    assert_eq!(reply.status, 303, "{reply:?}");
    let line = reply.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    line.split(';').next().unwrap().to_owned()
}

/// Returns each path of the API with its methods.
fn paths() -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(include_str!("../../src/api/openapi.json")).unwrap();
    let mut paths = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            let path = path.replace("{id}", &id()).replace("{name}", "a");
            paths.push((method.to_ascii_uppercase(), path));
        }
    }
    paths
}

/// A page of another site that a browser trusts by mistake would have the cookie, and no header.
#[tokio::test(flavor = "multi_thread")]
async fn cookie_of_the_console_opens_no_path_of_the_api() {
    let public = |config: &mut leasehold_serve::Config| config.listen = vec!["0.0.0.0:0".parse().unwrap()];
    for served in [Served::start().await, Served::with(public).await] {
        let cookie = cookie(&served).await;
        let own = format!("http://{}", served.address);
        let with_cookie = |method: &str, path: &str| -> Request {
            served.plain(method, path).header("cookie", &cookie).header("origin", &own)
        };
        let is_public = served.address.ip().is_unspecified();
        for (method, path) in paths().into_iter().filter(|(_, path)| path != "/healthz") {
            let request = with_cookie(&method, &path).body(&json!({ "name": "a" }));
            if is_public || method != "GET" || path.starts_with("/v1/holds") {
                let detail = request.send().await.is_problem(401, "token_required");
                assert!(detail.contains("a cookie is not enough"), "{method} {path}: {detail}");
            }
        }
        assert_eq!(served.holders("a").await, 0);
        // The pages of the console take it, and nothing else.
        for path in ["/", "/locks", "/lock?name=a", "/doctor"] {
            assert_eq!(with_cookie("GET", path).send().await.status, 200, "{path}");
            if is_public {
                served.request("GET", path).send().await.is_problem(401, "token_required");
            }
        }
        served
            .request("POST", "/doctor")
            .header("origin", &own)
            .send()
            .await
            .is_problem(401, "token_required");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_names_no_file_of_this_machine() {
    let served = Served::with(|config| config.listen = vec!["0.0.0.0:0".parse().unwrap()]).await;
    let folder = served.folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    let leaks = |reply: &Reply| reply.body.contains(&folder) || reply.body.contains("/token");
    let asked = [
        served.plain("GET", "/v1/locks"),
        served.plain("PUT", &format!("/v1/holds/{}", id())),
        served.plain("GET", "/v1/locks").header("authorization", "Bearer wrong"),
        served.plain("GET", "/locks"),
        served.plain("POST", "/doctor").header("accept", "text/html"),
    ];
    for request in asked {
        let reply = request.send().await;
        assert!(reply.status == 401 && !leaks(&reply), "{reply:?}");
        assert!(reply.body.contains("token file of the server"), "{reply:?}");
    }
    let login = served.plain("GET", "/login").header("accept", "text/html").send().await;
    assert!(login.status == 200 && !leaks(&login), "{login:?}");
}

/// Another server under the same host name can set cookies of this name, and browsers may send them first.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_cookie_of_the_same_name_is_not_in_the_way() {
    let served = Served::with(|config| config.listen = vec!["0.0.0.0:0".parse().unwrap()]).await;
    let right = cookie(&served).await;
    let sent = format!("leasehold-token=foreign; leasehold-token=1.2; {right}");
    assert_eq!(served.plain("GET", "/locks").header("cookie", &sent).send().await.status, 200);
    let wrong = "leasehold-token=foreign; xleasehold-token=1.2";
    served.plain("GET", "/locks").header("cookie", wrong).send().await.is_problem(401, "token_required");
}

#[tokio::test(flavor = "multi_thread")]
async fn scheme_of_the_header_may_be_in_any_case() {
    let served = Served::start().await;
    let one = id();
    served.lock(&one, "a").await;
    for scheme in ["bearer", "BEARER", "Bearer"] {
        let request = served.plain("GET", &format!("/v1/holds/{one}"));
        request.header("authorization", &format!("{scheme} {}", served.token)).send().await.ok();
    }
    let joined = served.plain("GET", &format!("/v1/holds/{one}"));
    let joined = joined.header("authorization", &format!("Bearer{}", served.token)).send().await;
    joined.is_problem(401, "token_required");
}

/// A client that scans addresses is slowed down, also with requests that are refused for another reason.
#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_count_for_the_rate() {
    let served = Served::with(|config| config.limits.rate = 5).await;
    let request = served.plain("GET", "/v1/locks").host("evil.example");
    crate::support::until("the refusal", async || request.send().await.status == 429).await;
    let long = served.plain("GET", &format!("/v1/locks?prefix={}", "x".repeat(5000)));
    crate::support::until("the refusal", async || long.send().await.status == 429).await;
}
