//! The document of the API: its paths are those that the server serves, and its schemas fit what it answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::support::{Served, id};

fn document() -> Value {
    serde_json::from_str(include_str!("../../src/api/openapi.json")).unwrap()
}

/// Each route of the source, with its methods.
fn routes() -> BTreeMap<String, BTreeSet<String>> {
    let mut routes = BTreeMap::new();
    for source in [include_str!("../../src/api/mod.rs"), include_str!("../../src/probes/mod.rs")] {
        for line in source.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")) {
            let (path, handlers) = line.split_once('"').unwrap();
            let methods = ["get", "put", "post", "delete"].into_iter();
            let methods = methods.filter(|method| handlers.contains(&format!("{method}(")));
            routes.insert(path.to_owned(), methods.map(str::to_owned).collect());
        }
    }
    routes
}

#[test]
fn document_lists_all_routes_and_no_others() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    let mut listed = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
        listed.insert(path.clone(), methods.cloned().collect::<BTreeSet<_>>());
        for part in path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()) {
            let has =
                |list: &Value| list.as_array().is_some_and(|all| all.iter().any(|one| one["name"] == part));
            assert!(has(&item["parameters"]), "{path} does not describe {part}");
        }
    }
    assert_eq!(listed, routes());
}

#[test]
fn document_lists_all_codes_of_problems() {
    let source = include_str!("../../src/problem.rs");
    let table = source.split("\ncodes! {").nth(1).unwrap();
    let table = table.split("\n}").next().unwrap();
    let in_source: BTreeSet<&str> = table.lines().filter_map(|line| line.split('"').nth(1)).collect();
    let document = document();
    let listed =
        document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"].as_array().unwrap();
    let listed: BTreeSet<&str> = listed.iter().map(|code| code.as_str().unwrap()).collect();
    assert_eq!(listed, in_source);
}

/// Checks that a value fits a schema, as far as the document uses the language of schemas.
fn fits(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let schema =
            document.pointer(name.strip_prefix('#').unwrap()).unwrap_or_else(|| panic!("{at}: {name}"));
        return fits(document, schema, value, at);
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        _ => panic!("{at}: the schema has no type: {schema}"),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(kinds.contains(&kind), "{at}: {value} is not {kinds:?}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at}: {value} is not one of {allowed:?}");
    }
    if let Some(values) = value.as_array() {
        values.iter().for_each(|one| fits(document, &schema["items"], one, at));
    }
    let Some(fields) = value.as_object() else { return };
    for field in schema["required"].as_array().into_iter().flatten() {
        assert!(fields.contains_key(field.as_str().unwrap()), "{at}: {field} is missing in {value}");
    }
    for (name, field) in fields {
        let inner = &schema["properties"][name];
        assert!(!inner.is_null(), "{at}: the document does not know {name}");
        fits(document, inner, field, &format!("{at}.{name}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_fit_their_schemas() {
    let served = Served::with(|config| config.allow_actions = true).await;
    let document = served.plain("GET", "/v1/openapi.json").send().await.ok();
    let check = |schema: &str, value: &Value| {
        fits(&document, &json!({ "$ref": format!("#/components/schemas/{schema}") }), value, schema);
    };
    let (one, two) = (id(), id());
    let request = json!({ "name": "a", "ttl": "30s", "note": "n", "mode": "permits", "of": 3, "permits": 2,
        "on_disconnect": "release", "max_hold": "1h", "lock_delay": "1s", "fencing": "none", "revocable": true });
    check("LockRequest", &request);
    check("Grant", &served.put(&one, "0", request).await.ok());
    check("Grant", &served.renew(&one).await.ok());
    check("Problem", &served.put(&two, "0", json!({ "name": "a" })).await.json());
    check("Problem", &served.plain("PUT", &format!("/v1/holds/{two}")).send().await.json());
    check("Lock", &served.plain("GET", "/v1/locks/a").send().await.ok());
    check("LockList", &served.plain("GET", "/v1/locks?limit=1").send().await.ok());
    let mut events = served.request("GET", &format!("/v1/holds/{one}/events")).open().await;
    check("Event", &events.event().await.unwrap());
    let revoke =
        served.request("POST", "/v1/locks/a/revoke").body(&json!({ "reason": "r" })).send().await.ok();
    check("Revoked", &revoke);
    check("Event", &events.until("revoked").await);
    check("Released", &served.release(&one).await.ok());
    check("Event", &events.until("released").await);
    let leader = json!({ "name": "e", "mode": "leader", "value": "v" });
    check("LockRequest", &leader);
    check("Grant", &served.put(&two, "0", leader).await.ok());
    check("Election", &served.plain("GET", "/v1/elections/e").send().await.ok());
    let holder = served.store.mutex("b").lock().await.unwrap();
    let broken = served
        .request("POST", "/v1/locks/b/break")
        .body(&json!({ "tags": [holder.tag()] }))
        .send()
        .await
        .ok();
    check("Broken", &broken);
    let mut refused = served.stream(&id(), "0", json!({ "name": "e", "mode": "mutex" })).await;
    check("Event", &refused.until("error").await);
}
