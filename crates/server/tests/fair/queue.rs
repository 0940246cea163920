//! What the operator's page says of those who wait.

use serde_json::{Value, json};

use crate::support::{Ask, NARROW, Rig, sample, tenant};

fn yaml() -> String {
    let tenants = tenant("flood", "weight: 1") + &tenant("quiet", "class: reserved, floor: 10%");
    format!("admin: {{ listen: 127.0.0.1:0 }}\n{NARROW}tenants:\n{tenants}")
}

fn waiting(page: &Value) -> Vec<Value> {
    page["models"][0]["waiting"].as_array().unwrap().clone()
}

#[tokio::test]
async fn those_who_wait_are_shown_with_their_place() {
    let rig = Rig::start(&yaml()).await;
    let _running = rig.hold(&Ask::endless().of("flood")).await;
    rig.until("one runs", async || {
        rig.queue().await["models"][0]["running_requests"] == 1
    })
    .await;
    let mut held = Vec::new();
    for (n, name) in ["flood", "flood", "quiet"].into_iter().enumerate() {
        held.push(rig.hold(&Ask::short().of(name)).await);
        rig.until("it waits", async || {
            waiting(&rig.queue().await).len() == n + 1
        })
        .await;
    }
    let page = rig.queue().await;
    let model = &page["models"][0];
    assert_eq!(
        (&model["model"], &model["policy"]),
        (&json!("m"), &json!("vtc"))
    );
    assert_eq!(
        (&model["queued_requests"], &model["running_requests"]),
        (&json!(3), &json!(1))
    );
    assert_eq!(model["queued_tokens"], 3 * (3 + 5));
    let shown = waiting(&page);
    let places: Vec<_> = shown
        .iter()
        .map(|one| (&one["tenant"], &one["class"], &one["position"]))
        .collect();
    let (flood, quiet) = (json!("flood"), json!("quiet"));
    let (standard, reserved) = (json!("standard"), json!("reserved"));
    let expected = [
        (&flood, &standard, &json!(1)),
        (&flood, &standard, &json!(2)),
        (&quiet, &reserved, &json!(1)),
    ];
    assert_eq!(places, expected);
    for one in &shown {
        assert!(one["request"].as_str().unwrap().starts_with("req-"));
        assert!(one["waited_ms"].as_u64().unwrap() < 20_000);
        let estimate = &one["estimated_wait_ms"];
        assert!(estimate.is_null() || estimate.is_u64(), "{one}");
    }
    assert_eq!(shown[0]["tokens_ahead"], 0);
    assert!(
        shown[0]["estimated_wait_ms"].is_null(),
        "it waits for a place"
    );
    assert!(shown[1]["tokens_ahead"].as_u64().unwrap() > 0);

    let window = &model["windows"][0];
    assert_eq!(
        (&window["sequences"], &window["sequences_limit"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        (&window["up"], &window["moved"]),
        (&json!(true), &json!("came_up"))
    );
    assert!(window["kv_blocks"].as_u64().unwrap() > 0);
    assert!(!page.to_string().contains("sk-"), "keys are not shown");

    drop(held);
    rig.until("those who left are gone", async || {
        waiting(&rig.queue().await).is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_wait_is_estimated_once_the_pace_is_measured() {
    let rig = Rig::start(&yaml()).await;
    let _running = rig.hold(&Ask::endless().of("flood")).await;
    let _before = rig.hold(&Ask::short().of("quiet")).await;
    let _waits = rig.hold(&Ask::short().of("quiet")).await;
    let mut estimate = 0;
    rig.until("there is an estimate", async || {
        let shown = waiting(&rig.queue().await);
        let last = shown.last().map(|last| last["estimated_wait_ms"].clone());
        estimate = last.and_then(|wait| wait.as_u64()).unwrap_or(0);
        estimate > 0
    })
    .await;
    // Eight tokens of its own tenant before it, and as many of the other's, at one or two a
    // millisecond.
    assert!(estimate < 1_000, "{estimate}");
}

/// Four at once, at a pace at which somebody can look.
fn few(window: &str) -> String {
    let yaml = yaml().replace("class: reserved, floor: 10%", "weight: 1");
    let yaml = yaml.replace("step: 1ms", "step: 5ms");
    yaml.replace(
        "max_sequences: 1",
        &format!("max_sequences: 4\n    {window}"),
    )
}

/// Floods it, and waits until two wait, so many running.
async fn flooded(rig: &Rig, running: usize) -> Vec<tokio::net::TcpStream> {
    let mut held = Vec::new();
    for n in 0..running + 2 {
        held.push(rig.hold(&Ask::endless().of("flood")).await);
        rig.until("it runs or waits", async || {
            let model = &rig.queue().await["models"][0];
            let queued = model["queued_requests"].as_u64().unwrap();
            let runs = model["running_requests"].as_u64().unwrap();
            queued + runs == u64::try_from(n).unwrap() + 1
        })
        .await;
    }
    held
}

#[tokio::test]
async fn who_waits_for_a_full_window_is_told_so_and_a_guest_passes_and_is_counted() {
    let rig = Rig::start(&few("")).await;
    let _flood = flooded(&rig, 4).await;
    let page = rig.queue().await;
    let whys = |page: &Value| -> Vec<_> {
        let shown = waiting(page);
        shown.iter().map(|one| one["waits_for"].clone()).collect()
    };
    assert_eq!(whys(&page), ["sequences", "sequences"]);
    assert_eq!(page["models"][0]["windows"][0]["guests_taken"], 0);
    assert_eq!(rig.send(&Ask::short().of("quiet")).await.status, 200);
    let page = rig.queue().await;
    assert_eq!(page["models"][0]["windows"][0]["guests_taken"], 1);
    assert_eq!(waiting(&page).len(), 2, "nobody of the flood is over");
    let page = rig.metrics().await;
    let of = |name: &str| {
        let name = format!("tollgate_{name}{{model=\"m\",replica=\"0\"}}");
        sample(&page, &name).unwrap().to_owned()
    };
    assert_eq!(
        (of("window_guests"), of("engine_places_given")),
        ("1".into(), "1".into())
    );
}

#[tokio::test]
async fn who_waits_though_a_place_is_kept_is_told_that() {
    let rig = Rig::start(&few("window: { headroom: 1 }")).await;
    assert_eq!(rig.send(&Ask::short().of("quiet")).await.status, 200);
    let _flood = flooded(&rig, 3).await;
    let page = rig.queue().await;
    assert_eq!(page["models"][0]["running_requests"], 3);
    let shown = waiting(&page);
    assert!(
        shown.iter().all(|one| one["waits_for"] == "headroom"),
        "{shown:?}"
    );
}

#[tokio::test]
async fn the_page_is_on_its_own_listener_alone() {
    let rig = Rig::start(&yaml()).await;
    let api = rig.send(&Ask::get("/admin/v1/queue").of("quiet")).await;
    assert_eq!(api.status, 404);
    let admin = rig.server.admin_address().unwrap();
    let reply = Ask::short().of("quiet").send(admin).await;
    assert_eq!(
        reply.status, 404,
        "the API is not on the operator's listener"
    );
    let without = Rig::start(&yaml().replace("admin: { listen: 127.0.0.1:0 }", "")).await;
    assert_eq!(without.server.admin_address(), None);
}

#[tokio::test]
async fn the_windows_are_in_the_metrics_too() {
    let rig = Rig::start(&yaml()).await;
    let _running = rig.hold(&Ask::endless().of("flood")).await;
    rig.until("one runs", async || {
        rig.queue().await["models"][0]["running_requests"] == 1
    })
    .await;
    let page = rig.metrics().await;
    let of = |name: &str, labels: &str| {
        let name = format!("tollgate_{name}{{model=\"m\",replica=\"0\"{labels}}}");
        let found = sample(&page, &name);
        found.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    assert_eq!(of("window_sequences_limit", ""), "1");
    assert_eq!(of("window_moves", ",reason=\"came_up\""), "1");
    assert_eq!(of("window_moves", ",reason=\"replica_queues\""), "0");
    assert_eq!(of("window_headroom_sequences", ""), "0");
    let occupancy: f64 = of("replica_kv_occupancy_ratio", "").parse().unwrap();
    assert!(occupancy > 0.0 && occupancy <= 1.0, "{occupancy}");
    assert!(page.contains("# TYPE tollgate_window_prefill_tokens gauge"));
}
