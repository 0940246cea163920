//! The readers on small texts of each format, and on broken ones.

use super::*;

fn micros(at: u64) -> Time {
    Time::from_micros(at)
}

fn fault(name: TraceName, text: &str) -> String {
    Trace::read(name, text.as_bytes()).unwrap_err().to_string()
}

const AZURE: &str = "\
TIMESTAMP,service,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.6805900,conv,374,44
2023-11-16 23:59:59.7000000,code,4000,9
2023-11-17 00:00:01.1805919,conv,396,109
";

#[test]
fn azure_rows_are_taken_by_service_and_counted_from_their_first_over_midnight() {
    let trace = Trace::read(TraceName::AzureConversations, AZURE.as_bytes()).unwrap();
    let rows = [(0, 374, 44), (1_500_001, 396, 109)].map(|(at, prompt, output)| TraceRow {
        at: micros(at),
        tenant: 0,
        prompt: Tokens::new(prompt),
        output: Tokens::new(output),
    });
    assert_eq!(
        trace,
        Trace {
            tenants: vec!["all".to_owned()],
            rows: rows.to_vec(),
            tick: None
        }
    );
    let code = Trace::read(TraceName::AzureCode, AZURE.as_bytes()).unwrap();
    assert_eq!(code.rows.len(), 1);
    assert_eq!(code.rows[0].at, Time::START);
}

#[test]
fn a_leap_day_is_a_day() {
    let day = |date: &str| {
        let text = format!(
            "TIMESTAMP,service,ContextTokens,GeneratedTokens\n\
             2024-02-28 00:00:00,conv,1,1\n\
             {date} 00:00:00,conv,1,1\n"
        );
        let trace = Trace::read(TraceName::AzureConversations, text.as_bytes()).unwrap();
        trace.duration().get() / 86_400_000_000
    };
    assert_eq!(day("2024-02-29"), 1);
    assert_eq!(day("2024-03-01"), 2);
    assert_eq!(day("2025-02-28"), 366);
}

#[test]
fn lmsys_rows_keep_their_tenants_in_order_of_appearance() {
    let text = "arrival_s,tenant,prompt_tokens,output_tokens\r\n\
                0.5,t13,13,199\r\n0.75,t02,36,137\r\n1.5,t13,1,2\r\n";
    let trace = Trace::read(TraceName::Lmsys27, text.as_bytes()).unwrap();
    assert_eq!(trace.tenants, ["t13", "t02"]);
    let shown: Vec<(Time, usize)> = trace.rows.iter().map(|row| (row.at, row.tenant)).collect();
    assert_eq!(
        shown,
        [(micros(0), 0), (micros(250_000), 1), (micros(1_000_000), 0)]
    );
}

#[test]
fn mooncake_rows_say_that_their_times_are_coarse() {
    let line = |at: u64, prompt: u64| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": {prompt}, \"output_length\": 5, \
             \"hash_ids\": [0, 1]}}\n"
        )
    };
    let text = line(3_000, 6_758) + &line(6_001, 7);
    let trace = Trace::read(TraceName::MooncakeConversations, text.as_bytes()).unwrap();
    assert_eq!(trace.rows[1].at, micros(3_001_000));
    assert_eq!(trace.rows[0].prompt, Tokens::new(6_758));
    assert_eq!(trace.tick, Some(Micros::from_secs(3)));
}

#[test]
fn a_wrong_line_is_named_with_its_number_and_what_to_put_there() {
    let azure = |row: &str| fault(TraceName::AzureConversations, &format!("{}{row}\n", AZURE));
    assert_eq!(
        azure("2023-11-18 00:00:00,conv,1"),
        "line 5: 3 fields; the header has 4"
    );
    assert_eq!(
        azure("2023-11-18 00:00:00,conv,-1,1"),
        "line 5: ContextTokens is `-1`; it must be a number of tokens"
    );
    assert_eq!(
        azure("2023-11-18 00:00:00,chat,1,1"),
        "line 5: service is `chat`; it must be conv or code"
    );
    assert!(azure("2023-13-18 00:00:00,conv,1,1").starts_with("line 5: TIMESTAMP is `2023-13-18"));
    assert_eq!(
        azure("2023-11-15 00:00:00,conv,1,1"),
        "line 5: the time goes back; sort the rows by time"
    );
    assert_eq!(
        fault(
            TraceName::Lmsys27,
            "arrival_s,user,prompt_tokens,output_tokens\n"
        ),
        "line 1: the columns are `arrival_s,user,prompt_tokens,output_tokens`; \
         they must be `arrival_s,tenant,prompt_tokens,output_tokens`"
    );
    let head = "arrival_s,tenant,prompt_tokens,output_tokens\n";
    assert!(
        fault(TraceName::Lmsys27, &format!("{head}nan,t1,1,1\n")).starts_with("line 2: arrival_s")
    );
    assert!(fault(TraceName::Lmsys27, &format!("{head}1,,1,1\n")).starts_with("line 2: tenant"));
    assert!(
        fault(TraceName::Lmsys27, &format!("{head}1,a,1,99999999\n")).contains("at most 10000000")
    );
    assert_eq!(
        fault(TraceName::Lmsys27, head),
        "line 1: no request in the whole trace"
    );
    let unknown =
        "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[],\"user\":1}";
    assert!(
        fault(TraceName::MooncakeConversations, unknown)
            .starts_with("line 1: unknown field `user`")
    );
    let missing = "{\"timestamp\":0,\"input_length\":1,\"hash_ids\":[]}";
    assert!(
        fault(TraceName::MooncakeConversations, missing).contains("missing field `output_length`")
    );
}

#[test]
fn a_line_without_an_end_is_refused_before_it_fills_the_memory() {
    let endless = BufReader::new(io::repeat(b'x'));
    let refused = Trace::read(TraceName::Lmsys27, endless)
        .unwrap_err()
        .to_string();
    assert_eq!(
        refused,
        "line 1: more than 1048576 bytes in one line; cut the trace"
    );
}

#[test]
fn a_trace_is_found_by_name_and_a_missing_one_says_where_it_was_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("azure_llm_2023.csv"), AZURE).unwrap();
    let name: TraceName = "azure-conversations".parse().unwrap();
    assert_eq!(Trace::open(name, dir.path()).unwrap().rows.len(), 2);
    let missing = Trace::open(TraceName::Lmsys27, dir.path())
        .unwrap_err()
        .to_string();
    assert!(missing.contains("`lmsys-27`") && missing.contains("vtc_lmsys_27tenants.csv"));
    std::fs::write(dir.path().join("vtc_lmsys_27tenants.csv"), "a,b\n").unwrap();
    let wrong = Trace::open(TraceName::Lmsys27, dir.path())
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("vtc_lmsys_27tenants.csv, line 1: the columns are `a,b`"));
    assert!(
        "sharegpt"
            .parse::<TraceName>()
            .unwrap_err()
            .to_string()
            .contains("lmsys-27")
    );
}
