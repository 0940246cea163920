//! What is written is read back, and nothing else is a record.

use proptest::prelude::*;

use super::*;

fn name() -> impl Strategy<Value = RequestName> {
    (any::<u32>(), any::<u64>()).prop_map(|(boot, number)| RequestName { boot, number })
}

fn used() -> impl Strategy<Value = Used> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u128>());
    numbers.prop_map(|(prompt, cached, output, kv)| Used {
        prompt: Tokens::new(prompt),
        cached: Tokens::new(cached),
        output: Tokens::new(output),
        kv: KvByteMicros::new(kv),
    })
}

fn started() -> impl Strategy<Value = Started> {
    let texts = (
        ".{0,40}",
        proptest::option::of("[a-z]{0,9}"),
        "[a-z0-9.-]{1,20}",
    );
    (name(), texts, any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
        |(request, (tenant, key, model), replica, received, dispatched)| Started {
            request,
            tenant: tenant.into(),
            key: key.map(Arc::from),
            model: model.into(),
            replica,
            received: UnixMicros::new(received),
            dispatched: UnixMicros::new(dispatched),
        },
    )
}

fn mark() -> impl Strategy<Value = Mark> {
    (name(), any::<u64>(), used()).prop_map(|(request, at, used)| Mark {
        request,
        at: UnixMicros::new(at),
        used,
    })
}

fn ended() -> impl Strategy<Value = Ended> {
    let counted = prop_oneof![
        Just(Counted::Engine),
        Just(Counted::Estimated),
        Just(Counted::Marked)
    ];
    let finish = proptest::option::of("stop|length");
    let ttft = proptest::option::of(any::<u64>());
    (started(), "[a-z_]{1,30}", finish, used(), counted, ttft).prop_map(
        |(started, outcome, finish, used, counted, ttft)| Ended {
            request: started.request,
            tenant: started.tenant,
            key: started.key,
            model: Some(started.model).filter(|model| model.len() % 2 == 0),
            replica: Some(started.replica).filter(|replica| replica % 2 == 0),
            outcome: outcome.into(),
            finish_reason: finish.map(Cow::Owned),
            used,
            counted,
            received: started.received,
            queue: Micros::new(started.dispatched.get()),
            ttft: ttft.map(Micros::new),
            total: Micros::new(used.output.get()),
        },
    )
}

/// Any record.
pub(crate) fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        (any::<u32>(), any::<u64>(), "[0-9.]{5}").prop_map(|(boot, at, version)| {
            let at = UnixMicros::new(at);
            Record::Opened(Opened { boot, at, version })
        }),
        started().prop_map(Record::Started),
        (started(), proptest::option::of(mark())).prop_map(|(started, mark)| {
            let request = started.request;
            Record::Carried(started, mark.map(|mark| Mark { request, ..mark }))
        }),
        mark().prop_map(Record::Mark),
        ended().prop_map(Record::Ended),
        (any::<u64>(), any::<u64>()).prop_map(|(from, to)| Record::Lost(Lost { from, to })),
    ]
}

fn bytes(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn what_was_written_is_read(record in record()) {
        prop_assert_eq!(Record::decode(&bytes(&record)), Ok(record));
    }

    #[test]
    fn a_record_that_is_cut_short_or_goes_on_is_none(
        record in record(),
        at in any::<prop::sample::Index>(),
    ) {
        let mut bytes = bytes(&record);
        let cut = at.index(bytes.len());
        prop_assert_eq!(Record::decode(&bytes[..cut]), Err(Malformed));
        bytes.push(0);
        prop_assert_eq!(Record::decode(&bytes), Err(Malformed));
    }

    #[test]
    fn a_record_has_one_spelling(noise in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(record) = Record::decode(&noise) {
            prop_assert_eq!(bytes(&record), noise);
        }
    }

    #[test]
    fn a_name_is_read_as_it_is_shown(name in name()) {
        prop_assert_eq!(name.to_string().parse(), Ok(name));
    }
}

#[test]
fn what_is_no_name_is_refused() {
    for text in ["", "req-", "req-1", "req-x-1", "5f-1", "req-123456789-1"] {
        assert_eq!(text.parse::<RequestName>(), Err(NoRequestName), "{text}");
    }
}

#[test]
fn a_text_past_the_bound_is_cut_between_characters() {
    let started = Started {
        request: RequestName { boot: 1, number: 1 },
        tenant: "é".repeat(1000).into(),
        key: None,
        model: "m".into(),
        replica: 0,
        received: UnixMicros::new(0),
        dispatched: UnixMicros::new(0),
    };
    let Ok(Record::Started(read)) = Record::decode(&bytes(&Record::Started(started))) else {
        panic!("not what was written");
    };
    assert_eq!(*read.tenant, *"é".repeat(512));
}

#[test]
fn an_interrupted_request_is_charged_what_its_last_mark_proves() {
    let request = RequestName { boot: 1, number: 7 };
    let started = Started {
        request,
        tenant: "t".into(),
        key: Some("k".into()),
        model: "m".into(),
        replica: 3,
        received: UnixMicros::new(1_000),
        dispatched: UnixMicros::new(1_500),
    };
    let nothing = Ended::interrupted(started.clone(), None);
    assert_eq!(nothing.used, Used::default());
    assert_eq!(nothing.total, Micros::new(500));
    let used = Used {
        output: Tokens::new(9),
        ..Used::default()
    };
    let at = UnixMicros::new(4_000);
    let some = Ended::interrupted(started, Some(Mark { request, at, used }));
    assert_eq!((some.used, some.total), (used, Micros::new(3_000)));
    assert_eq!(
        (some.outcome.as_ref(), some.counted),
        ("interrupted", Counted::Marked)
    );
}
