//! Who a caller is taken to be, and that nobody is charged for another.

use serde_json::{Value, json};

use crate::support::chat::{keyed, say, short};
use crate::support::http::{Connection, Request};
use crate::support::rig::{FAST, Rig, key};

/// Two tenants with a limit each; `identity` is what is said of callers.
fn two(identity: &str) -> String {
    let config = FAST.replace("anonymous: allow", identity);
    format!(
        "{config}
tenants:
  - name: a
    keys: [{{ env: A }}]
    limits: {{ rpm: 1, burst: 5 }}
  - name: b
    keys: [{{ env: B }}]
    limits: {{ rpm: 1, burst: 5 }}
"
    )
}

fn tenants(rows: &[Value]) -> Vec<&str> {
    rows.iter()
        .map(|row| row["tenant"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_key_decides_who_pays_whatever_else_is_said() {
    for identity in [
        "anonymous: deny",
        "anonymous: allow, trust_tenant_header: true",
    ] {
        let rig = Rig::start(&two(identity)).await;
        let request = say(json!({"user": "b", "max_tokens": 2}))
            .header("x-customer-id", "b")
            .header("x-tenant-id", "b")
            .header("X-Tenant-ID", "b")
            .header("X-TENANT-ID", "other");
        let answer = rig.send(&keyed(request, &key("A"))).await;
        assert_eq!(answer.head.number("x-ratelimit-remaining-requests"), 4);
        let b = rig
            .send(&keyed(Request::get("/v1/models"), &key("B")))
            .await;
        assert_eq!(
            b.head.number("x-ratelimit-remaining-requests"),
            5,
            "b is untouched"
        );
        assert_eq!(tenants(&rig.drain().await.ledger()), ["a"]);
    }
}

#[tokio::test]
async fn a_key_is_found_in_each_of_its_places() {
    let rig = Rig::start(&two("anonymous: deny")).await;
    let a = key("A");
    let places = [
        ("authorization", format!("Bearer {a}")),
        ("Authorization", format!("bearer   {a}")),
        ("authorization", a.clone()),
        ("x-api-key", a.clone()),
        ("api-key", a.clone()),
    ];
    for (name, value) in places {
        let answer = rig
            .send(&Request::get("/v1/models").header(name, value.as_str()))
            .await;
        assert_eq!(answer.status(), 200, "{name}: {value}");
    }
}

#[tokio::test]
async fn a_tenant_header_counts_only_from_a_peer_that_is_trusted() {
    let far = "anonymous: deny, trust_tenant_header: true, trusted_peers: [10.0.0.0/8]";
    for (identity, status) in [
        (far, 401),
        ("anonymous: deny", 401),
        ("anonymous: deny, trust_tenant_header: true", 200),
    ] {
        let rig = Rig::start(&two(identity)).await;
        let request = short()
            .header("x-tenant-id", "b")
            .header("x-forwarded-for", "10.0.0.1")
            .header("forwarded", "for=10.0.0.1")
            .header("x-real-ip", "10.0.0.1");
        let answer = rig.send(&request).await;
        assert_eq!(answer.status(), status, "{identity}");
        let rows = rig.drain().await.ledger();
        let expected: &[&str] = if status == 200 { &["b"] } else { &[] };
        assert_eq!(tenants(&rows), expected);
    }
}

#[tokio::test]
async fn a_tenant_header_from_elsewhere_makes_no_difference_to_a_caller_without_a_key() {
    let rig = Rig::start(&two(
        "anonymous: allow, trust_tenant_header: true, trusted_peers: [10.0.0.0/8]",
    ))
    .await;
    assert_eq!(
        rig.send(&short().header("x-tenant-id", "b")).await.status(),
        200
    );
    assert_eq!(rig.send(&short()).await.status(), 200);
    assert_eq!(
        tenants(&rig.drain().await.ledger()),
        ["anonymous", "anonymous"]
    );
}

#[tokio::test]
async fn callers_without_a_key_are_let_in_only_where_that_is_said() {
    let rig = Rig::start(&two("anonymous: deny")).await;
    assert_eq!(rig.send(&short()).await.status(), 401);
    let rig = Rig::start(&two("anonymous: allow")).await;
    assert_eq!(rig.send(&short()).await.status(), 200);
    // Where keys are in use, a wrong one is a mistake to hear of, not a way to be anonymous.
    assert_eq!(rig.send(&keyed(short(), "sk-wrong")).await.status(), 401);
    let rig = Rig::start(FAST).await;
    assert_eq!(
        rig.send(&keyed(short(), "sk-any")).await.status(),
        200,
        "clients must send some key"
    );
}

#[tokio::test]
async fn a_tenant_name_that_is_none_is_refused() {
    let rig = Rig::start(&two("anonymous: allow, trust_tenant_header: true")).await;
    let long = "n".repeat(65);
    for name in ["", "a b", "a/b", "tenant\"", "é", long.as_str()] {
        let answer = rig
            .send(&Request::get("/v1/models").header("x-tenant-id", name))
            .await;
        assert_eq!(answer.status(), 400, "{name:?}");
        assert_eq!(answer.json()["error"]["param"], "X-Tenant-ID", "{name:?}");
    }
    let twice = Request::get("/v1/models").header("x-tenant-id", "a");
    let answer = rig.send(&twice.header("x-tenant-id", "b")).await;
    assert_eq!(answer.status(), 400, "two names are none");
}

#[tokio::test]
async fn names_without_end_share_one_budget_and_do_not_get_one_each() {
    let config = FAST.replace(
        "anonymous: allow",
        "anonymous: deny, trust_tenant_header: true",
    );
    let config = format!("{config}\ndefault_tenant: {{ limits: {{ rpm: 1, burst: 1 }} }}\n");
    let rig = Rig::start(&config).await;
    let named = |n: usize| Request::get("/v1/models").header("x-tenant-id", format!("t{n}"));
    let mut connection = Connection::open(rig.address()).await;
    for hundred in 0..100 {
        let together: Vec<u8> = (0..100)
            .flat_map(|n| named(hundred * 100 + n).bytes())
            .collect();
        connection.send(&together).await;
        for _ in 0..100 {
            assert_eq!(connection.answer().await.status(), 200);
        }
    }
    let as_tenant = |name: &str| short().header("x-tenant-id", name);
    assert_eq!(rig.send(&as_tenant("t7")).await.status(), 200);
    assert_eq!(
        rig.send(&as_tenant("t8")).await.status(),
        200,
        "those with an entry have their own"
    );
    assert_eq!(rig.send(&as_tenant("one-too-many")).await.status(), 200);
    for name in ["two-too-many", "three-too-many"] {
        let answer = rig.send(&as_tenant(name)).await;
        assert_eq!((answer.status(), answer.reason()), (429, "requests"));
    }
    let rows = rig.drain().await.ledger();
    assert_eq!(tenants(&rows), ["t7", "t8", "other"]);
}
