//! Attacks: each item of the threat model that is defended.

use std::os::unix::fs::PermissionsExt;

use leasehold_serve::{Config, Server};
use serde_json::json;

use crate::support::{Served, id};

#[tokio::test(flavor = "multi_thread")]
async fn change_without_the_token_is_refused() {
    let served = Served::start().await;
    let one = id();
    let hold = format!("/v1/holds/{one}");
    let body = json!({ "name": "a" });
    for (method, path) in [
        ("PUT", hold.clone()),
        ("DELETE", hold.clone()),
        ("POST", format!("{hold}/renew")),
        ("GET", hold.clone()),
        ("GET", format!("{hold}/events")),
        ("PUT", format!("{hold}/value")),
        ("POST", "/v1/locks/a/break".to_owned()),
        ("POST", "/v1/locks/a/revoke".to_owned()),
    ] {
        let plain = served.plain(method, &path).body(&body);
        plain.send().await.is_problem(401, "token_required");
        for wrong in
            ["Bearer wrong", "Bearer ", "Basic YTpi", &format!("Bearer {}x", served.token), &served.token]
        {
            let sent = plain.clone().header("authorization", wrong).send().await;
            let detail = sent.is_problem(401, "token_required");
            assert!(!detail.contains(&served.token) && sent.head.contains("www-authenticate: bearer"));
        }
    }
    assert_eq!(served.holders("a").await, 0);
    // A read of what the store shows needs none on this machine.
    served.plain("GET", "/v1/locks").send().await.ok();
    served.plain("GET", "/v1/locks/a").send().await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn off_this_machine_everything_needs_the_token() {
    let served = Served::with(|config| config.listen = vec!["0.0.0.0:0".parse().unwrap()]).await;
    for path in ["/v1/locks", "/v1/locks/a", "/v1/elections/a", "/metrics", "/leader/a", "/v1/openapi.json"] {
        served.plain("GET", path).send().await.is_problem(401, "token_required");
        assert_ne!(served.request("GET", path).send().await.status, 401, "{path}");
    }
    assert_eq!(served.plain("GET", "/healthz").send().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn name_that_was_rebound_to_this_machine_is_refused() {
    let served = Served::with(|config| config.allow_hosts = vec!["locks.example.com".to_owned()]).await;
    for host in ["evil.example", "evil.example:7878", "127.0.0.1.evil.example", "localhost.evil.example", ""]
    {
        let reply = served.request("GET", "/v1/locks").host(host).send().await;
        assert!(reply.is_problem(421, "host_refused").contains("--allow-host"), "{host}");
        served.request("GET", "/healthz").host(host).send().await.is_problem(421, "host_refused");
    }
    for host in
        ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:7878", "locks.example.com", "locks.example.com:443"]
    {
        served.request("GET", "/v1/locks").host(host).send().await.ok();
    }
    let twice = served.request("GET", "/v1/locks").header("host", "evil.example").send().await;
    assert!(matches!(twice.status, 400 | 421), "{twice:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn page_of_another_site_can_neither_read_nor_change() {
    let served = Served::start().await;
    let own = format!("http://{}", served.address);
    for origin in ["http://evil.example", "null", "https://127.0.0.1:1", "http://127.0.0.1", "file://"] {
        let get = served.request("GET", "/v1/locks").header("origin", origin).send().await;
        get.is_problem(403, "origin_refused");
        let put = served.request("PUT", &format!("/v1/holds/{}", id())).header("origin", origin);
        put.body(&json!({ "name": "a" })).send().await.is_problem(403, "origin_refused");
    }
    served.request("GET", "/v1/locks").header("origin", &own).send().await.ok();
    let foreign = served.request("GET", "/v1/locks").header("sec-fetch-site", "cross-site");
    foreign.clone().header("sec-fetch-mode", "cors").send().await.is_problem(403, "origin_refused");
    // A preflight is not answered, so a browser sends nothing after it.
    let preflight =
        served.plain("OPTIONS", &format!("/v1/holds/{}", id())).header("origin", "http://evil.example");
    let reply = preflight.header("access-control-request-method", "PUT").send().await;
    assert!(reply.status >= 400 && !reply.head.contains("access-control-allow"), "{reply:?}");
    assert_eq!(served.holders("a").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_carries_the_headers_that_tie_a_browser_down() {
    let served = Served::start().await;
    for path in ["/v1/locks", "/healthz", "/v1/nothing", "/metrics"] {
        let head = served.request("GET", path).send().await.head;
        for header in [
            "content-security-policy: default-src 'none'",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(header), "{path}: {header}: {head}");
        }
        assert!(!head.contains("access-control-allow-origin") && !head.contains("server:"), "{head}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_others_are_left_alone_without_allow_actions() {
    let served = Served::start().await;
    let holder = served.store.mutex("a").lock().await.unwrap();
    let tags = json!({ "tags": [holder.tag()] });
    let refused = served.request("POST", "/v1/locks/a/break").body(&tags).send().await;
    assert!(refused.is_problem(403, "actions_disabled").contains("--allow-actions"));
    let revoke = served.request("POST", "/v1/locks/a/revoke").body(&json!({ "reason": "x" }));
    revoke.send().await.is_problem(403, "actions_disabled");
    assert!(holder.check().is_ok());
    let served = Served::with(|config| config.allow_actions = true).await;
    let holder = served.store.mutex("a").lock().await.unwrap();
    let wrong =
        served.request("POST", "/v1/locks/a/break").body(&json!({ "tags": ["other"] })).send().await.ok();
    assert!(wrong["broken"].as_array().unwrap().is_empty());
    let tags = json!({ "tags": [holder.tag()] });
    let broken = served.request("POST", "/v1/locks/a/break").body(&tags).send().await.ok();
    assert_eq!(broken["broken"].as_array().unwrap().len(), 1);
    served.until_holders("a", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_end_claims_are_in_no_answer() {
    let served = Served::start().await;
    served.lock(&id(), "a").await;
    let secret = served.store.inspect("a").await.unwrap().holders[0].id.to_hex();
    for path in ["/v1/locks", "/v1/locks/a", "/metrics", "/v1/elections/a"] {
        assert!(!served.request("GET", path).send().await.body.contains(&secret), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_notes_of_attackers_stay_text() {
    let served = Served::start().await;
    let name = "<script>alert(1)</script>";
    let note = "\"}\n{\"event\":\"lost\"}\u{1b}[2J</script>";
    served.put(&id(), "0", json!({ "name": name, "note": note })).await.ok();
    let list = served.plain("GET", "/v1/locks").send().await;
    assert!(list.head.contains("application/json") && list.ok()["locks"][0]["name"] == name);
    let mut watch = served.plain("GET", "/v1/locks/%3Cscript%3Ealert(1)%3C%2Fscript%3E/watch").open().await;
    let state = watch.event().await.unwrap();
    assert_eq!(state["holders"][0]["note"], note);
    let crlf = served.put(&id(), "0", json!({ "name": "a\r\nset-cookie: x=y" })).await;
    crlf.is_problem(400, "invalid_request");
    let missing = served.plain("GET", "/v1/%0d%0aset-cookie:%20x").send().await;
    assert!(!missing.head.contains("set-cookie"), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn token_file_that_others_can_read_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
    let bind = async |mode: u32| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut config = Config::default();
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.token_file = Some(path.clone());
        Server::bind(leasehold::Client::open("mem:").await.unwrap(), config).await
    };
    for mode in [0o644, 0o660, 0o602] {
        assert!(bind(mode).await.unwrap_err().to_string().contains("chmod 0600"), "{mode:o}");
    }
    assert!(bind(0o600).await.is_ok());
}
