//! Promises of latency as clients and operators see them.

use serde_json::{Value, json};

use crate::support::{Ask, NARROW, Reply, Rig, sample, tenant};

fn yaml(slo: &str) -> String {
    let tenants = tenant("one", "weight: 1");
    format!("admin: {{ listen: 127.0.0.1:0 }}\n{NARROW}    slo: {slo}\ntenants:\n{tenants}")
}

fn ask() -> Ask {
    let members = json!({ "ignore_eos": true, "max_tokens": 5, "stream": true });
    Ask::complete(members).of("one")
}

/// Asks until somebody is refused; what it was told.
async fn until_refused(rig: &Rig, ask: &Ask) -> Reply {
    for _ in 0..100 {
        let reply = rig.send(ask).await;
        if reply.status != 200 {
            return reply;
        }
    }
    panic!("nobody was refused");
}

fn admitted(page: &Value, reason: &str) -> u64 {
    let counts = page["models"][0]["admitted"].as_array().unwrap();
    let count = counts.iter().find(|count| count["reason"] == reason);
    count.unwrap()["requests"].as_u64().unwrap()
}

#[tokio::test]
async fn a_promise_that_cannot_be_kept_refuses_and_says_by_how_much() {
    let rig = Rig::start(&yaml("{ ttft: 1ms, mode: guarantee }")).await;
    let refused = until_refused(&rig, &ask()).await;
    assert_eq!(refused.outcome(), (503, "slo"));
    assert_eq!(refused.json()["error"]["code"], "slo");
    assert!(refused.number("retry-after") >= 1, "whole seconds");
    assert!(refused.number("retry-after-ms") > 0);

    let page = rig.admission().await;
    let model = &page["models"][0];
    let said = model["says"].as_array().unwrap();
    let said: Vec<_> = said.iter().filter_map(Value::as_str).collect();
    let why = "standard: ttft of 1 ms can't be promised";
    assert!(
        said.iter()
            .any(|line| line.starts_with(why) && line.ends_with("ms more")),
        "{said:?}"
    );
    assert_eq!(model["classes"].as_array().unwrap().len(), 3);
    assert_eq!(
        model["refused"][0],
        json!({ "reason": "ttft", "requests": 1 })
    );
    assert!(
        admitted(&page, "unknown") > 0,
        "nobody is refused before anything was measured"
    );

    let metrics = rig.metrics().await;
    let labels = "model=\"m\",class=\"standard\",decision=\"refused\",reason=\"ttft\"";
    let name = format!("tollgate_slo_decisions_total{{{labels}}}");
    assert_eq!(sample(&metrics, &name), Some("1"));
    let name = "tollgate_requests_total{model=\"m\",class=\"standard\",reason=\"slo\"}";
    assert_eq!(sample(&metrics, name), Some("1"));
}

#[tokio::test]
async fn while_there_is_room_goodput_refuses_nobody() {
    let rig = Rig::start(&yaml("{ ttft: 1ms, tpot: 1ms, e2e: 1ms }")).await;
    for _ in 0..60 {
        assert_eq!(rig.send(&ask()).await.status, 200);
    }
    let page = rig.admission().await;
    assert!(admitted(&page, "room") > 0);
}

#[tokio::test]
async fn an_answer_that_comes_whole_is_promised_no_first_token_and_all_of_it() {
    let rig = Rig::start(&yaml("{ ttft: 1ms, tpot: 1ms, mode: guarantee }")).await;
    for _ in 0..40 {
        assert_eq!(rig.send(&Ask::short().of("one")).await.status, 200);
    }
    assert_eq!(
        until_refused(&rig, &ask()).await.outcome(),
        (503, "slo"),
        "it was measured"
    );
    let rig = Rig::start(&yaml("{ e2e: 1ms, mode: guarantee }")).await;
    let refused = until_refused(&rig, &Ask::short().of("one")).await;
    assert_eq!(refused.outcome(), (503, "slo"));
}

#[tokio::test]
async fn a_header_asks_for_less_time_and_never_for_more() {
    let rig = Rig::start(&yaml("{ ttft: 60s, mode: guarantee }")).await;
    let hurried = ask().header("x-tollgate-slo-ttft-ms", "1");
    assert_eq!(until_refused(&rig, &hurried).await.outcome(), (503, "slo"));
    let patient = ask().header("x-llm-d-slo-ttft-ms", "999999");
    assert_eq!(rig.send(&patient).await.status, 200);
    let strange = ask().header("x-tollgate-slo-ttft-ms", "soon");
    assert_eq!(rig.send(&strange).await.status, 200);
}

#[tokio::test]
async fn what_was_learned_outlives_the_gateway_and_every_decision_is_written_down() {
    let yaml = yaml("{ ttft: 60s, tpot: 10s, e2e: 100s }");
    let rig = Rig::start(&yaml).await;
    for _ in 0..30 {
        assert_eq!(rig.send(&ask()).await.status, 200);
    }
    let folder = rig.end().await;
    let kept = folder.path().join("admission");
    let files = std::fs::read_dir(&kept).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 2, "{names:?}");
    let trace = std::fs::read_to_string(kept.join(&names[0])).unwrap();
    assert_eq!(trace.lines().count(), 1 + 30);
    let state = std::fs::read_to_string(kept.join(&names[1])).unwrap();
    assert!(
        state.starts_with("{\"format\":\"tollgate-admission\",\"version\":2"),
        "{state}"
    );

    let rig = Rig::start_in(folder, &yaml).await;
    let page = rig.admission().await;
    assert!(page["models"][0]["costs"]["prefill_us"].is_u64(), "{page}");
    assert_eq!(rig.send(&ask()).await.status, 200);
    let page = rig.admission().await;
    assert_eq!(admitted(&page, "unknown"), 0, "it knows from the start");
    drop(rig.end().await);
}

/// Has so many ask at once, again and again, until the server says that it has fitted a model.
async fn until_fitted(rig: &Rig) -> Value {
    let asks: Vec<_> = (0..50).map(|_| ask()).collect();
    for _ in 0..200 {
        let mut all = tokio::task::JoinSet::new();
        for ask in asks.clone() {
            let address = rig.server.address();
            all.spawn(async move { ask.send(address).await.status });
        }
        while let Some(status) = all.join_next().await {
            assert_eq!(status.unwrap(), 200);
        }
        let page = rig.admission().await;
        if page["models"][0]["trees"]["fitted_to"].is_u64() {
            return page;
        }
    }
    panic!("nothing was fitted");
}

#[tokio::test]
async fn a_model_is_fitted_to_those_that_waited_beside_the_requests() {
    let rig = Rig::start(&yaml("{ ttft: 60s, e2e: 100s }")).await;
    let page = until_fitted(&rig).await;
    let trees = &page["models"][0]["trees"];
    assert!(trees["fitted_to"].as_u64() >= Some(512), "{trees}");
    assert!(trees["loss"].is_f64(), "{trees}");
    assert_eq!(rig.send(&ask()).await.status, 200);
    drop(rig.end().await);
}

#[tokio::test]
async fn by_structure_alone_nothing_is_fitted() {
    let rig = Rig::start(&yaml("{ ttft: 60s, model: structural }")).await;
    for _ in 0..30 {
        assert_eq!(rig.send(&ask()).await.status, 200);
    }
    let page = rig.admission().await;
    let trees = &page["models"][0]["trees"];
    assert_eq!(
        trees,
        &json!({ "trees": 0, "fitted_to": null, "loss": null, "answers": 0 })
    );
}
